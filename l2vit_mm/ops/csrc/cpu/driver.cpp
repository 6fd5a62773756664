// Divides the work of a call among threads, and adds up what they found.
//
// How an image is divided depends on its own size alone, and sums are added in a fixed order: its
// results are the same bits whatever else is in the batch, and for any number of threads.
#include "driver.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels.h"

namespace l2vit::cpu {
namespace {

// Least and most parts of an image: parts are large against the state that each one sums, and few
// enough that the sums stay small against the tensors.
constexpr int64_t kTokens = 1024;
constexpr int64_t kParts = 32;
// Heads are taken together up to so many channels, for reads of whole runs of memory.
constexpr int64_t kChannels = 128;
constexpr int64_t kRows = 256;  // of a focused feature map
constexpr int64_t kLarge = 1 << 20;  // bytes: tensors from there on are written past the caches

const Kernels& choose() {
  std::vector<const Kernels*> supported = {&plain::kernels};
#ifdef L2VIT_X86_KERNELS
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    supported.push_back(&avx2::kernels);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
      supported.push_back(&avx512::kernels);
  }
#endif
  const char* wanted = std::getenv("L2VIT_MM_CPU");
  if (!wanted || !*wanted) return *supported.back();
  std::string names;
  for (const Kernels* kernels : supported) {
    if (!std::strcmp(kernels->name, wanted)) return *kernels;
    names += names.empty() ? kernels->name : std::string(", ") + kernels->name;
  }
  TORCH_CHECK_VALUE(false, "L2VIT_MM_CPU is '", wanted, "'; accepted here are ", names);
}

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

class Buffer {
 public:
  explicit Buffer(int64_t bytes) : memory_(c10::GetCPUAllocator()->allocate(bytes)) {}
  char* data() const { return static_cast<char*>(memory_.get()); }

