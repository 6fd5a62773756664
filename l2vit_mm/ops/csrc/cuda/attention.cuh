// Linear attention: its kernels and how they are launched.
//
// A block works on one head of a part of an image, a tile of tokens at a time, in shared memory, as
// Acc, mapped by phi on the way. What lies beyond the part, the head size and the value size is
// zero there. All three products are of such tiles, and have 4 or 8 x 4 results a thread.
#pragma once
#include "division.cuh"
#include "launcher.cuh"

namespace l2vit::cuda {

// Sizes for tensors of T whose head and value sizes are at most P.
template <class T, int P> struct Tile {
  using Acc = AccType<T>;
  static constexpr int words = sizeof(Acc) / 4;  // double takes twice the room
  static constexpr int threads = P <= 64 ? 128 : 256;
  static constexpr int width = P;
  static constexpr int tokens = 32 * threads / P / words;
  // Values are taken so many columns at a time.
  static constexpr int columns = P <= 64 ? P : 8192 / P / words;
  // Rows are 16 bytes longer: 16-byte reads of neighbouring rows then meet no bank twice.
  static constexpr int pad = 16 / sizeof(Acc);
  static constexpr bool at_once = columns == P;  // all values
  // Blocks that a multiprocessor is to have registers for, without and with gradients; loads that a
  // thread has under way at once.
  static constexpr int blocks = 512 / threads / words;
  static constexpr int gradient_blocks = at_once && words == 1 ? 3 : blocks;
  static constexpr int loads = at_once ? 8 : 4;

  using Rows = Acc[tokens][P + pad];
  using Values = Acc[tokens][columns + pad];
  using State = Acc[P][columns + pad];  // of head channels x values
};

// Tokens of a part of an image's outputs, a block: enough of them that its read of the state weighs
// little.
constexpr int64_t kBlockTokens = 256;
// A part with sums of its own: long against its sums; and few of them in the longest image.
constexpr int64_t kLeastPart = 256;
constexpr int64_t kMostParts = 128;
constexpr int kSumRows = 4;  // threads for the sum of an image's parts

inline Division divide_for_outputs(const Layout& layout, int64_t tile) {
  return Division::make(layout, kBlockTokens, INT64_MAX, tile);
}
inline Division divide_for_sums(const Attention& a, const Layout& layout, int64_t tile) {
  const int64_t size = a.head_dim > a.value_dim ? a.head_dim : a.value_dim;
  const int64_t least = ceil_div(8 * size, kLeastPart) * kLeastPart;
  return Division::make(layout, least, kMostParts, tile);
}

// Partial sums of a slot and head: state-like (D x Dv), key_sum-like (D), scale-like (1).
__host__ __device__ inline int64_t partial_size(const Attention& a) {
  return a.head_dim * a.value_dim + a.head_dim + 1;
}
template <class Acc> __device__ Acc* partial_of(const Attention& a, int64_t slot, int64_t head) {
  return static_cast<Acc*>(a.workspace) + (slot * a.heads + head) * partial_size(a);
}

// The state-like or key_sum-like array's part of an image and head.
template <class Acc>
__device__ Acc* of_head(const Attention& a, void* array, int64_t image, int64_t head,
                        int64_t size) {
  return static_cast<Acc*>(array) + (image * a.heads + head) * size;
}

template <class Acc> __device__ Acc scale_of(const Attention& a, int64_t head) {
  const Acc factor = static_cast<Acc>(a.factor);
  return a.scale ? factor * static_cast<const Acc*>(a.scale)[head] : factor;
}

template <class Acc> struct Normaliser {
  bool mean;
  Acc least, more;

  __device__ Normaliser(const Attention& a, int64_t keys)
      : mean(a.mean), least(static_cast<Acc>(a.denom_min)),
        more(static_cast<Acc>(a.eps * static_cast<double>(keys))) {}
  __device__ bool clamps(Acc s) const { return !mean && s < least; }
  __device__ Acc divisor(Acc s) const { return mean ? s + more : clamps(s) ? least : s; }
};

// ---- tiles

// As many neighbours as a chunk has.
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

// Tokens [begin, end) and the channels from `first` on, through relu if wished.
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

// A state-like array's part of an image and head, the values from `first` on.
template <class Tl>
__device__ void load_state(const Attention& a, void* states, int64_t image, int64_t head,
                           int first, typename Tl::State& tile) {
  const auto* state =
      of_head<typename Tl::Acc>(a, states, image, head, a.head_dim * a.value_dim);
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
// warp has up to 8 neighbouring groups, so that what it reads is spread over all banks.
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

// sums += rows state: 4 neighbouring columns a thread.
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

// sums += values state^T: a thread's 4 columns are `groups` apart, as it reads along them.
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

// rows^T values, summed over tokens: 8 x 4 results a thread. Teams of threads that have all of
// them take turns with the tokens.
template <class Tl> struct StateSums {
  using Acc = typename Tl::Acc;
  static constexpr int team = Tl::width * Tl::columns / 32;
  static constexpr int teams = Tl::threads / team;
  static constexpr int value_lanes = Tl::columns < 32 ? Tl::columns / 4 : 8;
  static constexpr int head_lanes = 32 / value_lanes < Tl::width / 8 ? 32 / value_lanes
                                                                     : Tl::width / 8;
  static constexpr int value_warps = Tl::columns / 4 / value_lanes;
  static_assert(teams / 2 * team * 32 * sizeof(Acc) <= sizeof(typename Tl::Rows));

  int turn, head, value;  // 4 head channels from `head` on, 4 more half the width on
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

  // To state (D x Dv), the values from `first` on. All threads, behind a barrier, with memory of
  // the size of Rows.
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

// rows^T weight, summed over tokens, one head channel a thread; several threads take turns.
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

  // As StateSums.
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

// s = row . key_sum of every token, then each(token, s), by one thread.
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

// ---- kernels. A block has the head blockIdx.x % heads of the slot blockIdx.x / heads.

template <class Tl> struct StatesMemory {
  alignas(16) typename Tl::Rows rows;
  alignas(16) typename Tl::Values values;
  alignas(16) typename Tl::Acc z[Tl::width];
  typename Tl::Acc inverse[Tl::tokens];
};

// Partial sums over the tokens of a part, for the value columns of blockIdx.y: b v^T and b of keys;
// or a h^T of queries.
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
  if (queries)
    load_key_sum<Tl>(a, a.key_sum, part.image, head, memory.z);
  const Normaliser<Acc> normaliser(a, keys);

  StateSums<Tl> state_sums;
  KeySums<Tl> key_sums;
  for (int64_t begin = part.begin; begin < part.end; begin += Tl::tokens) {
    load_tile<Tl>(rows, begin, part.end, 0, memory.rows, a.relu);
    load_tile<Tl>(values, begin, part.end, first, memory.values, false);
    __syncthreads();
    const int tokens = static_cast<int>(smaller(Tl::tokens, part.end - begin));
    if (queries) {
      multiply_key_sum<Tl>(memory.rows, memory.z, [&](int t, Acc s) {
        memory.inverse[t] = 1 / normaliser.divisor(s);
      });
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

// Sums of the parts: state and key_sum of the keys, or dstate and dkey_sum of the queries. A block
// has 32 neighbouring numbers of an image and head.
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

// dscale: the scale-like sums of all parts of all images. A block has a head.
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

template <class Tl> struct OutputMemory {
  alignas(16) typename Tl::Rows rows;
  alignas(16) typename Tl::State state;
  alignas(16) typename Tl::Acc z[Tl::width];
  typename Tl::Acc inverse[Tl::tokens];
};

// out of a part of the queries.
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
  const Normaliser<Acc> normaliser(a, keys);
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
          memory.inverse[t] = scale / normaliser.divisor(s);
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

template <class Tl> struct GradientMemory {
  alignas(16) typename Tl::Rows rows;
  alignas(16) typename Tl::Values values;
  alignas(16) typename Tl::State state;
  alignas(16) typename Tl::Acc z[Tl::width];
  // of each token: 1 / den, the same or 0 where the clamp was active, t in pieces, and r
  typename Tl::Acc inverse[Tl::tokens], slope[Tl::tokens];
  typename Tl::Acc pieces[Share<Tl, Tl::width>::warps][Tl::tokens], r[Tl::tokens];
  typename Tl::Acc sums[Tl::threads / 32];
};

// dq of a part of the queries, and the partial sums r a and t; where all values fit also a h^T.
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
  const Normaliser<Acc> normaliser(a, keys);
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
          memory.inverse[t] = 1 / normaliser.divisor(s);
          memory.slope[t] = normaliser.clamps(s) ? 0 : memory.inverse[t];
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

// Zeros for the tokens that are in no image. A block has so many neighbouring tokens of a row.
constexpr int64_t kClearTokens = 64;
template <class T>
__global__ void __launch_bounds__(256)
clear_outside(const View view, const Layout layout, int64_t heads, int64_t channels) {
  const int64_t pieces = ceil_div(layout.width, kClearTokens), line = blockIdx.x / pieces;
  int64_t begin = blockIdx.x % pieces * kClearTokens;
  const int64_t end = smaller(begin + kClearTokens, layout.width);
  int64_t image = 0, row = 0, inside = 0;
  if (layout.cu_seqlens) {
    if (layout.images) {
      const Region last = layout.region(layout.images - 1);
      inside = last.start + last.columns;
    }
  } else {
    image = line / layout.height, row = line % layout.height;
    const Region region = layout.region(image);
    inside = row < region.rows ? region.columns : 0;
  }
  if (begin < inside) begin = inside;
  T zero;
  narrow(AccType<T>(0), zero);
  T* data = static_cast<T*>(view.data) + image * view.image + row * view.row;
  for (int64_t i = threadIdx.x; i < (end - begin) * heads * channels; i += blockDim.x) {
    const int64_t channel = i % channels, head = i / channels % heads;
    const int64_t token = begin + i / channels / heads;
    data[token * view.token + head * view.head + channel * view.channel] = zero;
  }
}

// ---- launches

// Calls function(Type<T>(), std::integral_constant<int, P>()).
template <class Function> void with_tile(const Attention& a, Function function) {
  const int64_t size = a.head_dim > a.value_dim ? a.head_dim : a.value_dim;
  with_type(a.dtype, [&](auto type) {
    if (size <= 16) function(type, std::integral_constant<int, 16>());
    else if (size <= 32) function(type, std::integral_constant<int, 32>());
    else if (size <= 64) function(type, std::integral_constant<int, 64>());
    else if (size <= 128) function(type, std::integral_constant<int, 128>());
    else function(type, std::integral_constant<int, 256>());
  });
}

inline int64_t blocks_of_sums(const Attention& a) {
  return a.queries.images * a.heads * ceil_div(a.head_dim * a.value_dim + a.head_dim, 32);
}

inline void launch_clear_outside(Launcher& launch, const Attention& a, const View& view,
                                 const Layout& layout, int64_t channels) {
  if (!layout.cu_seqlens && !layout.valid_hw) return;
  const int64_t lines = layout.cu_seqlens ? 1 : layout.images * layout.height;
  with_type(a.dtype, [&](auto type) {
    launch(clear_outside<typename decltype(type)::type>,
           lines * ceil_div(layout.width, kClearTokens) * (a.heads > 0), 1, 256, 0, view, layout,
           a.heads, channels);
  });
}

}  // namespace l2vit::cuda
