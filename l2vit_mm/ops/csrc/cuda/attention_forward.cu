#include "attention.cuh"
#include "launch.h"

namespace l2vit::cuda {

int64_t attention_workspace(const Attention& a, bool backward) {
  // The division among slots doesn't depend on the tile.
  const Division division = divide_for_sums(a, backward ? a.queries : a.keys, 1);
  return division.slots() * a.heads * partial_size(a) * acc_size(a.dtype);
}

const char* attention_forward(const Attention& a, void* stream) {
  Launcher launch(stream);
  with_tile(a, [&](auto type, auto width) {
    using T = typename decltype(type)::type;
    constexpr int P = decltype(width)::value;
    using Tl = Tile<T, P>;
    const Division keys = divide_for_sums(a, a.keys, Tl::tokens);
    launch(sum_states<T, P, false>, keys.slots() * a.heads, ceil_div(a.value_dim, Tl::columns),
           Tl::threads, sizeof(StatesMemory<Tl>), a, keys);
    launch(add_parts<typename Tl::Acc, false>, blocks_of_sums(a), 1, 32 * kSumRows,
           sizeof(SumMemory<typename Tl::Acc, kSumRows>), a, keys);
    const Division queries = divide_for_outputs(a.queries, Tl::tokens);
    launch(attend<T, P>, queries.slots() * a.heads, 1, Tl::threads, sizeof(OutputMemory<Tl>), a,
           queries);
  });
  launch_clear_outside(launch, a, a.out, a.queries, a.value_dim);
  return launch.error();
}

}  // namespace l2vit::cuda
