// What the launchers share: the launch itself, and the choice of a template by type.
#pragma once
#include <cuda_runtime.h>

#include <type_traits>
#include <utility>

#include "common.cuh"

namespace l2vit::cuda {

// Launches kernels one after the other, up to the first error.
class Launcher {
 public:
  explicit Launcher(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}

  template <class... Params, class... Args>
  void operator()(void (*kernel)(Params...), int64_t blocks, int64_t columns, int threads,
                  size_t shared_bytes, Args&&... args) {
    if (error_ != cudaSuccess || blocks * columns == 0) return;
    if (blocks > 0x7fffffff || columns > 0xffff) {
      error_ = cudaErrorInvalidConfiguration;
      return;
    }
    constexpr size_t kDefaultLimit = 48 << 10;
    if (shared_bytes > kDefaultLimit)
      error_ = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes));
    if (error_ != cudaSuccess) return;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(columns));
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream_;
    error_ = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  }

  // nullptr or an error message. Clears the error, which CUDA would report to the next caller too.
  const char* error() const {
    if (error_ == cudaSuccess) return nullptr;
    cudaGetLastError();
    return cudaGetErrorString(error_);
  }

 private:
  cudaStream_t stream_;
  cudaError_t error_ = cudaSuccess;
};

// Calls function(Type<T>()), T being the type of the tensors.
template <class Function> auto with_type(Dtype dtype, Function function) {
  switch (dtype) {
    case Dtype::Float64: return function(Type<double>());
    case Dtype::Float32: return function(Type<float>());
    case Dtype::Float16: return function(Type<__half>());
    default: return function(Type<__nv_bfloat16>());
  }
}

}  // namespace l2vit::cuda
