// Linear attention: tiles in shared memory and their products.
//
// A block works on one head of a part of an image, a tile of tokens at a time, in shared memory, as
// Acc, mapped by phi on the way. Whatever lies outside the part, D or Dv is zero there. All three
// products are of such tiles and have 4 x 4 or 8 x 4 results per thread.
#pragma once
#include "attention.cuh"

namespace l2vit::cuda {

// Reads and writes as many adjacent values as a chunk has.
template <int size, class Acc> __device__ void read_values(const Acc* p, Acc (&values)[size]) {
  if constexpr (size == 2) {
    values[0] = p[0], values[1] = p[1];
  } else {
#pragma unroll
    for (int i = 0; i < size; i += 4) read4(p + i, values + i);
  }
}
template <int size, class Acc> __device__ void write_values(Acc* p, const Acc (&values)[size]) {
  if constexpr (size == 2) {
    p[0] = values[0], p[1] = values[1];
  } else {
#pragma unroll
    for (int i = 0; i < size; i += 4) write4(p + i, values + i);
  }
}

// Loads tokens [begin, end), channels from `first` on, optionally through relu.
template <class Tl, class T, int Row>
__device__ void load_tile(const Tokens<T>& from, int64_t begin, int64_t end, int first,
                          typename Tl::Acc (&tile)[Tl::tokens][Row], bool through_relu) {
  constexpr int size = Chunk<T>::size, in_row = (Row - Tl::pad) / size;
  constexpr int count = Tl::tokens * in_row;
  constexpr int each = count / Tl::threads;
  constexpr int batch = each == 0 ? 1 : each < Tl::loads ? each : Tl::loads;
  static_assert(count < Tl::threads || count % (batch * Tl::threads) == 0);
  for (int base = threadIdx.x; base < count; base += batch * Tl::threads) {
    Chunk<T> chunks[batch];
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      const int i = base + b * Tl::threads, channel = first + i % in_row * size;
      const int64_t token = begin + i / in_row;
      if (token < end && channel < from.channels)
        chunks[b] = from.load(token, channel);
      else
        chunks[b] = Chunk<T>::load(nullptr, false, 0, 0);
    }
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      const int i = base + b * Tl::threads, channel = i % in_row * size;
      typename Tl::Acc values[size];
#pragma unroll
      for (int j = 0; j < size; ++j) {
        values[j] = widen(chunks[b].values[j]);
        if (through_relu) values[j] = relu(values[j]);
      }
      write_values(&tile[i / in_row][channel], values);
    }
  }
}

template <class Tl, class T>
__device__ void store_tile(const Tokens<T>& to, int64_t begin, int64_t end,
                           const typename Tl::Rows& tile) {
  constexpr int size = Chunk<T>::size, in_row = Tl::width / size;
  for (int i = threadIdx.x; i < Tl::tokens * in_row; i += Tl::threads) {
    const int channel = i % in_row * size;
    const int64_t token = begin + i / in_row;
    if (token >= end || channel >= to.channels) continue;
    typename Tl::Acc values[size];
    read_values(&tile[i / in_row][channel], values);
    Chunk<T> chunk;
#pragma unroll
    for (int j = 0; j < size; ++j) narrow(values[j], chunk.values[j]);
    to.store(token, channel, chunk);
  }
}

// Loads the state-like array of an image and head, value columns from `first` on.
template <class Tl>
__device__ void load_state(const Attention& a, void* states, int64_t image, int64_t head, int first,
                           typename Tl::State& tile) {
  const auto* state = of_head<typename Tl::Acc>(a, states, image, head, a.head_dim * a.value_dim);
  const int head_dim = static_cast<int>(a.head_dim), value_dim = static_cast<int>(a.value_dim);
  for (int i = threadIdx.x; i < Tl::width * Tl::columns; i += Tl::threads) {
    const int d = i / Tl::columns, e = i % Tl::columns;
    const bool inside = d < head_dim && first + e < value_dim;
    tile[d][e] = inside ? state[d * value_dim + first + e] : 0;
  }
}

