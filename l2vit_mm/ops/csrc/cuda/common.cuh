// Conversions, 16-byte chunks of memory, and reductions over lanes. Like all .cu and .cuh files
// here, free of torch and of inline PTX, so that the tests can compile them for the CPU.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "../params.h"

extern __shared__ uint4 l2vit_shared_memory[];

namespace l2vit::cuda {

// The shared memory of the block as a struct; the launch allocates sizeof(Memory) bytes.
template <class Memory> __device__ Memory& shared_memory() {
  return *reinterpret_cast<Memory*>(l2vit_shared_memory);
}

__device__ inline double widen(double x) { return x; }
__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ inline void narrow(double x, double& y) { y = x; }
__device__ inline void narrow(float x, float& y) { y = x; }
__device__ inline void narrow(float x, __half& y) { y = __float2half_rn(x); }
__device__ inline void narrow(float x, __nv_bfloat16& y) { y = __float2bfloat16_rn(x); }

// NaN stays NaN.
template <class Acc> __device__ Acc relu(Acc x) { return x <= 0 ? Acc(0) : x; }

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Four adjacent values in one or two accesses of 16 bytes.
__device__ inline void read4(const float* p, float* x) {
  const float4 four = *reinterpret_cast<const float4*>(p);
  x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}
__device__ inline void read4(const double* p, double* x) {
  const double2 low = reinterpret_cast<const double2*>(p)[0];
  const double2 high = reinterpret_cast<const double2*>(p)[1];
  x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
}
__device__ inline void write4(float* p, const float* x) {
  *reinterpret_cast<float4*>(p) = make_float4(x[0], x[1], x[2], x[3]);
}
__device__ inline void write4(double* p, const double* x) {
  reinterpret_cast<double2*>(p)[0] = make_double2(x[0], x[1]);
  reinterpret_cast<double2*>(p)[1] = make_double2(x[2], x[3]);
}
template <class T> __device__ void write4(T* p, const float* x) {
  T narrowed[4];
  for (int i = 0; i < 4; ++i) narrow(x[i], narrowed[i]);
  uint2 bits;
  memcpy(&bits, narrowed, sizeof bits);
  *reinterpret_cast<uint2*>(p) = bits;
}

__device__ inline bool is_aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}
template <class T> __device__ bool is_aligned(int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(T)) % 16 == 0;
}

// 16 bytes: adjacent channels of a token.
template <class T> struct Chunk {
  static constexpr int size = 16 / sizeof(T);
  T values[size];

  // `wide`: the values are aligned, contiguous and all valid. Otherwise `count` of them are read,
  // `stride` elements apart, and the others are zero.
  __device__ static Chunk load(const T* p, bool wide, int count, int64_t stride) {
    Chunk chunk;
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (wide) bits = *reinterpret_cast<const uint4*>(p);
    memcpy(chunk.values, &bits, sizeof bits);
    if (!wide) {
#pragma unroll
      for (int i = 0; i < size; ++i)
        if (i < count) chunk.values[i] = p[i * stride];
    }
    return chunk;
  }

  __device__ void store(T* p, bool wide, int count, int64_t stride) const {
    if (wide) {
      uint4 bits;
      memcpy(&bits, values, sizeof bits);
      *reinterpret_cast<uint4*>(p) = bits;
      return;
    }
#pragma unroll
    for (int i = 0; i < size; ++i)
      if (i < count) p[i * stride] = values[i];
  }
};

struct Add {
  template <class Acc> __device__ Acc operator()(Acc a, Acc b) const { return a + b; }
};
struct Larger {
  template <class Acc> __device__ Acc operator()(Acc a, Acc b) const { return a > b ? a : b; }
};

// The reduction over `lanes` adjacent lanes (a power of 2), for each of them.
template <class Acc, class Reduce> __device__ Acc reduce_lanes(Acc x, int lanes, Reduce reduce) {
  for (int step = lanes / 2; step > 0; step /= 2)
    x = reduce(x, __shfl_xor_sync(0xffffffff, x, step));
  return x;
}
template <class Acc> __device__ Acc sum_lanes(Acc x, int lanes) {
  return reduce_lanes(x, lanes, Add());
}

// Sums of partial sums: a block of 32 columns adds up `count` numbers per column, `stride` elements
// apart, with `Rows` threads per column. The first thread of a column gets the sum.
template <class Acc, int Rows> struct SumMemory {
  Acc sums[Rows][32];
};

template <int Rows, class Acc>
__device__ Acc sum_column(const Acc* first, int64_t count, int64_t stride) {
  auto& sums = shared_memory<SumMemory<Acc, Rows>>().sums;
  const int row = threadIdx.x / 32, column = threadIdx.x % 32;
  Acc sum = 0;
#pragma unroll 8
  for (int64_t i = row; i < count; i += Rows) sum += first[i * stride];
  sums[row][column] = sum;
  __syncthreads();
  if (row == 0)
#pragma unroll
    for (int i = 1; i < Rows; ++i) sum += sums[i][column];
  return sum;
}

}  // namespace l2vit::cuda
