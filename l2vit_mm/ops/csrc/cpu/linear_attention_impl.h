// The kernels of linear attention: see kernels_impl.h.
#pragma once

#include "simd_impl.h"

namespace l2vit::cpu {
namespace L2VIT_ISA {
namespace {

// Scratch memory of a thread. Per chunk: two matrices (tokens x heads x D), two (tokens x heads x
// Dv) and two numbers per token and head. Per head of the item: two matrices of the size of the
// state, one of which may be transposed, and two rows of D. All of it is zero when a thread starts,
// and the padding of D and Dv stays zero where it matters: only products write there, of zeros.
template <class Acc> struct Scratch {
  int64_t d, dv, heads;   // padded D, padded Dv, heads of the item
  int64_t d_row, dv_row;  // from token to token: one cache line more than the heads take, so that
                          // the rows of a head do not map to the same cache sets
  Acc *keys, *keys2, *values, *values2, *states, *states2, *rows, *rows2, *factors, *factors2;

  static int64_t row(int64_t d, int64_t heads) { return heads * d + 64 / int64_t{sizeof(Acc)}; }
  static int64_t size(int64_t d, int64_t dv, int64_t heads) {
    return 2 * (kChunk * (row(d, heads) + row(dv, heads) + heads) + heads * (d * dv + d));
  }

  Scratch(const Attention& a, const Item& item, void* memory)
      : d(padded<Acc>(a.head_dim)), dv(padded<Acc>(a.value_dim)),
        heads(item.head_end - item.head_begin), d_row(row(d, item.max_heads)),
        dv_row(row(dv, item.max_heads)) {
    const int64_t most = item.max_heads;
    keys = static_cast<Acc*>(memory);
    keys2 = keys + kChunk * d_row;
    values = keys2 + kChunk * d_row;
    values2 = values + kChunk * dv_row;
    states = values2 + kChunk * dv_row;
    states2 = states + most * d * dv;
    rows = states2 + most * d * dv;
    rows2 = rows + most * d;
    factors = rows2 + most * d;
    factors2 = factors + most * kChunk;
  }

  // Clears the sums of an item.
  void clear(Acc* some_states, Acc* some_rows) const {
    std::memset(some_states, 0, heads * d * dv * sizeof(Acc));
    std::memset(some_rows, 0, heads * d * sizeof(Acc));
  }
};

// One head of a scratch.
template <class Acc> struct Head {
  Acc *keys, *keys2, *values, *values2, *state, *state2, *row, *row2, *factor, *factor2;

  Head(const Scratch<Acc>& s, int64_t h)
      : keys(s.keys + h * s.d), keys2(s.keys2 + h * s.d), values(s.values + h * s.dv),
        values2(s.values2 + h * s.dv), state(s.states + h * s.d * s.dv),
        state2(s.states2 + h * s.d * s.dv), row(s.rows + h * s.d), row2(s.rows2 + h * s.d),
        factor(s.factors + h * kChunk), factor2(s.factors2 + h * kChunk) {}
};

template <class T> int64_t scratch_size(const Attention& a, int64_t heads) {
  using Acc = AccType<T>;
  return sizeof(Acc) * Scratch<Acc>::size(padded<Acc>(a.head_dim), padded<Acc>(a.value_dim), heads);
}

// The address of the heads of a token.
template <class T>
inline T* token_of(const View& view, const Item& item, const Chunk& chunk, int64_t t) {
  return static_cast<T*>(view.data) + item.image * view.image + item.head_begin * view.head +
         chunk.row[t] * view.row + chunk.column[t] * view.token;
}

// Addresses of the tokens after a chunk, assuming that tokens are evenly spaced. (At the last
// columns of a map they are not, and that prefetch is useless but harmless.)
template <class T>
Prefetch::Columns behind(const View& view, const Item& item, const Chunk& chunk, int64_t size) {
  if (view.channel != 1) return {};
  const T* first = token_of<const T>(view, item, chunk, 0) + kChunk * view.token;
  constexpr int64_t bytes = sizeof(T);
  return {reinterpret_cast<const char*>(first), view.token * bytes, item.head_end - item.head_begin,
          view.head * bytes, (size * bytes + 63) / 64};
}

// Reads the heads of a chunk into a matrix, head h of token t at t * row + h * head_width.
template <bool relu, class T, class Acc>
void read_chunk(const View& view, const Item& item, const Chunk& chunk, int64_t size, Acc* matrix,
                int64_t row, int64_t head_width) {
  int64_t heads = item.head_end - item.head_begin;
  if (view.channel == 1 && view.head == size && head_width == size) {  // heads are contiguous
    size *= heads;
    heads = 1;
  }
  for (int64_t t = 0; t < chunk.count; ++t) {
    const T* source = token_of<const T>(view, item, chunk, t);
    for (int64_t h = 0; h < heads; ++h, source += view.head) {
      Acc* target = matrix + t * row + h * head_width;
      if (view.channel == 1)
        read<relu>(source, size, target);
      else
        for (int64_t i = 0; i < size; ++i) {
          const Acc x = widen(source[i * view.channel]);
          target[i] = relu && x < 0 ? 0 : x;
        }
    }
  }
}

// The values of a chunk as a matrix, head h of token t at data + t * row + h * head: the memory of
// the tensor itself where its type and padding allow, else a copy.
template <class Acc> struct Values {
  const Acc* data;
  int64_t row, head;
};
template <class T, class Acc>
Values<Acc> values_of(const Attention& a, const Item& item, const Chunk& chunk,
                      const Scratch<Acc>& s) {
  if constexpr (sizeof(T) == sizeof(Acc))
    if (a.v.channel == 1 && s.dv == a.value_dim && chunk.row[0] == chunk.row[chunk.count - 1])
      return {token_of<const T>(a.v, item, chunk, 0), a.v.token, a.v.head};
  read_chunk<false, T>(a.v, item, chunk, a.value_dim, s.values, s.dv_row, s.dv);
  return {s.values, s.dv_row, s.dv};
}

// phi of the heads of a chunk.
template <class T, class Acc>
void map_chunk(const Attention& a, const View& view, const Item& item, const Chunk& chunk,
               const Scratch<Acc>& s) {
  if (a.relu)
    read_chunk<true, T>(view, item, chunk, a.head_dim, s.keys, s.d_row, s.d);
  else
    read_chunk<false, T>(view, item, chunk, a.head_dim, s.keys, s.d_row, s.d);
}

// Writes head h of such a matrix to the tensor, each row times its factor, if given. (Head by head,
// so that the stores of one drain while the next is computed.)
template <bool stream, class T, class Acc>
void write_rows(const View& view, const Item& item, const Chunk& chunk, int64_t h, int64_t size,
                const Acc* matrix, int64_t row, const Acc* factors) {
  for (int64_t t = 0; t < chunk.count; ++t)
    write<stream>(matrix + t * row, size, factors ? factors[t] : Acc{1},
                  token_of<T>(view, item, chunk, t) + h * view.head);
}
template <class T, class Acc>
void write_head(const View& view, const Item& item, const Chunk& chunk, int64_t h, int64_t size,
                const Acc* matrix, int64_t row, const Acc* factors = nullptr) {
  constexpr int64_t line = 64;
  const int64_t distances = view.image | view.row | view.token | view.head | size;
  if (item.stream && reinterpret_cast<uintptr_t>(view.data) % line == 0 &&
      distances * int64_t{sizeof(T)} % line == 0)
    write_rows<true, T>(view, item, chunk, h, size, matrix, row, factors);
  else
    write_rows<false, T>(view, item, chunk, h, size, matrix, row, factors);
}

// Writes zeros to `target` if the item has no partners, and returns whether it did.
template <class T> bool write_zeros(const Item& item, const View& target, int64_t size) {
  if (item.partners) return false;
  Chunk chunk;
  for (int64_t begin = item.begin; begin < item.end; begin += kChunk) {
    take_chunk(item, begin, chunk);
    for (int64_t t = 0; t < chunk.count; ++t)
      for (int64_t h = 0; h < item.head_end - item.head_begin; ++h)
        std::memset(token_of<T>(target, item, chunk, t) + h * target.head, 0, size * sizeof(T));
  }
  return true;
}

// Copies rows of `columns` to rows of `stride`; the padding of a row is not written.
template <class Acc>
void copy_rows(const Acc* source, int64_t rows, int64_t columns, Acc* target, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(target + r * stride, source + r * columns, columns * sizeof(Acc));
}

template <class Acc>
void transpose(const Acc* source, int64_t rows, int64_t columns, Acc* target, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) target[c * stride + r] = source[r * columns + c];
}

// Head h of an item in a state-like and in a key_sum-like array.
template <class Acc>
const Acc* state_of(const void* states, const Attention& a, const Item& item, int64_t h) {
  return static_cast<const Acc*>(states) +
         (item.image * a.heads + item.head_begin + h) * a.head_dim * a.value_dim;
}
template <class Acc>
const Acc* key_sum_of(const void* key_sums, const Attention& a, const Item& item, int64_t h) {
  return static_cast<const Acc*>(key_sums) +
         (item.image * a.heads + item.head_begin + h) * a.head_dim;
}

template <class Acc> Acc* sums_of(const Attention& a, const Item& item, int64_t h) {
  return static_cast<Acc*>(item.partial) + (item.head_begin + h) * partial_size(a);
}

template <class Acc>
void write_sums(const Attention& a, const Item& item, int64_t h, const Acc* state, int64_t dv,
                const Acc* row, Acc scale_sum) {
  Acc* sums = sums_of<Acc>(a, item, h);
  for (int64_t i = 0; i < a.head_dim; ++i, sums += a.value_dim)
    std::memcpy(sums, state + i * dv, a.value_dim * sizeof(Acc));
  std::memcpy(sums, row, a.head_dim * sizeof(Acc));
  sums[a.head_dim] = scale_sum;
}

template <class T> void sum_keys(const Attention& a, const Item& item, void* memory) {
  using Acc = AccType<T>;
  const Scratch<Acc> s(a, item, memory);
  s.clear(s.states, s.rows);
  Chunk chunk;
  for (int64_t begin = item.begin; begin < item.end; begin += kChunk) {
    take_chunk(item, begin, chunk);
    map_chunk<T>(a, a.k, item, chunk, s);
    const Values<Acc> values = values_of<T>(a, item, chunk, s);
    Prefetch prefetch{
        {behind<T>(a.k, item, chunk, a.head_dim), behind<T>(a.v, item, chunk, a.value_dim)}};
    for (int64_t h = 0; h < s.heads; ++h) {
      const Head<Acc> head(s, h);
      product(a.head_dim, a.value_dim, chunk.count, head.keys, int64_t{1}, s.d_row,
              values.data + h * values.head, values.row, head.state, s.dv, true, prefetch);
      for (int64_t i = 0; i < s.d; i += width<Acc>) {
        Vec<Acc> sum{};
        for (int64_t t = 0; t < chunk.count; ++t) sum += load(head.keys + t * s.d_row + i);
        store(head.row + i, load(head.row + i) + sum);
      }
    }
  }
  for (int64_t h = 0; h < s.heads; ++h) {
    const Head<Acc> head(s, h);
    write_sums(a, item, h, head.state, s.dv, head.row, Acc{0});
  }
}

// Sets `factor` to factor / den for every token of a chunk, given phi(q) in `keys` and key_sum in
// `row`, and `depends` to whether den depends on q.
template <class Acc>
void divide(const Attention& a, const Item& item, int64_t count, const Scratch<Acc>& s,
            const Head<Acc>& head, Acc factor, bool* depends) {
  const Acc least = static_cast<Acc>(a.denom_min);
  const Acc more = static_cast<Acc>(a.eps) * static_cast<Acc>(item.partners);
  for (int64_t t = 0; t < count; ++t) head.factor[t] = dot(head.keys + t * s.d_row, head.row, s.d);
  for (int64_t t = 0; t < count; ++t) {
    const Acc sum = head.factor[t];
    depends[t] = a.mean || sum >= least;
    head.factor[t] = factor / (a.mean ? sum + more : sum < least ? least : sum);
  }
}

template <class T> void attend(const Attention& a, const Item& item, void* memory) {
  using Acc = AccType<T>;
  if (write_zeros<T>(item, a.out, a.value_dim)) return;
  const Scratch<Acc> s(a, item, memory);
  for (int64_t h = 0; h < s.heads; ++h) {
    const Head<Acc> head(s, h);
    copy_rows(state_of<Acc>(a.state, a, item, h), a.head_dim, a.value_dim, head.state, s.dv);
    copy_rows(key_sum_of<Acc>(a.key_sum, a, item, h), 1, a.head_dim, head.row, s.d);
  }
  Chunk chunk;
  bool depends[kChunk];
  for (int64_t begin = item.begin; begin < item.end; begin += kChunk) {
    take_chunk(item, begin, chunk);
    map_chunk<T>(a, a.q, item, chunk, s);
    Prefetch prefetch{{behind<T>(a.q, item, chunk, a.head_dim), {}}};
    for (int64_t h = 0; h < s.heads; ++h) {
      const Head<Acc> head(s, h);
      divide(a, item, chunk.count, s, head, scale_of<Acc>(a, item.head_begin + h), depends);
      product(chunk.count, a.value_dim, a.head_dim, head.keys, s.d_row, int64_t{1}, head.state,
              s.dv, head.values, s.dv_row, false, prefetch);
      write_head<T>(a.out, item, chunk, h, a.value_dim, head.values, s.dv_row, head.factor);
    }
  }
  finish_stream();
}

// The gradient, or zero where phi is relu and `mapped`, its result, is 0 or less.
template <class Acc> inline Vec<Acc> where_active(bool relu, Vec<Acc> mapped, Vec<Acc> gradient) {
  return relu ? (mapped <= 0 ? Vec<Acc>{} : gradient) : gradient;
}

template <class T> void query_gradient(const Attention& a, const Item& item, void* memory) {
  using Acc = AccType<T>;
  const Scratch<Acc> s(a, item, memory);
  s.clear(s.states2, s.rows2);
  const bool zeros = write_zeros<T>(item, a.dq, a.head_dim);
  for (int64_t h = 0; h < s.heads; ++h) {
    const Head<Acc> head(s, h);
    transpose(state_of<Acc>(a.state, a, item, h), a.head_dim, a.value_dim, head.state, s.d);
    copy_rows(key_sum_of<Acc>(a.key_sum, a, item, h), 1, a.head_dim, head.row, s.d);
    write_sums(a, item, h, head.state2, s.dv, head.row2, Acc{0});
  }
  Chunk chunk;
  bool depends[kChunk];
  for (int64_t begin = item.begin; begin < item.end && !zeros; begin += kChunk) {
    take_chunk(item, begin, chunk);
    map_chunk<T>(a, a.q, item, chunk, s);
    read_chunk<false, T>(a.dout, item, chunk, a.value_dim, s.values, s.dv_row, s.dv);
    Prefetch prefetch{
        {behind<T>(a.q, item, chunk, a.head_dim), behind<T>(a.dout, item, chunk, a.value_dim)}};
    for (int64_t h = 0; h < s.heads; ++h) {
      const Head<Acc> head(s, h);
      divide(a, item, chunk.count, s, head, Acc{1}, depends);
      for (int64_t t = 0; t < chunk.count; ++t)
        for (int64_t i = 0; i < s.dv; i += width<Acc>) {
          Acc* g = head.values + t * s.dv_row + i;
          store(g, load(g) * head.factor[t]);
        }
      product(chunk.count, a.head_dim, a.value_dim, head.values, s.dv_row, int64_t{1}, head.state,
              s.d, head.keys2, s.d_row, false, prefetch);
      product(a.head_dim, a.value_dim, chunk.count, head.keys, int64_t{1}, s.d_row, head.values,
              s.dv_row, head.state2, s.dv, true, prefetch);
      const Acc scale = scale_of<Acc>(a, item.head_begin + h);
      Acc scale_sum = 0;
      for (int64_t t = 0; t < chunk.count; ++t) {
        const Acc sum = dot(head.keys + t * s.d_row, head.keys2 + t * s.d_row, s.d);
        scale_sum += sum;
        head.factor[t] = depends[t] ? -sum * head.factor[t] : 0;  // r of params.h
        head.factor2[t] = scale;
      }
      sums_of<Acc>(a, item, h)[partial_size(a) - 1] += scale_sum;
      for (int64_t i = 0; i < s.d; i += width<Acc>) {
        const Vec<Acc> z = load(head.row + i);
        Vec<Acc> dz{};
        for (int64_t t = 0; t < chunk.count; ++t) {
          const Vec<Acc> q = load(head.keys + t * s.d_row + i);
          Acc* u = head.keys2 + t * s.d_row + i;
          dz += head.factor[t] * q;
          store(u, where_active<Acc>(a.relu, q, load(u) + head.factor[t] * z));
        }
        store(head.row2 + i, load(head.row2 + i) + dz);
      }
      write_head<T>(a.dq, item, chunk, h, a.head_dim, head.keys2, s.d_row, head.factor2);
    }
  }
  finish_stream();
  for (int64_t h = 0; h < s.heads; ++h) {
    const Head<Acc> head(s, h);
    write_sums(a, item, h, head.state2, s.dv, head.row2,
               sums_of<Acc>(a, item, h)[partial_size(a) - 1]);
  }
}

template <class T> void key_gradient(const Attention& a, const Item& item, void* memory) {
  using Acc = AccType<T>;
  if (write_zeros<T>(item, a.dk, a.head_dim)) {
    write_zeros<T>(item, a.dv, a.value_dim);
    return;
  }
  const Scratch<Acc> s(a, item, memory);
  for (int64_t h = 0; h < s.heads; ++h) {
    const Head<Acc> head(s, h);
    const Acc* dstate = state_of<Acc>(a.dstate, a, item, h);
    copy_rows(dstate, a.head_dim, a.value_dim, head.state, s.dv);
    transpose(dstate, a.head_dim, a.value_dim, head.state2, s.d);
    copy_rows(key_sum_of<Acc>(a.dkey_sum, a, item, h), 1, a.head_dim, head.row, s.d);
  }
  Chunk chunk;
  for (int64_t begin = item.begin; begin < item.end; begin += kChunk) {
    take_chunk(item, begin, chunk);
    map_chunk<T>(a, a.k, item, chunk, s);
    const Values<Acc> values = values_of<T>(a, item, chunk, s);
    Prefetch prefetch{
        {behind<T>(a.k, item, chunk, a.head_dim), behind<T>(a.v, item, chunk, a.value_dim)}};
    for (int64_t h = 0; h < s.heads; ++h) {
      const Head<Acc> head(s, h);
      product(chunk.count, a.value_dim, a.head_dim, head.keys, s.d_row, int64_t{1}, head.state,
              s.dv, head.values2, s.dv_row, false, prefetch);
      write_head<T>(a.dv, item, chunk, h, a.value_dim, head.values2, s.dv_row);
      product(chunk.count, a.head_dim, a.value_dim, values.data + h * values.head, values.row,
              int64_t{1}, head.state2, s.d, head.keys2, s.d_row, false, prefetch);
      for (int64_t i = 0; i < s.d; i += width<Acc>) {
        const Vec<Acc> dz = load(head.row + i);
        for (int64_t t = 0; t < chunk.count; ++t) {
          Acc* db = head.keys2 + t * s.d_row + i;
          store(db, where_active<Acc>(a.relu, load(head.keys + t * s.d_row + i), load(db) + dz));
        }
      }
      write_head<T>(a.dk, item, chunk, h, a.head_dim, head.keys2, s.d_row);
    }
  }
  finish_stream();
}

}  // namespace
}  // namespace L2VIT_ISA
}  // namespace l2vit::cpu