template <class Tl>
__device__ void load_key_sum(const Attention& a, void* key_sums, int64_t image, int64_t head,
                             typename Tl::Acc (&z)[Tl::width]) {
  const auto* key_sum = of_head<typename Tl::Acc>(a, key_sums, image, head, a.head_dim);
  for (int d = threadIdx.x; d < Tl::width; d += Tl::threads) z[d] = d < a.head_dim ? key_sum[d] : 0;
}

template <class Tl>
__device__ void scale_values(typename Tl::Values& values,
                             const typename Tl::Acc (&factors)[Tl::tokens]) {
  constexpr int groups = Tl::columns / 4;
  for (int i = threadIdx.x; i < Tl::tokens * groups; i += Tl::threads) {
    typename Tl::Acc *to = &values[i / groups][i % groups * 4], x[4];
    read4(to, x);
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] *= factors[i / groups];
    write4(to, x);
  }
}

// ---- products

// A thread's share of a product of tokens x Width: a group of 4 columns, every step-th token. A
// warp has up to 8 adjacent groups, so that its reads are spread over all banks.
template <class Tl, int Width> struct Share {
  static constexpr int groups = Width / 4;
  static constexpr int lanes = groups < 8 ? groups : 8;
  static constexpr int warps = groups / lanes;
  static constexpr int step = Tl::threads / groups;
  static constexpr int count = step < Tl::tokens ? Tl::tokens / step : 1;
  using Sums = typename Tl::Acc[count][4];

  int first, group;
  __device__ Share() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    group = warp % warps * lanes + lane % lanes;
    first = warp / warps * (32 / lanes) + lane / lanes;
  }
  __device__ int token(int i) const { return first + i * step; }
};

// sums += rows state: 4 adjacent columns per thread.
template <class Tl, class S = Share<Tl, Tl::columns>>
__device__ void multiply(const typename Tl::Rows& rows, const typename Tl::State& state, int depth,
                         const S& share, typename S::Sums& sums) {
  if (share.first >= Tl::tokens) return;
#pragma unroll 1
  for (int d = 0; d < depth; d += 4) {
    typename Tl::Acc y[4][4], x[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) read4(&state[d + k][4 * share.group], y[k]);
#pragma unroll
    for (int i = 0; i < S::count; ++i) {
      read4(&rows[share.token(i)][d], x);
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += x[k] * y[k][j];
    }
  }
}

// sums += values state^T: the 4 columns of a thread are `groups` apart, because it reads along
// them.
template <class Tl, class S = Share<Tl, Tl::width>>
__device__ void multiply_transposed(const typename Tl::Values& values,
                                    const typename Tl::State& state, int depth, const S& share,
                                    typename S::Sums& sums) {
#pragma unroll 1
  for (int e = 0; e < depth; e += 4) {
    typename Tl::Acc y[4][4], x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) read4(&state[share.group + j * S::groups][e], y[j]);
#pragma unroll
    for (int i = 0; i < S::count; ++i) {
      read4(&values[share.token(i)][e], x);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[i][j] += x[k] * y[j][k];
    }
  }
}

