// The CPU kernels, compiled once an instruction set: L2VIT_ISA is its name, L2VIT_VECTOR_BYTES the
// size of a vector register, L2VIT_TARGET what the compiler may use.
//
// A thread takes its tokens in chunks. The heads of a chunk are copied to small matrices, converted
// to Acc and mapped by phi on the way; all products are of such matrices, which lie in the caches.
// Their rows are padded to whole vectors. Tensors are read a token at a time, all heads of the item
// at once: head by head, the rows of a chunk would be short pieces of memory far apart, at distances
// that make them compete for the same few places of a cache.
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "kernels.h"

// Everything behind this is local to the file (an unnamed namespace): were it not, the linker could
// keep the copy of an instruction set that the processor lacks.
#ifdef L2VIT_TARGET
#pragma GCC push_options
L2VIT_TARGET
#endif
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed among functions of this file alone

namespace l2vit::cpu {
namespace L2VIT_ISA {
namespace {

struct Half { uint16_t bits; };
struct BFloat16 { uint16_t bits; };

template <class T> struct AccOf { using type = float; };
template <> struct AccOf<double> { using type = double; };

constexpr int64_t kChunk = 32;  // tokens

constexpr int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- vectors

template <class Acc> struct Simd {
  typedef Acc Vec __attribute__((vector_size(L2VIT_VECTOR_BYTES)));
  static constexpr int64_t width = L2VIT_VECTOR_BYTES / sizeof(Acc);
};
template <class Acc> using Vec = typename Simd<Acc>::Vec;
template <class Acc> constexpr int64_t width = Simd<Acc>::width;

template <class Acc> inline Vec<Acc> load(const Acc* p) {
  Vec<Acc> x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
template <class Acc> inline void store(Acc* p, const Vec<Acc>& x) { std::memcpy(p, &x, sizeof x); }

template <class Acc> constexpr int64_t padded(int64_t n) {
  return (n + width<Acc> - 1) / width<Acc> * width<Acc>;
}

// The sum of a vector's elements: half of them onto the other half, and so on.
template <class Acc, int64_t half = width<Acc> / 2> inline Acc total(Vec<Acc> x) {
  if constexpr (half == 0) {
    return x[0];
  } else {
    Vec<Acc> moved;
#ifdef __clang__
    for (int64_t i = 0; i < width<Acc>; ++i) moved[i] = x[i ^ half];
#else
    typedef decltype(x < x) Index;
    Index index;
    for (int64_t i = 0; i < width<Acc>; ++i) index[i] = i ^ half;
    moved = __builtin_shuffle(x, index);
#endif
    return total<Acc, half / 2>(x + moved);
  }
}

template <class Acc> inline Acc dot(const Acc* a, const Acc* b, int64_t padded_size) {
  Vec<Acc> sum = load(a) * load(b);
  for (int64_t i = width<Acc>; i < padded_size; i += width<Acc>) sum += load(a + i) * load(b + i);
  return total<Acc>(sum);
}

// ---- products of small matrices

// Memory that will be read soon, as columns of cache lines. A product fetches one column with each
// of its tiles, a line with each step: then waiting for memory and computing go side by side. (All
// lines at once would fill the processor's few slots for them, and it would wait.)
struct Prefetch {
  struct Column {
    const char* line;
    int64_t step;
  };
  struct Columns {
    const char* first;
    int64_t step;                  // bytes from line to line of a column
    int64_t heads, head, in_head;  // columns: in_head neighbours, for each of heads, `head` bytes apart
  };
  Columns tensors[2];
  int64_t tensor = 0, column = 0;

  Column take() {
    for (; tensor < 2; ++tensor, column = 0) {
      const Columns& c = tensors[tensor];
      if (column < c.heads * c.in_head) {
        const int64_t h = column / c.in_head, line = column % c.in_head;
        ++column;
        return {c.first + h * c.head + line * 64, c.step};
      }
    }
    return {reinterpret_cast<const char*>(this), 0};  // nothing left: something at hand
  }
};

template <class Acc, int R, int V>
inline void product_tile(int64_t inner, const Acc* a, int64_t a_row, int64_t a_inner, const Acc* b,
                         int64_t b_row, Acc* c, int64_t c_row, bool accumulate,
                         Prefetch& prefetch) {
  Prefetch::Column next = prefetch.take();
  Vec<Acc> sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      sum[r][v] = accumulate ? load(c + r * c_row + v * width<Acc>) : Vec<Acc>{};
  for (int64_t i = 0; i < inner; ++i) {
    __builtin_prefetch(next.line, 0, 2);
    next.line += next.step;
    Vec<Acc> row[V];
    for (int v = 0; v < V; ++v) row[v] = load(b + i * b_row + v * width<Acc>);
    for (int r = 0; r < R; ++r) {
      const Acc x = a[r * a_row + i * a_inner];
      for (int v = 0; v < V; ++v) sum[r][v] += x * row[v];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(c + r * c_row + v * width<Acc>, sum[r][v]);
}

template <class Acc, int V>
inline void product_columns(int64_t rows, int64_t inner, const Acc* a, int64_t a_row,
                            int64_t a_inner, const Acc* b, int64_t b_row, Acc* c, int64_t c_row,
                            bool accumulate, Prefetch& prefetch) {
  constexpr int R = L2VIT_VECTOR_BYTES == 64 ? 8 : 4;  // R * V sums fill half of the registers
  int64_t r = 0;
  for (; r + R <= rows; r += R)
    product_tile<Acc, R, V>(inner, a + r * a_row, a_row, a_inner, b, b_row, c + r * c_row, c_row,
                            accumulate, prefetch);
  for (; r < rows; ++r)
    product_tile<Acc, 1, V>(inner, a + r * a_row, a_row, a_inner, b, b_row, c + r * c_row, c_row,
                            accumulate, prefetch);
}

// c (rows x columns) = or += a (rows x inner) b (inner x columns). Element (r, i) of a is at
// a[r * a_row + i * a_inner], so that a may be the transpose of a matrix.
template <class Acc>
void product(int64_t rows, int64_t columns, int64_t inner, const Acc* a, int64_t a_row,
             int64_t a_inner, const Acc* b, int64_t b_row, Acc* c, int64_t c_row, bool accumulate,
             Prefetch& prefetch) {
  int64_t j = 0;
  for (; j + 2 * width<Acc> <= padded<Acc>(columns); j += 2 * width<Acc>)
    product_columns<Acc, 2>(rows, inner, a, a_row, a_inner, b + j, b_row, c + j, c_row, accumulate,
                            prefetch);
  if (j < columns)
    product_columns<Acc, 1>(rows, inner, a, a_row, a_inner, b + j, b_row, c + j, c_row, accumulate,
                            prefetch);
}

// ---- tensors of other types to and from Acc

inline float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline uint32_t to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline double widen(double x) { return x; }
inline float widen(float x) { return x; }
inline float widen(BFloat16 x) { return from_bits(static_cast<uint32_t>(x.bits) << 16); }
inline float widen(Half x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t exponent = x.bits >> 10 & 31, mantissa = x.bits & 1023;
  if (exponent == 0) return from_bits(sign | to_bits(mantissa * 0x1p-24f));
  const uint32_t wide = exponent == 31 ? 255 : exponent + (127 - 15);
  return from_bits(sign | wide << 23 | mantissa << 13);
}

// To the nearest, ties to even.
inline void narrow(double x, double& y) { y = x; }
inline void narrow(float x, float& y) { y = x; }
inline void narrow(float x, BFloat16& y) {
  const uint32_t bits = to_bits(x);
  y.bits = x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline void narrow(float x, Half& y) {
  const uint32_t bits = to_bits(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  uint32_t half;
  if (x != x)
    half = 0x7e00;
  else if (size < 0x38800000)  // below 2^-14: a multiple of 2^-24, which adding 0.5 rounds to
    half = to_bits(from_bits(size) + 0.5f) - to_bits(0.5f);
  else if (size >= 0x477ff000)  // 65520 and more
    half = 0x7c00;
  else
    half = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
  y.bits = sign | half;
}

// `width` values of a tensor to Acc, and back.
typedef uint16_t Vec16 __attribute__((vector_size(L2VIT_VECTOR_BYTES / 2)));
typedef uint32_t Vec32 __attribute__((vector_size(L2VIT_VECTOR_BYTES)));

inline Vec<double> load_wide(const double* source) { return load(source); }
inline Vec<float> load_wide(const float* source) { return load(source); }
inline Vec<float> load_wide(const BFloat16* source) {
  Vec16 bits;
  std::memcpy(&bits, source, sizeof bits);
  return reinterpret_cast<Vec<float>>(__builtin_convertvector(bits, Vec32) << 16);
}
inline Vec<float> load_wide(const Half* source) {
#if L2VIT_VECTOR_BYTES == 64
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
#elif L2VIT_VECTOR_BYTES == 32
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
#else
  Vec<float> x;
  for (int64_t i = 0; i < width<float>; ++i) x[i] = widen(source[i]);
  return x;
#endif
}

inline Vec<double> narrowed(const Vec<double>& x, const double*) { return x; }
inline Vec<float> narrowed(const Vec<float>& x, const float*) { return x; }
inline Vec16 narrowed(const Vec<float>& x, const BFloat16*) {
  const Vec32 wide = reinterpret_cast<Vec32>(x);
  const Vec32 rounded = (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
  return __builtin_convertvector(x == x ? rounded : Vec32{} + 0x7fc0, Vec16);
}
inline Vec16 narrowed(const Vec<float>& x, const Half*) {
#if L2VIT_VECTOR_BYTES == 64
  return reinterpret_cast<Vec16>(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#elif L2VIT_VECTOR_BYTES == 32
  return reinterpret_cast<Vec16>(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#else
  Vec16 bits;
  for (int64_t i = 0; i < width<float>; ++i) {
    Half half;
    narrow(x[i], half);
    bits[i] = half.bits;
  }
  return bits;
#endif
}

// To memory, past the caches if `stream` (whole cache lines, aligned): an ordinary store of a line
// that isn't in the cache first reads it.
template <bool stream, class V> inline void put(void* target, const V& x) {
#if L2VIT_VECTOR_BYTES == 64
  if constexpr (stream && sizeof(V) == 64)
    return _mm512_stream_si512(static_cast<__m512i*>(target), reinterpret_cast<__m512i>(x));
#endif
#if L2VIT_VECTOR_BYTES >= 32
  if constexpr (stream && sizeof(V) == 32)
    return _mm256_stream_si256(static_cast<__m256i*>(target), reinterpret_cast<__m256i>(x));
#endif
#ifdef __SSE2__
  if constexpr (stream && sizeof(V) == 16)
    return _mm_stream_si128(static_cast<__m128i*>(target), reinterpret_cast<__m128i>(x));
#endif
  std::memcpy(target, &x, sizeof x);
}

// Makes what was streamed visible to the other threads.
inline void finish_stream() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

template <class Acc> inline Vec<Acc> relu_of(Vec<Acc> x) { return x < 0 ? Vec<Acc>{} : x; }

// A run of values to Acc, and back times a factor.
template <bool relu, class T, class Acc>
inline void read(const T* source, int64_t count, Acc* target) {
  int64_t i = 0;
  for (; i + width<Acc> <= count; i += width<Acc>) {
    const Vec<Acc> x = load_wide(source + i);
    store(target + i, relu ? relu_of<Acc>(x) : x);
  }
  for (; i < count; ++i) {
    const Acc x = widen(source[i]);
    target[i] = relu && x < 0 ? 0 : x;
  }
}
template <bool stream, class T, class Acc>
inline void write(const Acc* source, int64_t count, Acc factor, T* target) {
  int64_t i = 0;
  for (; i + width<Acc> <= count; i += width<Acc>)
    put<stream>(target + i, narrowed(load(source + i) * factor, target));
  for (; i < count; ++i) narrow(source[i] * factor, target[i]);
}

// A chunk of tokens of an item: their places in the map.
struct Chunk {
  int64_t count;
  int64_t row[kChunk], column[kChunk];
};

inline void take_chunk(const Item& item, int64_t begin, Chunk& chunk) {
  chunk.count = min(kChunk, item.end - begin);
  const bool map = item.region.rows > 1;
  int64_t row = map ? begin / item.region.columns : 0;
  int64_t column = begin - row * item.region.columns;
  for (int64_t t = 0; t < chunk.count; ++t) {
    chunk.row[t] = row;
    chunk.column[t] = item.region.start + column;
    if (++column == item.region.columns) {
      column = 0;
      ++row;
    }
  }
}

// ---- attention

// The scratch of a thread: for a chunk, two matrices (tokens x heads x D), two (tokens x heads x Dv)
// and two numbers a token and head; for every head of the item, two matrices of the size of the
// state, one of them transposed perhaps, and two rows of D. All is zero when a thread begins, and
// what pads D and Dv stays so, where it counts: no kernel writes there but products, of zeros.
template <class Acc> struct Scratch {
  int64_t d, dv, heads;   // padded D, padded Dv, heads of the item
  int64_t d_row, dv_row;  // from token to token: a line more than the heads, so that the rows of
                          // one head don't compete for places in the cache
  Acc *keys, *keys2, *values, *values2, *states, *states2, *rows, *rows2, *factors, *factors2;

  static int64_t row(int64_t d, int64_t heads) { return heads * d + 64 / int64_t{sizeof(Acc)}; }
  static int64_t size(int64_t d, int64_t dv, int64_t heads) {
    return 2 * (kChunk * (row(d, heads) + row(dv, heads) + heads) + heads * (d * dv + d));
  }

  Scratch(const Attention& a, const Item& item, void* memory)
      : d(padded<Acc>(a.head_dim)), dv(padded<Acc>(a.value_dim)),
        heads(item.head_end - item.head_begin), d_row(row(d, item.most_heads)),
        dv_row(row(dv, item.most_heads)) {
    const int64_t most = item.most_heads;
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

  // For the sums of an item.
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
  using Acc = typename AccOf<T>::type;
  return sizeof(Acc) *
         Scratch<Acc>::size(padded<Acc>(a.head_dim), padded<Acc>(a.value_dim), heads);
}

// Where a token's heads lie.
template <class T>
inline T* token_of(const View& view, const Item& item, const Chunk& chunk, int64_t t) {
  return static_cast<T*>(view.data) + item.image * view.image + item.head_begin * view.head +
         chunk.row[t] * view.row + chunk.column[t] * view.token;
}

// Where the tokens behind a chunk are, if they are as far apart as most are. (In the last columns
// of a map they aren't, and what is fetched there is of no use.)
template <class T>
Prefetch::Columns behind(const View& view, const Item& item, const Chunk& chunk, int64_t size) {
  if (view.channel != 1) return {};
  const T* first = token_of<const T>(view, item, chunk, 0) + kChunk * view.token;
  constexpr int64_t bytes = sizeof(T);
  return {reinterpret_cast<const char*>(first), view.token * bytes,
          item.head_end - item.head_begin, view.head * bytes, (size * bytes + 63) / 64};
}

// The heads of a chunk to a matrix, head h of token t at t * row + h * head_width.
template <bool relu, class T, class Acc>
void read_chunk(const View& view, const Item& item, const Chunk& chunk, int64_t size, Acc* matrix,
                int64_t row, int64_t head_width) {
  int64_t heads = item.head_end - item.head_begin;
  if (view.channel == 1 && view.head == size && head_width == size) {  // heads side by side
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

// The values of a chunk as a matrix, head h of token t at data + t * row + h * head: the tensor's own
// memory where that will do, else a copy.
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

// Head h of a matrix as above to the tensor, each row times its factor if there are any. (Head by
// head, so that the stores of one drain while the next is computed.)
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

// An item without partners has zeros in the place of `target`.
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

// Rows of `columns` to rows of `stride`; what is behind a row stays as it is.
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

// Head h of an item in a tensor like state, and in one like key_sum.
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
  using Acc = typename AccOf<T>::type;
  const Scratch<Acc> s(a, item, memory);
  s.clear(s.states, s.rows);
  Chunk chunk;
  for (int64_t begin = item.begin; begin < item.end; begin += kChunk) {
    take_chunk(item, begin, chunk);
    map_chunk<T>(a, a.k, item, chunk, s);
    const Values<Acc> values = values_of<T>(a, item, chunk, s);
    Prefetch prefetch{{behind<T>(a.k, item, chunk, a.head_dim),
                       behind<T>(a.v, item, chunk, a.value_dim)}};
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

// For every token of a chunk, phi(q) in `keys` and key_sum in `row`: factor / den in `factor`, and
// whether den depends on q.
template <class Acc>
void divide(const Attention& a, const Item& item, int64_t count, const Scratch<Acc>& s,
            const Head<Acc>& head, Acc factor, bool* depends) {
  const Acc least = static_cast<Acc>(a.denom_min);
  const Acc more = static_cast<Acc>(a.eps) * static_cast<Acc>(item.partners);
  for (int64_t t = 0; t < count; ++t)
    head.factor[t] = dot(head.keys + t * s.d_row, head.row, s.d);
  for (int64_t t = 0; t < count; ++t) {
    const Acc sum = head.factor[t];
    depends[t] = a.mean || sum >= least;
    head.factor[t] = factor / (a.mean ? sum + more : sum < least ? least : sum);
  }
}

template <class Acc> Acc scale_of(const Attention& a, const Item& item, int64_t h) {
  const Acc factor = static_cast<Acc>(a.factor);
  return a.scale ? factor * static_cast<const Acc*>(a.scale)[item.head_begin + h] : factor;
}

template <class T> void attend(const Attention& a, const Item& item, void* memory) {
  using Acc = typename AccOf<T>::type;
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
      divide(a, item, chunk.count, s, head, scale_of<Acc>(a, item, h), depends);
      product(chunk.count, a.value_dim, a.head_dim, head.keys, s.d_row, int64_t{1}, head.state,
              s.dv, head.values, s.dv_row, false, prefetch);
      write_head<T>(a.out, item, chunk, h, a.value_dim, head.values, s.dv_row, head.factor);
    }
  }
  finish_stream();
}

// Zero where phi is relu and `mapped`, its result, is 0 or less.
template <class Acc> inline Vec<Acc> where_active(bool relu, Vec<Acc> mapped, Vec<Acc> gradient) {
  return relu ? (mapped <= 0 ? Vec<Acc>{} : gradient) : gradient;
}

template <class T> void query_gradient(const Attention& a, const Item& item, void* memory) {
  using Acc = typename AccOf<T>::type;
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
    Prefetch prefetch{{behind<T>(a.q, item, chunk, a.head_dim),
                       behind<T>(a.dout, item, chunk, a.value_dim)}};
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
      const Acc scale = scale_of<Acc>(a, item, h);
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
  using Acc = typename AccOf<T>::type;
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
    Prefetch prefetch{{behind<T>(a.k, item, chunk, a.head_dim),
                       behind<T>(a.v, item, chunk, a.value_dim)}};
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

// ---- the focused feature map

// While it lives, results below the normal numbers are zero. Where relu gives 0, w is some 1e-7, and
// the square of its third power is such a result: hundreds of cycles each, to be added to 1.
class FlushToZero {
 public:
#ifdef __SSE2__
  FlushToZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON); }
  ~FlushToZero() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  FlushToZero() {}
#endif
};

// w^power, power being a small whole number most often.
template <class Acc> inline Vec<Acc> raise(Vec<Acc> w, double power) {
  if (power == 3) return w * w * w;
  if (power == 2) return w * w;
  if (power == 1) return w;
  Vec<Acc> result;
  for (int64_t i = 0; i < width<Acc>; ++i)
    result[i] = ::pow(static_cast<double>(w[i]), power);
  return result;
}

template <class T> int64_t focused_scratch_size(const FocusedMap& f) {
  using Acc = typename AccOf<T>::type;
  return 5 * padded<Acc>(f.channels) * sizeof(Acc);
}

// One row: w, and its lengths.
template <class Acc> struct FocusedRow {
  Acc largest, norm, power_norm;
};

// Reads a row into `w`, which holds u / max(u) then; `raw` has x + pos if it isn't nullptr.
template <class T, class Acc>
FocusedRow<Acc> focus(const FocusedMap& f, int64_t r, const Acc* inverse, Acc* w, Acc* raw) {
  const T* x = static_cast<const T*>(f.x) + r * f.x_stride;
  const Acc* pos =
      f.pos ? static_cast<const Acc*>(f.pos) + r % f.pos_rows * f.channels : nullptr;
  const Acc small = static_cast<Acc>(1e-6);
  Vec<Acc> most{};
  int64_t i = 0;
  for (; i + width<Acc> <= f.channels; i += width<Acc>) {
    Vec<Acc> sum = load_wide(x + i);
    if (pos) sum += load(pos + i);
    if (raw) store(raw + i, sum);
    const Vec<Acc> u = (relu_of<Acc>(sum) + small) * load(inverse + i);
    store(w + i, u);
    most = u > most ? u : most;
  }
  FocusedRow<Acc> row{};
  for (; i < f.channels; ++i) {
    const Acc sum = pos ? widen(x[i]) + pos[i] : widen(x[i]);
    if (raw) raw[i] = sum;
    w[i] = ((sum < 0 ? 0 : sum) + small) * inverse[i];
    row.largest = w[i] > row.largest ? w[i] : row.largest;
  }
  for (i = 0; i < width<Acc>; ++i) row.largest = most[i] > row.largest ? most[i] : row.largest;
  if (!(row.largest > 0)) row.largest = 1;  // all NaN: what pads the row must not become so
  Vec<Acc> squares{}, power_squares{};
  for (i = 0; i < f.channels; i += width<Acc>) {  // what pads a row is zero
    const Vec<Acc> u = load(w + i) / row.largest, powered = raise<Acc>(u, f.power);
    store(w + i, u);
    squares += u * u;
    power_squares += powered * powered;
  }
  row.norm = __builtin_sqrt(total<Acc>(squares));
  row.power_norm = __builtin_sqrt(total<Acc>(power_squares));
  return row;
}

template <class T>
void focused_map(const FocusedMap& f, int64_t begin, int64_t end, const void* inverse,
                 void* memory) {
  using Acc = typename AccOf<T>::type;
  const FlushToZero flush;
  Acc* w = static_cast<Acc*>(memory);
  std::memset(w, 0, focused_scratch_size<T>(f));
  for (int64_t r = begin; r < end; ++r) {
    const auto row = focus<T, Acc>(f, r, static_cast<const Acc*>(inverse), w, nullptr);
    for (int64_t i = 0; i < f.channels; i += width<Acc>)
      store(w + i, raise<Acc>(load(w + i), f.power));
    write<false>(w, f.channels, row.largest * (row.norm / row.power_norm),
                 static_cast<T*>(f.out) + r * f.channels);
  }
}

template <class T>
void focused_map_gradient(const FocusedMap& f, int64_t begin, int64_t end, const void* inverses,
                          void* partial, void* memory) {
  using Acc = typename AccOf<T>::type;
  const FlushToZero flush;
  const int64_t size = padded<Acc>(f.channels);
  Acc *w = static_cast<Acc*>(memory), *raw = w + size, *gradient = raw + size,
      *sums = gradient + size, *inverse = sums + size;
  std::memset(w, 0, focused_scratch_size<T>(f));
  std::memcpy(inverse, inverses, f.channels * sizeof(Acc));
  for (int64_t r = begin; r < end; ++r) {
    const auto row = focus<T, Acc>(f, r, inverse, w, raw);
    read<false>(static_cast<const T*>(f.dout) + r * f.channels, f.channels, gradient);
    Vec<Acc> products{};
    for (int64_t i = 0; i < f.channels; i += width<Acc>)
      products += load(gradient + i) * raise<Acc>(load(w + i), f.power);
    const Acc along = total<Acc>(products);
    const Acc ratio = static_cast<Acc>(f.power) * (row.norm / row.power_norm);
    const Acc shrink = along / (row.power_norm * row.power_norm);
    const Acc length = along / (row.norm * row.power_norm);
    for (int64_t i = 0; i < f.channels; i += width<Acc>) {
      const Vec<Acc> u = load(w + i), lower = raise<Acc>(u, f.power - 1);
      const Vec<Acc> du =
          ratio * lower * (load(gradient + i) - shrink * (lower * u)) + length * u;
      store(sums + i, load(sums + i) - du * u * row.largest);
      store(gradient + i, where_active<Acc>(true, load(raw + i), du) * load(inverse + i));
    }
    write<false>(gradient, f.channels, Acc{1}, static_cast<T*>(f.dx) + r * f.channels);
  }
  std::memcpy(partial, sums, f.channels * sizeof(Acc));
}

// ---- by the type of the tensors

#define L2VIT_FOR_DTYPE(dtype, function, ...)                   \
  switch (dtype) {                                              \
    case Dtype::Float64: return function<double>(__VA_ARGS__);  \
    case Dtype::Float32: return function<float>(__VA_ARGS__);   \
    case Dtype::Float16: return function<Half>(__VA_ARGS__);    \
    default: return function<BFloat16>(__VA_ARGS__);            \
  }

int64_t scratch_size(const Attention& a, int64_t heads) {
  L2VIT_FOR_DTYPE(a.dtype, scratch_size, a, heads)
}
void sum_keys(const Attention& a, const Item& item, void* scratch) {
  L2VIT_FOR_DTYPE(a.dtype, sum_keys, a, item, scratch)
}
void attend(const Attention& a, const Item& item, void* scratch) {
  L2VIT_FOR_DTYPE(a.dtype, attend, a, item, scratch)
}
void query_gradient(const Attention& a, const Item& item, void* scratch) {
  L2VIT_FOR_DTYPE(a.dtype, query_gradient, a, item, scratch)
}
void key_gradient(const Attention& a, const Item& item, void* scratch) {
  L2VIT_FOR_DTYPE(a.dtype, key_gradient, a, item, scratch)
}
int64_t focused_scratch_size(const FocusedMap& f) {
  L2VIT_FOR_DTYPE(f.dtype, focused_scratch_size, f)
}
void focused_map(const FocusedMap& f, int64_t begin, int64_t end, const void* inverse,
                 void* scratch) {
  L2VIT_FOR_DTYPE(f.dtype, focused_map, f, begin, end, inverse, scratch)
}
void focused_map_gradient(const FocusedMap& f, int64_t begin, int64_t end, const void* inverse,
                          void* partial, void* scratch) {
  L2VIT_FOR_DTYPE(f.dtype, focused_map_gradient, f, begin, end, inverse, partial, scratch)
}

}  // namespace

#define L2VIT_STRING(x) #x
#define L2VIT_NAME(x) L2VIT_STRING(x)
extern const Kernels kernels = {
    L2VIT_NAME(L2VIT_ISA), scratch_size, sum_keys,    attend,
    query_gradient,        key_gradient, focused_scratch_size, focused_map, focused_map_gradient};

}  // namespace L2VIT_ISA
}  // namespace l2vit::cpu

#ifdef L2VIT_TARGET
#pragma GCC pop_options
#endif
