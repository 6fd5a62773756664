// Linear attention: the gradients and the backward pass.
#include "attention_sums.cuh"
#include "backend.h"

namespace l2vit::cuda {
namespace {

// dscale: the scale-like sums over all parts of all images. One block per head.
constexpr int kScaleThreads = 256;
template <class Acc>
__global__ void __launch_bounds__(kScaleThreads)
    add_scale_parts(const Attention a, const Division division, int64_t slots) {
  Acc* sums = &shared_memory<Acc>();
  Acc sum = 0;
  for (int64_t slot = threadIdx.x; slot < slots; slot += kScaleThreads) {
    const Part part(division, slot);
    if (!part.empty() && a.keys.region(part.image).count() > 0)
      sum += partial_of<Acc>(a, slot, blockIdx.x)[partial_size(a) - 1];
  }
  sum = sum_lanes(sum, 32);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int i = 1; i < kScaleThreads / 32; ++i) sum += sums[i];
  static_cast<Acc*>(a.dscale)[blockIdx.x] = static_cast<Acc>(a.factor) * sum;
}

template <class Tl> struct GradientMemory {
  alignas(16) typename Tl::Rows rows;
  alignas(16) typename Tl::Values values;
  alignas(16) typename Tl::State state;
  alignas(16) typename Tl::Acc z[Tl::width];
  // per token: 1 / den, the same or 0 where the clamp was active, summands of t, and r
  typename Tl::Acc inverse[Tl::tokens], slope[Tl::tokens];
  typename Tl::Acc pieces[Share<Tl, Tl::width>::warps][Tl::tokens], r[Tl::tokens];
  typename Tl::Acc sums[Tl::threads / 32];
};

// dq of a part of the queries, the partial sums of r a and t, and, where all values fit, of a h^T.
template <class T, int P>
__global__ void __launch_bounds__((Tile<T, P>::threads), (Tile<T, P>::gradient_blocks))
    query_gradient(const Attention a, const Division division) {
  using Tl = Tile<T, P>;
  using Acc = typename Tl::Acc;
  using Heads = Share<Tl, P>;
  auto& memory = shared_memory<GradientMemory<Tl>>();
  const int64_t head = blockIdx.x % a.heads, slot = blockIdx.x / a.heads;
  const Part part(division, slot);
  if (part.empty()) return;
  const Tokens<T> dq(a.dq, part.region, part.image, head, a.head_dim);
  const int64_t keys = a.keys.region(part.image).count();
  if (keys == 0) {
    dq.clear(part.begin, part.end);
    return;
  }
  const Tokens<T> q(a.q, part.region, part.image, head, a.head_dim);
  const Tokens<T> dout(a.dout, part.region, part.image, head, a.value_dim);
  load_key_sum<Tl>(a, a.key_sum, part.image, head, memory.z);
  const Normalizer<Acc> normalizer(a, keys);
  const Acc scale = scale_of<Acc>(a, head);

  const Heads share;
  StateSums<Tl> state_sums;
  KeySums<Tl> key_sums;
  Acc scale_sum = 0;
  for (int64_t begin = part.begin; begin < part.end; begin += Tl::tokens) {
    const int tokens = static_cast<int>(smaller(Tl::tokens, part.end - begin));
    typename Heads::Sums u = {};  // not yet divided by den
    for (int first = 0; first < (Tl::at_once ? 1 : a.value_dim); first += Tl::columns) {
      if (first == 0) load_tile<Tl>(q, begin, part.end, 0, memory.rows, a.relu);
      load_tile<Tl>(dout, begin, part.end, first, memory.values, false);
      if (begin == part.begin || !Tl::at_once)
        load_state<Tl>(a, a.state, part.image, head, first, memory.state);
      __syncthreads();
      if (first == 0)
        multiply_key_sum<Tl>(memory.rows, memory.z, [&](int t, Acc s) {
          memory.inverse[t] = 1 / normalizer.divisor(s);
          memory.slope[t] = normalizer.clamps(s) ? 0 : memory.inverse[t];
        });
      multiply_transposed<Tl>(memory.values, memory.state,
                              static_cast<int>(smaller(Tl::columns, a.value_dim - first)), share,
                              u);
      __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < Heads::count; ++i) {
      const int t = share.token(i);
      Acc sum = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        u[i][j] *= memory.inverse[t];
        sum += u[i][j] * memory.rows[t][share.group + j * Heads::groups];
      }
      sum = sum_lanes(sum, Heads::lanes);
      if (share.group % Heads::lanes == 0) memory.pieces[share.group / Heads::lanes][t] = sum;
    }
    if constexpr (Tl::at_once) scale_values<Tl>(memory.values, memory.inverse);
    __syncthreads();
    for (int t = threadIdx.x; t < tokens; t += Tl::threads) {
      Acc sum = memory.pieces[0][t];
#pragma unroll
      for (int i = 1; i < Heads::warps; ++i) sum += memory.pieces[i][t];
      memory.r[t] = -sum * memory.slope[t];
      scale_sum += sum;
    }
    if constexpr (Tl::at_once) state_sums.add(memory.rows, memory.values, tokens);
    __syncthreads();
    key_sums.add(memory.rows, tokens, [&](int t) { return memory.r[t]; });
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Heads::count; ++i) {
      const int t = share.token(i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int d = share.group + j * Heads::groups;
        Acc& value = memory.rows[t][d];
        const Acc gradient = scale * (u[i][j] + memory.r[t] * memory.z[d]);
        value = a.relu && value == 0 ? 0 : gradient;
      }
    }
    __syncthreads();
    store_tile<Tl>(dq, begin, part.end, memory.rows);
    __syncthreads();
  }

  Acc* partial = partial_of<Acc>(a, slot, head);
  if constexpr (Tl::at_once) state_sums.store(a, partial, 0, memory.rows);
  partial += a.head_dim * a.value_dim;
  key_sums.store(a, partial, memory.rows);
  scale_sum = sum_lanes(scale_sum, 32);
  if (threadIdx.x % 32 == 0) memory.sums[threadIdx.x / 32] = scale_sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int i = 1; i < Tl::threads / 32; ++i) scale_sum += memory.sums[i];
  partial[a.head_dim] = scale_sum;
}