 private:
  c10::DataPtr memory_;
};

int64_t element_size(Dtype dtype) {
  return dtype == Dtype::Float64 ? 8 : dtype == Dtype::Float32 ? 4 : 2;
}
int64_t acc_size(Dtype dtype) { return dtype == Dtype::Float64 ? sizeof(double) : sizeof(float); }

// Calls work(task, scratch) for every task. Each thread begins with a range of its own, so that the
// threads are far apart in memory (new pages are made a thread at a time); one that is through
// takes what is left of the others' ranges.
template <class Work> void run(int64_t tasks, int64_t scratch_size, const Work& work) {
  const int64_t threads = std::min<int64_t>(tasks, at::get_num_threads());
  std::vector<std::atomic<int64_t>> next(threads);
  for (int64_t thread = 0; thread < threads; ++thread) next[thread] = thread * tasks / threads;
  at::parallel_for(0, threads, 1, [&](int64_t thread, int64_t) {
    const Buffer scratch(scratch_size);
    std::memset(scratch.data(), 0, scratch_size);
    for (int64_t i = 0; i < threads; ++i) {
      const int64_t range = (thread + i) % threads, end = (range + 1) * tasks / threads;
      for (int64_t task; (task = next[range]++) < end;) work(task, scratch.data());
    }
  });
}

struct Plan {
  std::vector<Item> items;
  std::vector<int64_t> first_part;  // of each image, and the number of parts
  int64_t heads;                    // of an item at most
};

Plan make_plan(const Attention& a, const Layout& layout, const Layout& partners) {
  Plan plan;
  plan.heads = std::clamp<int64_t>(kChannels / std::max(a.head_dim, a.value_dim), 1, a.heads);
  const bool stream = layout.images * layout.height * layout.width * a.heads *
                          std::max(a.head_dim, a.value_dim) * element_size(a.dtype) >= kLarge;
  plan.first_part.push_back(0);
  for (int64_t image = 0; image < layout.images; ++image) {
    const Region region = layout.region(image);
    const int64_t count = region.count(), other = partners.region(image).count();
    const int64_t parts = std::min(kParts, (count + kTokens - 1) / kTokens);
    for (int64_t part = 0; part < parts; ++part)
      for (int64_t head = 0; head < a.heads; head += plan.heads)
        plan.items.push_back({image, region, count * part / parts, count * (part + 1) / parts,
                              head, std::min(head + plan.heads, a.heads), plan.heads, other, stream,
                              nullptr});
    plan.first_part.push_back(plan.first_part.back() + parts);
  }
  return plan;
}

void run_items(const Attention& a, const Plan& plan,
               void (*kernel)(const Attention&, const Item&, void*)) {
  run(plan.items.size(), kernels().scratch_size(a, plan.heads),
      [&](int64_t task, void* scratch) { kernel(a, plan.items[task], scratch); });
}

// Gives every part of the plan a place for its sums.
Buffer make_partials(const Attention& a, Plan& plan) {
  const int64_t size = a.heads * partial_size(a) * acc_size(a.dtype);
  const int64_t groups = (a.heads + plan.heads - 1) / plan.heads;
  Buffer buffer(size * plan.first_part.back());
  for (size_t i = 0; i < plan.items.size(); ++i)
    plan.items[i].partial = buffer.data() + size * (i / groups);
  return buffer;
}

// Sums of the parts of each image, a head at a time: state-like and key_sum-like ones, and the
// scale-like ones of all images, each times factor * scale.
template <class Acc>
void add_partials(const Attention& a, const Plan& plan, const Acc* partials, void* states,
                  void* key_sums, bool times_scale, void* dscale) {
  const int64_t size = partial_size(a), state_size = a.head_dim * a.value_dim;
  const int64_t images = plan.first_part.size() - 1;
  run(images * a.heads, 0, [&](int64_t task, void*) {
    const int64_t image = task / a.heads, head = task % a.heads;
    Acc* state = static_cast<Acc*>(states) + task * state_size;
    Acc* key_sum = static_cast<Acc*>(key_sums) + task * a.head_dim;
    std::fill_n(state, state_size, Acc{0});
    std::fill_n(key_sum, a.head_dim, Acc{0});
    for (int64_t part = plan.first_part[image]; part < plan.first_part[image + 1]; ++part) {
      const Acc* sums = partials + (part * a.heads + head) * size;
      for (int64_t i = 0; i < state_size; ++i) state[i] += sums[i];
      for (int64_t i = 0; i < a.head_dim; ++i) key_sum[i] += sums[state_size + i];
    }
    if (!times_scale) return;
    const Acc scale = static_cast<Acc>(a.factor) *
                      (a.scale ? static_cast<const Acc*>(a.scale)[head] : Acc{1});
    for (int64_t i = 0; i < state_size; ++i) state[i] *= scale;
    for (int64_t i = 0; i < a.head_dim; ++i) key_sum[i] *= scale;
  });
  if (!dscale) return;
  for (int64_t head = 0; head < a.heads; ++head) {
    Acc sum = 0;
    for (int64_t part = 0; part < plan.first_part.back(); ++part)
      sum += partials[(part * a.heads + head) * size + size - 1];
    static_cast<Acc*>(dscale)[head] = static_cast<Acc>(a.factor) * sum;
  }
}

void add_partials(const Attention& a, const Plan& plan, const Buffer& partials, void* states,
                  void* key_sums, bool times_scale, void* dscale) {
  if (a.dtype == Dtype::Float64)
    add_partials(a, plan, reinterpret_cast<const double*>(partials.data()), states, key_sums,
                 times_scale, dscale);
  else
    add_partials(a, plan, reinterpret_cast<const float*>(partials.data()), states, key_sums,
                 times_scale, dscale);
}

// Zeros for the tokens that are in no image. Heads and channels of a token lie side by side.
void clear_outside(const Attention& a, const View& view, const Layout& layout, int64_t size) {
  const int64_t element = element_size(a.dtype), token = a.heads * size;
  const auto clear = [&](int64_t image, int64_t row, int64_t begin, int64_t end) {
    char* data = static_cast<char*>(view.data) +
                 element * (image * view.image + row * view.row + begin * view.token);
    if (view.token == token && begin < end)
      std::memset(data, 0, element * token * (end - begin));
    else
      for (; begin < end; ++begin, data += element * view.token)
        std::memset(data, 0, element * token);
  };
  if (layout.cu_seqlens) {
    const Region last = layout.images ? layout.region(layout.images - 1) : Region{0, 1, 0};
    const int64_t end = last.start + last.columns;
    run((layout.width - end + kTokens - 1) / kTokens, 0, [&](int64_t part, void*) {
      const int64_t begin = end + part * kTokens;
      clear(0, 0, begin, std::min(begin + kTokens, layout.width));
    });
  } else if (layout.valid_hw) {
    run(layout.images * layout.height, 0, [&](int64_t task, void*) {
      const int64_t image = task / layout.height, row = task % layout.height;
      const Region region = layout.region(image);
      clear(image, row, row < region.rows ? region.columns : 0, layout.width);
    });
  }
}

}  // namespace

