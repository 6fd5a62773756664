// The kernels of the focused feature map: see kernels_impl.h.
#pragma once

#include "simd_impl.h"

namespace l2vit::cpu {
namespace L2VIT_ISA {
namespace {

// Flushes subnormal results to zero during its lifetime. Where relu gives 0, w is about 1e-7, and
// the square of its third power is subnormal: it costs hundreds of cycles and is added to about 1.
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

// w^power, fast for the small integers that power usually is.
template <class Acc> inline Vec<Acc> raise(Vec<Acc> w, double power) {
  if (power == 3) return w * w * w;
  if (power == 2) return w * w;
  if (power == 1) return w;
  Vec<Acc> result;
  for (int64_t i = 0; i < width<Acc>; ++i) result[i] = ::pow(static_cast<double>(w[i]), power);
  return result;
}

template <class T> int64_t focused_scratch_size(const FocusedMap& f) {
  using Acc = AccType<T>;
  return 5 * padded<Acc>(f.channels) * sizeof(Acc);
}

// The maximum and the norms of a row.
template <class Acc> struct FocusedRow {
  Acc largest, norm, power_norm;
};

// Reads a row and writes u / max(u) to `w` and x + pos to `raw`, if that is not nullptr.
template <class T, class Acc>
FocusedRow<Acc> focus(const FocusedMap& f, int64_t r, const Acc* inverse, Acc* w, Acc* raw) {
  const T* x = static_cast<const T*>(f.x) + r * f.x_stride;
  const Acc* pos = f.pos ? static_cast<const Acc*>(f.pos) + r % f.pos_rows * f.channels : nullptr;
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
  if (!(row.largest > 0)) row.largest = 1;  // all NaN: the padding must not become NaN
  Vec<Acc> squares{}, power_squares{};
  for (i = 0; i < f.channels; i += width<Acc>) {  // the padding of a row is zero
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
  using Acc = AccType<T>;
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
  using Acc = AccType<T>;
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
      const Vec<Acc> du = ratio * lower * (load(gradient + i) - shrink * (lower * u)) + length * u;
      store(sums + i, load(sums + i) - du * u * row.largest);
      store(gradient + i, where_active<Acc>(true, load(raw + i), du) * load(inverse + i));
    }
    write<false>(gradient, f.channels, Acc{1}, static_cast<T*>(f.dx) + r * f.channels);
  }
  std::memcpy(partial, sums, f.channels * sizeof(Acc));
}

}  // namespace
}  // namespace L2VIT_ISA
}  // namespace l2vit::cpu