// rows^T values, summed over tokens: 8 x 4 results per thread. A team of threads covers the whole
// result; several teams divide the tokens among them.
template <class Tl> struct StateSums {
  using Acc = typename Tl::Acc;
  static constexpr int team = Tl::width * Tl::columns / 32;
  static constexpr int teams = Tl::threads / team;
  static constexpr int value_lanes = Tl::columns < 32 ? Tl::columns / 4 : 8;
  static constexpr int head_lanes =
      32 / value_lanes < Tl::width / 8 ? 32 / value_lanes : Tl::width / 8;
  static constexpr int value_warps = Tl::columns / 4 / value_lanes;
  static_assert(teams / 2 * team * 32 * sizeof(Acc) <= sizeof(typename Tl::Rows));

  int turn, head, value;  // 4 head channels from `head` on, 4 more half a width further
  Acc sums[8][4] = {};

  __device__ StateSums() {
    turn = threadIdx.x / team;
    const int member = threadIdx.x % team, outer = member / (value_lanes * head_lanes);
    value = 4 * (outer % value_warps * value_lanes + member % value_lanes);
    head = 4 * (outer / value_warps * head_lanes + member / value_lanes % head_lanes);
  }

  __device__ void add(const typename Tl::Rows& rows, const typename Tl::Values& values,
                      int tokens) {
#pragma unroll 2
    for (int t = turn; t < tokens; t += teams) {
      Acc x[8], y[4];
      read4(&rows[t][head], x);
      read4(&rows[t][head + Tl::width / 2], x + 4);
      read4(&values[t][value], y);
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += x[i] * y[j];
    }
  }

  // Writes to state (D x Dv), value columns from `first` on. Called by all threads after a barrier,
  // with memory of the size of Rows.
  __device__ void store(const Attention& a, Acc* state, int first, void* memory) {
    Acc* shared = static_cast<Acc*>(memory) + threadIdx.x % team;
#pragma unroll
    for (int half = teams / 2; half > 0; half /= 2) {
      Acc* other = shared + turn % half * 32 * team;
      if (turn >= half && turn < 2 * half) {
#pragma unroll
        for (int i = 0; i < 32; ++i) other[i * team] = sums[i / 4][i % 4];
      }
      __syncthreads();
      if (turn < half) {
#pragma unroll
        for (int i = 0; i < 32; ++i) sums[i / 4][i % 4] += other[i * team];
      }
      __syncthreads();
    }
    if (turn > 0) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int d = head + i % 4 + i / 4 * (Tl::width / 2);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (d < a.head_dim && first + value + j < a.value_dim)
          state[d * a.value_dim + first + value + j] = sums[i][j];
    }
  }
};

// rows^T weight, summed over tokens: one head channel per thread, several threads per channel.
template <class Tl> struct KeySums {
  using Acc = typename Tl::Acc;
  static constexpr int teams = Tl::threads / Tl::width;
  Acc sum = 0;

  template <class Weight>
  __device__ void add(const typename Tl::Rows& rows, int tokens, Weight weight) {
#pragma unroll 4
    for (int t = threadIdx.x / Tl::width; t < tokens; t += teams)
      sum += weight(t) * rows[t][threadIdx.x % Tl::width];
  }

  // As StateSums::store.
  __device__ void store(const Attention& a, Acc* key_sum, void* memory) {
    Acc* shared = static_cast<Acc*>(memory);
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < a.head_dim) {
#pragma unroll
      for (int i = 1; i < teams; ++i) sum += shared[i * Tl::width + threadIdx.x];
      key_sum[threadIdx.x] = sum;
    }
    __syncthreads();
  }
};

// Calls each(token, s) for every token, by one thread, with s = row . key_sum.
template <class Tl, class Each>
__device__ void multiply_key_sum(const typename Tl::Rows& rows,
                                 const typename Tl::Acc (&z)[Tl::width], Each each) {
  constexpr int lanes = Tl::threads > Tl::tokens ? Tl::threads / Tl::tokens : 1;
  const int lane = threadIdx.x % lanes;
#pragma unroll
  for (int t = threadIdx.x / lanes; t < Tl::tokens; t += Tl::threads / lanes) {
    typename Tl::Acc x[4], y[4], s = 0;
#pragma unroll 2
    for (int d = 4 * lane; d < Tl::width; d += 4 * lanes) {
      read4(&rows[t][d], x);
      read4(&z[d], y);
#pragma unroll
      for (int k = 0; k < 4; ++k) s += x[k] * y[k];
    }
    s = sum_lanes(s, lanes);
    if (lane == 0) each(t, s);
  }
}

}  // namespace l2vit::cuda