const char* kernels_name() { return kernels().name; }

void attention_forward(const Attention& a) {
  Plan keys = make_plan(a, a.keys, a.queries);
  const Buffer partials = make_partials(a, keys);
  run_items(a, keys, kernels().sum_keys);
  add_partials(a, keys, partials, a.state, a.key_sum, false, nullptr);
  run_items(a, make_plan(a, a.queries, a.keys), kernels().attend);
  clear_outside(a, a.out, a.queries, a.value_dim);
}

void attention_backward(const Attention& a) {
  Plan queries = make_plan(a, a.queries, a.keys);
  const Buffer partials = make_partials(a, queries);
  run_items(a, queries, kernels().query_gradient);
  add_partials(a, queries, partials, a.dstate, a.dkey_sum, true, a.dscale);
  run_items(a, make_plan(a, a.keys, a.queries), kernels().key_gradient);
  clear_outside(a, a.dq, a.queries, a.head_dim);
  clear_outside(a, a.dk, a.keys, a.head_dim);
  clear_outside(a, a.dv, a.keys, a.value_dim);
}

namespace {

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

template <class Acc> void focused_map(const FocusedMap& f, bool backward) {
  std::vector<Acc> inverse, slope;
  softplus_of(f, inverse, slope);
  const int64_t length = std::max(kRows, (f.rows + kParts - 1) / kParts);
  const int64_t parts = (f.rows + length - 1) / length;
  const Buffer partials(backward ? parts * f.channels * sizeof(Acc) : 0);
  Acc* sums = reinterpret_cast<Acc*>(partials.data());
  run(parts, kernels().focused_scratch_size(f), [&](int64_t part, void* scratch) {
    const int64_t begin = part * length, end = std::min(begin + length, f.rows);
    if (backward)
      kernels().focused_map_gradient(f, begin, end, inverse.data(), sums + part * f.channels,
                                     scratch);
    else
      kernels().focused_map(f, begin, end, inverse.data(), scratch);
  });
  if (!backward) return;
  Acc* ds = static_cast<Acc*>(f.ds);
  std::fill_n(ds, f.channels, Acc{0});
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t i = 0; i < f.channels; ++i) ds[i] += sums[part * f.channels + i];
  for (int64_t i = 0; i < f.channels; ++i) ds[i] *= slope[i];
}

}  // namespace

void focused_map_forward(const FocusedMap& f) {
  f.dtype == Dtype::Float64 ? focused_map<double>(f, false) : focused_map<float>(f, false);
}

void focused_map_backward(const FocusedMap& f) {
  f.dtype == Dtype::Float64 ? focused_map<double>(f, true) : focused_map<float>(f, true);
}

}  // namespace l2vit::cpu
