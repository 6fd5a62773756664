// How the tokens of a batch are divided among blocks.
#pragma once
#include "common.cuh"

namespace l2vit::cuda {

// Every image is cut into one part per `min_tokens` tokens, rounded up, but at most `max_parts`:
// equal parts, in whole tiles of `tile` tokens, of which `min_tokens` is a multiple. How an image
// is cut depends on its own number of tokens alone, and so do its results.
//
// The parts of image i have the slots first_slot(i), first_slot(i) + 1, ... Slots number blocks
// and partial sums. An image has at most ceil(tokens / min_tokens) parts, so that the slots of
// different images never overlap, in a packed tensor too, without a sum over the images before; a
// slot may be empty. `per_image` is 0 if slots follow the tokens of a packed tensor, which takes
// fewer slots than giving every image the maximum.
struct Division {
  Layout layout;
  int64_t min_tokens, max_parts, tile, per_image;

  static Division make(const Layout& layout, int64_t min_tokens, int64_t max_parts, int64_t tile) {
    const int64_t per_image = smaller(max_parts, ceil_div(layout.max_tokens(), min_tokens));
    Division division{layout, min_tokens, max_parts, tile, per_image};
    if (layout.cu_seqlens && layout.width / min_tokens + layout.images < layout.images * per_image)
      division.per_image = 0;
    return division;
  }

  int64_t slots() const {
    return per_image                            ? layout.images * per_image
           : layout.cu_seqlens && layout.images ? layout.width / min_tokens + layout.images
                                                : 0;
  }

  __device__ int64_t length(int64_t tokens) const {
    const int64_t parts = smaller(max_parts, ceil_div(tokens, min_tokens));
    return parts ? ceil_div(ceil_div(tokens, parts), tile) * tile : tile;
  }
  __device__ int64_t parts(int64_t tokens) const { return ceil_div(tokens, length(tokens)); }

  __device__ int64_t first_slot(int64_t image) const {
    return per_image ? image * per_image : layout.region(image).start / min_tokens + image;
  }

  __device__ int64_t image_of(int64_t slot) const {
    if (per_image) return slot / per_image;
    int64_t low = 0, high = layout.images;  // the last image that does not start after the slot
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (first_slot(middle) <= slot ? low : high) = middle;
    }
    return low;
  }
};

// A part of an image.
struct Part {
  int64_t image, begin, end;
  Region region;

  __device__ Part(const Division& division, int64_t slot)
      : image(division.image_of(slot)), region(division.layout.region(image)) {
    const int64_t tokens = region.count(), length = division.length(tokens);
    const int64_t index = slot - division.first_slot(image);
    begin = index * length;
    end = smaller(begin + length, tokens);
    if (index < 0 || begin > end) begin = end = 0;
  }
  __device__ bool empty() const { return begin >= end; }
};

// One head of the tokens of one image.
template <class T> struct Tokens {
  T* data;
  int64_t row, token, channel;
  uint32_t columns;
  int channels;
  bool one_row;
  bool wide;  // 16-byte accesses are valid for all tokens and channels

  __device__ Tokens(const View& view, const Region& region, int64_t image, int64_t head,
                    int64_t channels)
      : data(static_cast<T*>(view.data) + image * view.image + region.start * view.token +
             head * view.head),
        row(view.row), token(view.token), channel(view.channel),
        columns(static_cast<uint32_t>(region.columns)), channels(static_cast<int>(channels)),
        one_row(region.rows == 1) {
    wide = channel == 1 && is_aligned(data) && is_aligned<T>(token) && is_aligned<T>(channels) &&
           (one_row || is_aligned<T>(row));
  }

  __device__ T* at(int64_t index) const {
    if (one_row) return data + index * token;
    const uint32_t y = static_cast<uint32_t>(index) / columns;
    return data + y * row + (static_cast<uint32_t>(index) - y * columns) * token;
  }

  __device__ Chunk<T> load(int64_t index, int first) const {
    return Chunk<T>::load(at(index) + first * channel, wide, channels - first, channel);
  }
  __device__ void store(int64_t index, int first, const Chunk<T>& chunk) const {
    chunk.store(at(index) + first * channel, wide, channels - first, channel);
  }

  // Stores up to four channels.
  __device__ void store4(int64_t index, int first, const AccType<T>* values) const {
    T* to = at(index) + first * channel;
    if (wide && first + 4 <= channels) {
      write4(to, values);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first + i < channels) narrow(values[i], to[i * channel]);
    }
  }

  // Sets the channels of the tokens to zero, by all threads of the block.
  __device__ void clear(int64_t begin, int64_t end) const {
    T zero;
    narrow(AccType<T>(0), zero);
    for (int64_t i = threadIdx.x; i < (end - begin) * channels; i += blockDim.x)
      at(begin + i / channels)[i % channels * channel] = zero;
  }
};

}  // namespace l2vit::cuda
