// Linear attention: tile sizes, the division into parts, and what its kernels and launchers share.
#pragma once
#include "division.cuh"
#include "launcher.cuh"

namespace l2vit::cuda {

// Tile sizes for tensors of T whose D and Dv are at most P.
template <class T, int P> struct Tile {
  using Acc = AccType<T>;
  static constexpr int words = sizeof(Acc) / 4;  // double takes twice the space
  static constexpr int threads = P <= 64 ? 128 : 256;
  static constexpr int width = P;
  static constexpr int tokens = 32 * threads / P / words;
  // Columns of the values that are processed at a time.
  static constexpr int columns = P <= 64 ? P : 8192 / P / words;
  // Rows are padded by 16 bytes, so that 16-byte reads of adjacent rows hit different banks.
  static constexpr int pad = 16 / sizeof(Acc);
  static constexpr bool at_once = columns == P;  // all values
  // Blocks per multiprocessor that registers are limited for, without and with gradients; loads
  // that a thread has in flight at a time.
  static constexpr int blocks = 512 / threads / words;
  static constexpr int gradient_blocks = at_once && words == 1 ? 3 : blocks;
  static constexpr int loads = at_once ? 8 : 4;

  using Rows = Acc[tokens][P + pad];
  using Values = Acc[tokens][columns + pad];
  using State = Acc[P][columns + pad];  // head channels x values
};

// Most tokens of a part of an image's outputs: enough that reading the state costs little in
// comparison.
constexpr int64_t kBlockTokens = 256;
// Fewest tokens of a part with sums of its own, which are large compared to the sums; and most
// parts of an image.
constexpr int64_t kMinPart = 256;
constexpr int64_t kMaxParts = 128;
constexpr int kSumRows = 4;  // threads per sum over the parts of an image

inline Division divide_for_outputs(const Layout& layout, int64_t tile) {
  return Division::make(layout, kBlockTokens, INT64_MAX, tile);
}
inline Division divide_for_sums(const Attention& a, const Layout& layout, int64_t tile) {
  const int64_t size = a.head_dim > a.value_dim ? a.head_dim : a.value_dim;
  const int64_t least = ceil_div(8 * size, kMinPart) * kMinPart;
  return Division::make(layout, least, kMaxParts, tile);
}

// The partial sums of a slot and head, and the part of a state-like or key_sum-like array of an
// image and head.
template <class Acc> __device__ Acc* partial_of(const Attention& a, int64_t slot, int64_t head) {
  return static_cast<Acc*>(a.workspace) + (slot * a.heads + head) * partial_size(a);
}
template <class Acc>
__device__ Acc* of_head(const Attention& a, void* array, int64_t image, int64_t head,
                        int64_t size) {
  return static_cast<Acc*>(array) + (image * a.heads + head) * size;
}

template <class Acc> struct Normalizer {
  bool mean;
  Acc least, more;

  __device__ Normalizer(const Attention& a, int64_t keys)
      : mean(a.mean), least(static_cast<Acc>(a.denom_min)),
        more(static_cast<Acc>(a.eps * static_cast<double>(keys))) {}
  __device__ bool clamps(Acc s) const { return !mean && s < least; }
  __device__ Acc divisor(Acc s) const { return mean ? s + more : clamps(s) ? least : s; }
};

// Zeros the tokens that are in no image. A block has kClearTokens adjacent tokens of a row.
constexpr int64_t kClearTokens = 64;
template <class T>
__global__ void __launch_bounds__(256)
    clear_outside(const View view, const Layout layout, int64_t heads, int64_t channels) {
  const int64_t pieces = ceil_div(layout.width, kClearTokens), line = blockIdx.x / pieces;
  int64_t begin = blockIdx.x % pieces * kClearTokens;
  const int64_t end = smaller(begin + kClearTokens, layout.width);
  int64_t image = 0, row = 0, inside = 0;
  if (layout.cu_seqlens) {
    if (layout.images) {
      const Region last = layout.region(layout.images - 1);
      inside = last.start + last.columns;
    }
  } else {
    image = line / layout.height, row = line % layout.height;
    const Region region = layout.region(image);
    inside = row < region.rows ? region.columns : 0;
  }
  if (begin < inside) begin = inside;
  T zero;
  narrow(AccType<T>(0), zero);
  T* data = static_cast<T*>(view.data) + image * view.image + row * view.row;
  for (int64_t i = threadIdx.x; i < (end - begin) * heads * channels; i += blockDim.x) {
    const int64_t channel = i % channels, head = i / channels % heads;
    const int64_t token = begin + i / channels / heads;
    data[token * view.token + head * view.head + channel * view.channel] = zero;
  }
}

// Calls function(Type<T>(), std::integral_constant<int, P>()) with the smallest P, a power of two
// from 16 on, that D and Dv fit into.
template <int P = 16, class Function> void with_tile(const Attention& a, Function function) {
  if constexpr (P < kMaxHeadDim) {
    if (a.head_dim > P || a.value_dim > P) return with_tile<2 * P>(a, function);
  }
  with_type(a.dtype, [&](auto type) { function(type, std::integral_constant<int, P>()); });
}

inline void launch_clear_outside(Launcher& launch, const Attention& a, const View& view,
                                 const Layout& layout, int64_t channels) {
  if (!layout.cu_seqlens && !layout.valid_hw) return;
  const int64_t lines = layout.cu_seqlens ? 1 : layout.images * layout.height;
  with_type(a.dtype, [&](auto type) {
    launch(clear_outside<typename decltype(type)::type>,
           lines * ceil_div(layout.width, kClearTokens) * (a.heads > 0), 1, 256, 0, view, layout,
           a.heads, channels);
  });
}

}  // namespace l2vit::cuda