template <class Tl> struct KeyMemory {
  alignas(16) typename Tl::Rows rows;
  alignas(16) typename Tl::Values values;
  alignas(16) typename Tl::State state;
  alignas(16) typename Tl::Acc z[Tl::width];
};

// dk and dv of a part of the keys.
template <class T, int P>
__global__ void __launch_bounds__((Tile<T, P>::threads), (Tile<T, P>::gradient_blocks))
    key_gradient(const Attention a, const Division division) {
  using Tl = Tile<T, P>;
  using Acc = typename Tl::Acc;
  using Heads = Share<Tl, P>;
  using Columns = Share<Tl, Tl::columns>;
  auto& memory = shared_memory<KeyMemory<Tl>>();
  const int64_t head = blockIdx.x % a.heads;
  const Part part(division, blockIdx.x / a.heads);
  if (part.empty()) return;
  const Tokens<T> dk(a.dk, part.region, part.image, head, a.head_dim);
  const Tokens<T> dv(a.dv, part.region, part.image, head, a.value_dim);
  if (a.queries.region(part.image).count() == 0) {
    dk.clear(part.begin, part.end);
    dv.clear(part.begin, part.end);
    return;
  }
  const Tokens<T> k(a.k, part.region, part.image, head, a.head_dim);
  const Tokens<T> v(a.v, part.region, part.image, head, a.value_dim);
  load_key_sum<Tl>(a, a.dkey_sum, part.image, head, memory.z);

  const Heads heads;
  const Columns columns;
  for (int64_t begin = part.begin; begin < part.end; begin += Tl::tokens) {
    typename Heads::Sums db = {};
    for (int first = 0; first < (Tl::at_once ? 1 : a.value_dim); first += Tl::columns) {
      if (first == 0) load_tile<Tl>(k, begin, part.end, 0, memory.rows, a.relu);
      load_tile<Tl>(v, begin, part.end, first, memory.values, false);
      if (begin == part.begin || !Tl::at_once)
        load_state<Tl>(a, a.dstate, part.image, head, first, memory.state);
      __syncthreads();
      typename Columns::Sums sums = {};
      multiply<Tl>(memory.rows, memory.state, static_cast<int>(a.head_dim), columns, sums);
      if (columns.first < Tl::tokens)
#pragma unroll
        for (int i = 0; i < Columns::count; ++i) {
          const int64_t token = begin + columns.token(i);
          if (token < part.end) dv.store4(token, first + 4 * columns.group, sums[i]);
        }
      multiply_transposed<Tl>(memory.values, memory.state,
                              static_cast<int>(smaller(Tl::columns, a.value_dim - first)), heads,
                              db);
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < Heads::count; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int d = heads.group + j * Heads::groups;
        Acc& value = memory.rows[heads.token(i)][d];
        value = a.relu && value == 0 ? 0 : db[i][j] + memory.z[d];
      }
    __syncthreads();
    store_tile<Tl>(dk, begin, part.end, memory.rows);
    __syncthreads();
  }
}

}  // namespace

const char* backward(const Attention& a, void* stream) {
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
      launch(sum_states<T, P, true>, queries.slots() * a.heads, ceil_div(a.value_dim, Tl::columns),
             Tl::threads, sizeof(StatesMemory<Tl>), a, queries);
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
