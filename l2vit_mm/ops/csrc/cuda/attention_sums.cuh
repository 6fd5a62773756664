// Linear attention: the kernels that sum over tokens, in both passes.
#pragma once
#include "attention_tiles.cuh"

namespace l2vit::cuda {

// In all kernels of tiles, a block has the head blockIdx.x % heads of the slot blockIdx.x / heads.

template <class Tl> struct StatesMemory {
  alignas(16) typename Tl::Rows rows;
  alignas(16) typename Tl::Values values;
  alignas(16) typename Tl::Acc z[Tl::width];
  typename Tl::Acc inverse[Tl::tokens];
};

// Partial sums over the tokens of a part, for the value columns of blockIdx.y: b v^T and b of the
// keys, or a h^T of the queries.
template <class T, int P, bool queries>
__global__ void __launch_bounds__((Tile<T, P>::threads), (Tile<T, P>::blocks))
    sum_states(const Attention a, const Division division) {
  using Tl = Tile<T, P>;
  using Acc = typename Tl::Acc;
  auto& memory = shared_memory<StatesMemory<Tl>>();
  const int64_t head = blockIdx.x % a.heads, slot = blockIdx.x / a.heads;
  const int first = blockIdx.y * Tl::columns;
  const Part part(division, slot);
  const int64_t keys = a.keys.region(part.image).count();
  if (part.empty() || keys == 0) return;
  const Tokens<T> rows(queries ? a.q : a.k, part.region, part.image, head, a.head_dim);
  const Tokens<T> values(queries ? a.dout : a.v, part.region, part.image, head, a.value_dim);
  if (queries) load_key_sum<Tl>(a, a.key_sum, part.image, head, memory.z);
  const Normalizer<Acc> normalizer(a, keys);

  StateSums<Tl> state_sums;
  KeySums<Tl> key_sums;
  for (int64_t begin = part.begin; begin < part.end; begin += Tl::tokens) {
    load_tile<Tl>(rows, begin, part.end, 0, memory.rows, a.relu);
    load_tile<Tl>(values, begin, part.end, first, memory.values, false);
    __syncthreads();
    const int tokens = static_cast<int>(smaller(Tl::tokens, part.end - begin));
    if (queries) {
      multiply_key_sum<Tl>(memory.rows, memory.z,
                           [&](int t, Acc s) { memory.inverse[t] = 1 / normalizer.divisor(s); });
      __syncthreads();
      scale_values<Tl>(memory.values, memory.inverse);
      __syncthreads();
    } else if (blockIdx.y == 0) {
      key_sums.add(memory.rows, tokens, [](int) { return Acc(1); });
    }
    state_sums.add(memory.rows, memory.values, tokens);
    __syncthreads();
  }
  Acc* partial = partial_of<Acc>(a, slot, head);
  if (!queries && blockIdx.y == 0)
    key_sums.store(a, partial + a.head_dim * a.value_dim, memory.rows);
  state_sums.store(a, partial, first, memory.rows);
}

// Sums over the parts: state and key_sum of the keys, or dstate and dkey_sum of the queries. A
// block computes 32 adjacent numbers of an image and head.
template <class Acc, bool queries>
__global__ void __launch_bounds__(32 * kSumRows)
    add_parts(const Attention a, const Division division) {
  const int64_t state_size = a.head_dim * a.value_dim, size = state_size + a.head_dim;
  const int64_t blocks = ceil_div(size, 32), pair = blockIdx.x / blocks;
  const int64_t image = pair / a.heads, head = pair % a.heads;
  const int64_t i = blockIdx.x % blocks * 32 + threadIdx.x % 32;
  // Without keys there are no sums of the queries either.
  const bool any = a.keys.region(image).count() > 0;
  const int64_t parts = any ? division.parts(division.layout.region(image).count()) : 0;
  const Acc* first = partial_of<Acc>(a, division.first_slot(image), head) + i;
  Acc sum = sum_column<kSumRows>(first, i < size ? parts : 0, a.heads * partial_size(a));
  if (threadIdx.x >= 32 || i >= size) return;
  if (queries) sum *= scale_of<Acc>(a, head);
  if (i < state_size)
    of_head<Acc>(a, queries ? a.dstate : a.state, image, head, state_size)[i] = sum;
  else
    of_head<Acc>(a, queries ? a.dkey_sum : a.key_sum, image, head, a.head_dim)[i - state_size] =
        sum;
}

inline int64_t blocks_of_sums(const Attention& a) {
  return a.queries.images * a.heads * ceil_div(a.head_dim * a.value_dim + a.head_dim, 32);
}

}  // namespace l2vit::cuda
