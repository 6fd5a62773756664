// What the bindings of all operators share: tensors in, tensors out, and the backends.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "cpu/backend.h"
#ifdef L2VIT_MM_WITH_CUDA
#include <c10/cuda/CUDAStream.h>

#include "cuda/backend.h"
#endif

namespace l2vit {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Dtype dtype_of(const Tensor& x);

// The type of the sums: float64 for float64, else float32.
at::ScalarType acc_of(const Tensor& x);

// `small`, a parameter tensor, contiguous and in the type of the sums of `like`.
Tensor to_acc(const Tensor& small, const Tensor& like);

// An uninitialized tensor.
Tensor make_empty(at::IntArrayRef shape, const at::TensorOptions& options);
Tensor empty_acc(at::IntArrayRef shape, const Tensor& like);
Tensor empty_with_channels(const Tensor& like, int64_t channels);

// A backend runs the calls of params.h; `like` is a tensor of the call. The functions of an
// operator are templates over the backend, and every backend registers its own instances.
struct Cpu {
  template <class Call> static void forward(Call& call, const Tensor&) { cpu::forward(call); }
  template <class Call> static void backward(Call& call, const Tensor&) { cpu::backward(call); }
};

#ifdef L2VIT_MM_WITH_CUDA
struct Cuda {
  template <class Call> static void forward(Call& call, const Tensor& like) {
    const Tensor workspace = allocate(call, like, false);
    check(cuda::forward(call, c10::cuda::getCurrentCUDAStream().stream()));
  }
  template <class Call> static void backward(Call& call, const Tensor& like) {
    const Tensor workspace = allocate(call, like, true);
    check(cuda::backward(call, c10::cuda::getCurrentCUDAStream().stream()));
  }

 private:
  template <class Call> static Tensor allocate(Call& call, const Tensor& like, bool backward) {
    const Tensor workspace =
        at::empty({cuda::workspace_size(call, backward)}, like.options().dtype(at::kByte));
    call.workspace = workspace.data_ptr();
    return workspace;
  }
  static void check(const char* error) { TORCH_CHECK(!error, "l2vit_mm: CUDA: ", error); }
};
#endif

}  // namespace l2vit
