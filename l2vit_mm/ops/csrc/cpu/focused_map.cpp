// The focused feature map on the CPU.
#include <cmath>

#include "backend.h"
#include "kernels.h"
#include "parallel.h"

namespace l2vit::cpu {
namespace {

constexpr int64_t kRows = 256;  // of a part, at least

// 1 / softplus(s), and sigmoid(s) / softplus(s).
template <class Acc>
void softplus_of(const FocusedMap& f, std::vector<Acc>& inverse, std::vector<Acc>& slope) {
  for (int64_t i = 0; i < f.channels; ++i) {
    const double s = static_cast<const Acc*>(f.s)[i];
    const double softplus = s > 0 ? s + std::log1p(std::exp(-s)) : std::log1p(std::exp(s));
    inverse.push_back(static_cast<Acc>(1 / softplus));
    slope.push_back(static_cast<Acc>(1 / (1 + std::exp(-s)) / softplus));
  }
}

template <class Acc> void run_map(const FocusedMap& f, bool backward) {
  std::vector<Acc> inverse, slope;
  softplus_of(f, inverse, slope);
  const int64_t length = std::max(kRows, (f.rows + kMaxParts - 1) / kMaxParts);
  const int64_t parts = (f.rows + length - 1) / length;
  const Buffer partials(backward ? parts * f.channels * sizeof(Acc) : 0);
  Acc* sums = reinterpret_cast<Acc*>(partials.data());
  run(parts, kernels(f.dtype).focused_scratch_size(f), [&](int64_t part, void* scratch) {
    const int64_t begin = part * length, end = std::min(begin + length, f.rows);
    if (backward)
      kernels(f.dtype).focused_map_gradient(f, begin, end, inverse.data(), sums + part * f.channels,
                                            scratch);
    else
      kernels(f.dtype).focused_map(f, begin, end, inverse.data(), scratch);
  });
  if (!backward) return;
  Acc* ds = static_cast<Acc*>(f.ds);
  std::fill_n(ds, f.channels, Acc{0});
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t i = 0; i < f.channels; ++i) ds[i] += sums[part * f.channels + i];
  for (int64_t i = 0; i < f.channels; ++i) ds[i] *= slope[i];
}

void run_map(const FocusedMap& f, bool backward) {
  with_acc(f.dtype, [&](auto type) { run_map<typename decltype(type)::type>(f, backward); });
}

}  // namespace

void forward(const FocusedMap& f) { run_map(f, false); }
void backward(const FocusedMap& f) { run_map(f, true); }

}  // namespace l2vit::cpu
