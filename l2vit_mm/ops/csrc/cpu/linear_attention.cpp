// Linear attention on the CPU: plans the work of a call and adds up the partial sums.
#include "backend.h"
#include "kernels.h"
#include "parallel.h"

namespace l2vit::cpu {
namespace {

// Fewest tokens of a part: parts are large compared to the state that each one sums.
constexpr int64_t kTokens = 1024;
// Heads are processed together up to this many channels, to read long contiguous runs of memory.
constexpr int64_t kChannels = 128;
// In bytes: tensors from this size on are written past the caches.
constexpr int64_t kLarge = 1 << 20;

struct Plan {
  std::vector<Item> items;
  std::vector<int64_t> first_part;  // of each image; then the number of parts
  int64_t heads;                    // of an item, at most
};

Plan make_plan(const Attention& a, const Layout& layout, const Layout& partners) {
  Plan plan;
  plan.heads = std::clamp<int64_t>(kChannels / std::max(a.head_dim, a.value_dim), 1, a.heads);
  const bool stream = layout.images * layout.height * layout.width * a.heads *
                          std::max(a.head_dim, a.value_dim) * element_size(a.dtype) >=
                      kLarge;
  plan.first_part.push_back(0);
  for (int64_t image = 0; image < layout.images; ++image) {
    const Region region = layout.region(image);
    const int64_t count = region.count(), other = partners.region(image).count();
    const int64_t parts = std::min(kMaxParts, (count + kTokens - 1) / kTokens);
    for (int64_t part = 0; part < parts; ++part)
      for (int64_t head = 0; head < a.heads; head += plan.heads)
        plan.items.push_back({image, region, count * part / parts, count * (part + 1) / parts, head,
                              std::min(head + plan.heads, a.heads), plan.heads, other, stream,
                              nullptr});
    plan.first_part.push_back(plan.first_part.back() + parts);
  }
  return plan;
}

void run_items(const Attention& a, const Plan& plan,
               void (*kernel)(const Attention&, const Item&, void*)) {
  run(plan.items.size(), kernels(a.dtype).scratch_size(a, plan.heads),
      [&](int64_t task, void* scratch) { kernel(a, plan.items[task], scratch); });
}

// Allocates the sums of every part of the plan.
Buffer make_partials(const Attention& a, Plan& plan) {
  const int64_t size = a.heads * partial_size(a) * acc_size(a.dtype);
  const int64_t groups = (a.heads + plan.heads - 1) / plan.heads;
  Buffer buffer(size * plan.first_part.back());
  for (size_t i = 0; i < plan.items.size(); ++i)
    plan.items[i].partial = buffer.data() + size * (i / groups);
  return buffer;
}

// Adds up the parts of each image and head: state-like and key_sum-like sums, times c if
// `times_scale`, and the scale-like sums of all images, times factor.
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
    const Acc scale = scale_of<Acc>(a, head);
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
  with_acc(a.dtype, [&](auto type) {
    using Acc = typename decltype(type)::type;
    add_partials(a, plan, reinterpret_cast<const Acc*>(partials.data()), states, key_sums,
                 times_scale, dscale);
  });
}

// Zeros the tokens that are in no image. Heads and channels of a token are contiguous.
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

void forward(const Attention& a) {
  Plan keys = make_plan(a, a.keys, a.queries);
  const Buffer partials = make_partials(a, keys);
  run_items(a, keys, kernels(a.dtype).sum_keys);
  add_partials(a, keys, partials, a.state, a.key_sum, false, nullptr);
  run_items(a, make_plan(a, a.queries, a.keys), kernels(a.dtype).attend);
  clear_outside(a, a.out, a.queries, a.value_dim);
}

void backward(const Attention& a) {
  Plan queries = make_plan(a, a.queries, a.keys);
  const Buffer partials = make_partials(a, queries);
  run_items(a, queries, kernels(a.dtype).query_gradient);
  add_partials(a, queries, partials, a.dstate, a.dkey_sum, true, a.dscale);
  run_items(a, make_plan(a, a.keys, a.queries), kernels(a.dtype).key_gradient);
  clear_outside(a, a.dq, a.queries, a.head_dim);
  clear_outside(a, a.dk, a.keys, a.head_dim);
  clear_outside(a, a.dv, a.keys, a.value_dim);
}

}  // namespace l2vit::cpu
