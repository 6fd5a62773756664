#include "attention.cuh"
#include "launch.h"

namespace l2vit::cuda {

const char* attention_backward(const Attention& a, void* stream) {
  Launcher launch(stream);
  with_tile(a, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    constexpr int P = decltype(width)::value;
    using Tl = Tile<T, P>;
    using Acc = typename Tl::Acc;
    const Division queries = divide_for_sums(a, a.queries, Tl::tokens);
    launch(query_gradient<T, P>, queries.slots() * a.heads, 1, Tl::threads,
           sizeof(GradientMemory<Tl>), a, queries);
    if constexpr (!Tl::at_once)  // Sums for all values don't fit beside the gradient.
      launch(sum_states<T, P, true>, queries.slots() * a.heads,
             ceil_div(a.value_dim, Tl::columns), Tl::threads, sizeof(StatesMemory<Tl>), a,
             queries);
    launch(add_parts<Acc, true>, blocks_of_sums(a), 1, 32 * kSumRows,
           sizeof(SumMemory<Acc, kSumRows>), a, queries);
    if (a.dscale)
      launch(add_scale_parts<Acc>, a.heads, 1, kScaleThreads, kScaleThreads / 32 * sizeof(Acc), a,
             queries, queries.slots());
    const Division keys = divide_for_outputs(a.keys, Tl::tokens);
    launch(key_gradient<T, P>, keys.slots() * a.heads, 1, Tl::threads, sizeof(KeyMemory<Tl>), a,
           keys);
  });
  launch_clear_outside(launch, a, a.dq, a.queries, a.head_dim);
  launch_clear_outside(launch, a, a.dk, a.keys, a.head_dim);
  launch_clear_outside(launch, a, a.dv, a.keys, a.value_dim);
  return launch.error();
}

}  // namespace l2vit::cuda
