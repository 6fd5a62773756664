// The part of CUDA that the kernels use, on the CPU: replaces NVIDIA's header of this name.
//
// The threads of a block are fibers. Between barriers they run one at a time, in a new random order
// each time, and so do blocks. Shared memory is NaN when a block starts, and memory that the launch
// did not request is poisoned. AddressSanitizer and UBSan check the rest.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

#define __host__
#define __device__
#define __global__
#define __shared__  // only declared extern: there is one dynamic array
#define __launch_bounds__(...)

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

void set_seed(uint64_t seed);  // of the orders from now on
void barrier(int line);        // line of the source: all threads must be at the same one
// The value of lane `other` of the warp in the same call.
void exchange(int line, const void* value, void* result, size_t size, int other);
void run(const std::function<void()>& kernel, dim3 grid, dim3 block, size_t shared_bytes);

template <class T> T shuffle_xor(int line, unsigned mask, T value, int lanes) {
  if (mask != 0xffffffff) std::abort();
  exchange(line, &value, &value, sizeof value, static_cast<int>(threadIdx.x % 32) ^ lanes);
  return value;
}

}  // namespace emulation

#define __syncthreads() emulation::barrier(__LINE__)
#define __shfl_xor_sync(mask, value, lanes) emulation::shuffle_xor(__LINE__, mask, value, lanes)

// The part of the runtime that the launchers use.
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorInvalidConfiguration };
using cudaStream_t = struct Stream*;
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

namespace emulation {
// The last value set by cudaFuncSetAttribute, and its kernel.
extern const void* kernel_with_more;
extern int more_shared_bytes;
constexpr size_t kSharedBytes = 48 << 10;     // that a kernel gets by default
constexpr size_t kMaxSharedBytes = 99 << 10;  // of the smallest card: compute capability 8.6
}  // namespace emulation

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int value) {
  if (value > static_cast<int>(emulation::kMaxSharedBytes)) return cudaErrorInvalidValue;
  emulation::kernel_with_more = reinterpret_cast<const void*>(kernel);
  emulation::more_shared_bytes = value;
  return cudaSuccess;
}

template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Args&&... args) {
  const dim3 grid = config->gridDim, block = config->blockDim;
  const size_t allowed = emulation::kernel_with_more == reinterpret_cast<const void*>(kernel)
                             ? emulation::more_shared_bytes
                             : emulation::kSharedBytes;
  if (!grid.x || !grid.y || grid.x > 0x7fffffff || grid.y > 0xffff || block.x > 1024 ||
      config->dynamicSmemBytes > allowed)
    return cudaErrorInvalidConfiguration;
  emulation::run([&] { kernel(args...); }, grid, block, config->dynamicSmemBytes);
  return cudaSuccess;
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess             ? "no error"
         : error == cudaErrorInvalidValue ? "invalid argument"
                                          : "invalid configuration argument";
}
