// Linear attention: the outputs and the forward pass.
#include "attention_sums.cuh"
#include "backend.h"

namespace l2vit::cuda {
namespace {

template <class Tl> struct OutputMemory {
  alignas(16) typename Tl::Rows rows;
  alignas(16) typename Tl::State state;
  alignas(16) typename Tl::Acc z[Tl::width];
  typename Tl::Acc inverse[Tl::tokens];
};

// The outputs of a part of the queries.
template <class T, int P>
__global__ void __launch_bounds__((Tile<T, P>::threads), (Tile<T, P>::blocks))
    attend(const Attention a, const Division division) {
  using Tl = Tile<T, P>;
  using Acc = typename Tl::Acc;
  auto& memory = shared_memory<OutputMemory<Tl>>();
  const int64_t head = blockIdx.x % a.heads;
  const Part part(division, blockIdx.x / a.heads);
  if (part.empty()) return;
  const Tokens<T> out(a.out, part.region, part.image, head, a.value_dim);
  const int64_t keys = a.keys.region(part.image).count();
  if (keys == 0) {
    out.clear(part.begin, part.end);
    return;
  }
  const Tokens<T> q(a.q, part.region, part.image, head, a.head_dim);
  load_key_sum<Tl>(a, a.key_sum, part.image, head, memory.z);
  const Normalizer<Acc> normalizer(a, keys);
  const Acc scale = scale_of<Acc>(a, head);

  const Share<Tl, Tl::columns> share;
  for (int64_t begin = part.begin; begin < part.end; begin += Tl::tokens)
    for (int first = 0; first < (Tl::at_once ? 1 : a.value_dim); first += Tl::columns) {
      if (first == 0) load_tile<Tl>(q, begin, part.end, 0, memory.rows, a.relu);
      if (begin == part.begin || !Tl::at_once)
        load_state<Tl>(a, a.state, part.image, head, first, memory.state);
      __syncthreads();
      if (first == 0)
        multiply_key_sum<Tl>(memory.rows, memory.z, [&](int t, Acc s) {
          memory.inverse[t] = scale / normalizer.divisor(s);
        });
      typename Share<Tl, Tl::columns>::Sums sums = {};
      multiply<Tl>(memory.rows, memory.state, static_cast<int>(a.head_dim), share, sums);
      __syncthreads();
      if (share.first >= Tl::tokens) continue;
#pragma unroll
      for (int i = 0; i < share.count; ++i) {
        const int t = share.token(i);
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] *= memory.inverse[t];
        if (begin + t < part.end) out.store4(begin + t, first + 4 * share.group, sums[i]);
      }
    }
}

}  // namespace

int64_t workspace_size(const Attention& a, bool backward) {
  // The number of slots does not depend on the tile.
  const Division division = divide_for_sums(a, backward ? a.queries : a.keys, 1);
  return division.slots() * a.heads * partial_size(a) * acc_size(a.dtype);
}

const char* forward(const Attention& a, void* stream) {
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
