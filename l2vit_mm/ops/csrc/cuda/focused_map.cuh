// The focused feature map: its kernels.
//
// A team of lanes processes a row and reads it three times, the second and third time from the
// cache: for the largest value, for the norms, and for the result.
#pragma once
#include "common.cuh"

namespace l2vit::cuda {

constexpr int kMapThreads = 256;
constexpr int64_t kMapParts = 512;  // at most: each part of the rows has its own sums for ds
constexpr int kMapSumRows = 16;     // threads per sum over the parts of a channel
constexpr size_t kMapSharedBytes = 96 << 10;  // limit for these sums

// How rows are divided among lanes.
struct MapTeams {
  int lanes;      // per row: a power of 2, as many as there are chunks but at most a warp
  int threads;    // per block
  int64_t parts;  // of the rows: blocks of the backward pass
  bool shared;    // the sums for ds fit into shared memory; if not, a block is one team

  template <class T> static MapTeams make(const FocusedMap& f) {
    MapTeams teams{1, kMapThreads, 0, true};
    while (teams.lanes < 32 && teams.lanes * Chunk<T>::size < f.channels) teams.lanes *= 2;
    while (teams.shared_bytes<T>(f) > kMapSharedBytes && teams.threads > 32) teams.threads /= 2;
    teams.shared = teams.shared_bytes<T>(f) <= kMapSharedBytes;
    teams.parts = smaller(kMapParts, ceil_div(f.rows, teams.count()));
    return teams;
  }
  __host__ __device__ int count() const { return threads / lanes; }
  template <class T> size_t shared_bytes(const FocusedMap& f) const {
    return count() * padded<T>(f) * sizeof(AccType<T>);
  }
  // Channels, rounded up to whole chunks.
  template <class T> __host__ __device__ static int64_t padded(const FocusedMap& f) {
    return ceil_div(f.channels, Chunk<T>::size) * Chunk<T>::size;
  }
};

// Workspace: 1 / softplus(s), and sums for ds of every part, both with padded channels.
template <class T> int64_t map_workspace(const FocusedMap& f, bool backward) {
  const int64_t parts = backward ? MapTeams::make<T>(f).parts : 0;
  return (1 + parts) * MapTeams::padded<T>(f) * sizeof(AccType<T>);
}

template <class Acc> __device__ Acc softplus(Acc s) {
  return (s > 0 ? s : Acc(0)) + log1p(exp(-fabs(s)));
}

template <class Acc>
__global__ void __launch_bounds__(kMapThreads) invert_softplus(const FocusedMap f) {
  const int64_t i = blockIdx.x * int64_t(kMapThreads) + threadIdx.x;
  if (i < f.channels)
    static_cast<Acc*>(f.workspace)[i] = 1 / softplus(static_cast<const Acc*>(f.s)[i]);
}

// x^power and power x^(power - 1), for 0 < x <= 1.
template <class Acc> struct Power {
  Acc power;
  __device__ Acc operator()(Acc x) const { return power == 3 ? x * x * x : pow(x, power); }
  __device__ Acc slope(Acc x) const { return power * (power == 3 ? x * x : pow(x, power - 1)); }
};

// A row, in chunks.
template <class T> struct MapRow {
  using Acc = AccType<T>;
  const T *x, *dout;
  const Acc *pos, *inverse;
  int channels;
  bool valid, wide, wide_dout;

  __device__ MapRow(const FocusedMap& f, int64_t row)
      : x(static_cast<const T*>(f.x)), dout(static_cast<const T*>(f.dout)),
        pos(static_cast<const Acc*>(f.pos)), inverse(static_cast<const Acc*>(f.workspace)),
        channels(static_cast<int>(f.channels)), valid(row < f.rows) {
    if (!valid) row = 0;
    x += row * f.x_stride;
    if (dout) dout += row * f.channels;
    if (pos) pos += row % f.pos_rows * f.channels;
    wide = is_aligned<T>(channels) && is_aligned(x) && is_aligned(pos);
    wide_dout = is_aligned<T>(channels) && is_aligned(dout);
  }

  // Calls each(index in the chunk, (relu(x + pos) + 1e-6) / softplus, 1 / softplus,
  // whether x + pos <= 0).
  template <class Each> __device__ void for_each(int first, Each each) const {
    constexpr int size = Chunk<T>::size;
    const auto chunk = Chunk<T>::load(x + first, wide, channels - first, 1);
    Acc shift[size] = {}, factor[size];
    load(inverse + first, first, factor);
    if (pos) load(pos + first, first, shift);
#pragma unroll
    for (int i = 0; i < size; ++i) {
      if (first + i >= channels) break;
      const Acc value = widen(chunk.values[i]) + shift[i];
      each(i, (relu(value) + Acc(1e-6)) * factor[i], factor[i], value <= 0);
    }
  }

 private:
  __device__ void load(const Acc* from, int first, Acc (&values)[Chunk<T>::size]) const {
    constexpr int size = Chunk<Acc>::size;
#pragma unroll
    for (int i = 0; i < Chunk<T>::size; i += size) {
      const auto chunk = Chunk<Acc>::load(from + i, wide, channels - first - i, 1);
#pragma unroll
      for (int j = 0; j < size; ++j) values[i + j] = chunk.values[j];
    }
  }
};

template <class T, bool backward>
__global__ void __launch_bounds__(kMapThreads, (sizeof(AccType<T>) == 8 ? 2 : 3))
    focused_map(const FocusedMap f, const MapTeams teams) {
  using Acc = AccType<T>;
  constexpr int size = Chunk<T>::size;
  const int lane = threadIdx.x % teams.lanes, team = threadIdx.x / teams.lanes;
  const int start = lane * size, step = teams.lanes * size;
  const Power<Acc> power{static_cast<Acc>(f.power)};

  // Sums over the rows of the team for ds: every lane has its own channels, and channels of equal
  // index in their chunks are adjacent.
  const int padded = static_cast<int>(MapTeams::padded<T>(f)), chunks = padded / size;
  Acc* partial = static_cast<Acc*>(f.workspace) + (1 + blockIdx.x) * int64_t(padded);
  Acc* sums = teams.shared ? &shared_memory<Acc>() : partial;
  Acc* team_sums = sums + team * padded;
  if constexpr (backward)
    for (int chunk = lane; chunk < chunks; chunk += teams.lanes)
      for (int i = 0; i < size; ++i) team_sums[i * chunks + chunk] = 0;

  // All lanes iterate equally often, because of the reductions over lanes.
  for (int64_t base = blockIdx.x * int64_t(teams.count()); base < f.rows;
       base += int64_t(gridDim.x) * teams.count()) {
    const MapRow<T> row(f, base + team);
    Acc largest = 0;
    for (int first = start; first < row.channels; first += step)
      row.for_each(first, [&](int, Acc u, Acc, bool) { largest = Larger()(largest, u); });
    largest = reduce_lanes(largest, teams.lanes, Larger());

    const Acc inverse_largest = 1 / largest;
    Acc squares = 0, power_squares = 0, product = 0;  // n1^2, n2^2, G
    for (int first = start; first < row.channels; first += step) {
      Chunk<T> dout;
      if (backward) dout = Chunk<T>::load(row.dout + first, row.wide_dout, row.channels - first, 1);
      row.for_each(first, [&](int i, Acc u, Acc, bool) {
        const Acc w = u * inverse_largest, p = power(w);
        squares += w * w;
        power_squares += p * p;
        if (backward) product += widen(dout.values[i]) * p;
      });
    }
    squares = reduce_lanes(squares, teams.lanes, Add());
    power_squares = reduce_lanes(power_squares, teams.lanes, Add());
    if (backward) product = reduce_lanes(product, teams.lanes, Add());
    if (!row.valid) continue;

    const Acc ratio = sqrt(squares / power_squares);
    T* to = static_cast<T*>(backward ? f.dx : f.out) + (base + team) * f.channels;
    const bool wide_to = is_aligned<T>(f.channels) && is_aligned(to);
    const Acc mean_product = product / power_squares;           // G / n2^2
    const Acc along = product / sqrt(squares * power_squares);  // G / (n1 n2)
    for (int first = start; first < row.channels; first += step) {
      Chunk<T> dout, result;
      if (backward) dout = Chunk<T>::load(row.dout + first, row.wide_dout, row.channels - first, 1);
      row.for_each(first, [&](int i, Acc u, Acc inverse, bool cut) {
        const Acc w = u * inverse_largest, p = power(w);
        if constexpr (backward) {
          const Acc du =
              ratio * power.slope(w) * (widen(dout.values[i]) - mean_product * p) + along * w;
          narrow(cut ? Acc(0) : du * inverse, result.values[i]);
          team_sums[i * chunks + first / size] += du * u;
        } else {
          narrow(largest * p * ratio, result.values[i]);
        }
      });
      result.store(to + first, wide_to, row.channels - first, 1);
    }
  }

  if constexpr (backward) {
    __syncthreads();
    for (int i = threadIdx.x; i < padded; i += blockDim.x) {
      Acc sum = sums[i];
      for (int other = 1; other < teams.count(); ++other) sum += sums[other * padded + i];
      partial[i] = sum;
    }
  }
}

// ds: the sums over all parts. A block computes 32 of them.
template <class T>
__global__ void __launch_bounds__(32 * kMapSumRows)
    add_map_parts(const FocusedMap f, const MapTeams teams) {
  using Acc = AccType<T>;
  constexpr int size = Chunk<T>::size;
  const int64_t padded = MapTeams::padded<T>(f), chunks = padded / size;
  const int64_t i = blockIdx.x * int64_t(32) + threadIdx.x % 32;
  const int64_t channel = i % chunks * size + i / chunks;
  const Acc* first = static_cast<const Acc*>(f.workspace) + padded + i;
  const Acc sum = sum_column<kMapSumRows>(first, i < padded ? teams.parts : 0, padded);
  if (threadIdx.x >= 32 || i >= padded || channel >= f.channels) return;
  const Acc s = static_cast<const Acc*>(f.s)[channel];
  const Acc sigmoid = 1 / (1 + exp(-s));
  static_cast<Acc*>(f.ds)[channel] = -sum * sigmoid / softplus(s);
}

}  // namespace l2vit::cuda
