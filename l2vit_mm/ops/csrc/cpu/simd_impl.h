// Vectors, products of small matrices, and conversions: see kernels_impl.h.
#pragma once

namespace l2vit::cpu {
namespace L2VIT_ISA {
namespace {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

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

// The sum of the elements of a vector, by adding one half to the other until one is left.
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

// Memory that will be read soon, as columns of cache lines. A product prefetches one column during
// each of its tiles, one line per step, so that memory latency overlaps with computation.
// (Prefetching all lines at once would fill the processor's few line buffers and stall it.)
struct Prefetch {
  struct Column {
    const char* line;
    int64_t step;
  };
  struct Columns {
    const char* first;
    int64_t step;  // bytes from line to line of a column
    int64_t heads, head,
        in_head;  // columns: in_head adjacent ones for each of heads, `head` bytes apart
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
    return {reinterpret_cast<const char*>(this), 0};  // nothing left: any valid address
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
  constexpr int R =
      L2VIT_VECTOR_BYTES == 64 ? 8 : 4;  // R * V accumulators take half of the registers
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

// ---- conversion of tensor elements to and from Acc

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

// Round to nearest, ties to even.
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
  else if (size < 0x38800000)  // below 2^-14: a multiple of 2^-24; adding 0.5 rounds to it
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

// Stores to memory, with `stream` bypassing the caches (whole aligned cache lines): an ordinary
// store to a line that is not cached reads the line first.
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

// Makes streamed stores visible to other threads.
inline void finish_stream() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

template <class Acc> inline Vec<Acc> relu_of(Vec<Acc> x) { return x < 0 ? Vec<Acc>{} : x; }

// Converts contiguous values to Acc, and back with a factor.
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

// A chunk of tokens of an item: their positions in the map.
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

}  // namespace
}  // namespace L2VIT_ISA
}  // namespace l2vit::cpu
