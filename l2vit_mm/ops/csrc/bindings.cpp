// The library torch.ops.l2vit_mm: helpers of the bindings, and operators about the build itself.
// linear_attention.cpp and focused_feature_map.cpp add an operator each. They check what keeps a
// call from touching foreign memory; checks with messages for users, autograd, fake kernels,
// autocast and FLOP formulas are in Python.
#include "bindings.h"

#include <torch/version.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <string>

namespace l2vit {

Dtype dtype_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case at::kDouble: return Dtype::Float64;
    case at::kFloat: return Dtype::Float32;
    case at::kHalf: return Dtype::Float16;
    case at::kBFloat16: return Dtype::BFloat16;
    default:
      TORCH_CHECK_TYPE(false, "l2vit_mm: tensors must be floating-point, got ", x.scalar_type());
  }
}

at::ScalarType acc_of(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Tensor to_acc(const Tensor& small, const Tensor& like) {
  TORCH_CHECK_VALUE(small.device() == like.device(), "l2vit_mm: tensors must be on ", like.device(),
                    ", got ", small.device());
  return small.to(acc_of(like)).contiguous();
}

// Linux maps a large new block of memory page by page when it is first written. With pages of
// 2 MiB, where the system lets programs ask for them, this takes a fraction of the time, which
// otherwise is as long as the computation.
Tensor make_empty(at::IntArrayRef shape, const at::TensorOptions& options) {
  Tensor x = at::empty(shape, options);
#ifdef __linux__
  constexpr uintptr_t kHugePage = 2 << 20;
  if (x.is_cpu() && x.nbytes() >= 2 * kHugePage) {
    const uintptr_t data = reinterpret_cast<uintptr_t>(x.data_ptr());
    const uintptr_t begin = (data + kHugePage - 1) & ~(kHugePage - 1);
    madvise(reinterpret_cast<void*>(begin), (data + x.nbytes() - begin) & ~(kHugePage - 1),
            MADV_HUGEPAGE);  // only a hint, so a failure needs no handling
  }
#endif
  return x;
}

Tensor empty_acc(at::IntArrayRef shape, const Tensor& like) {
  return make_empty(shape, like.options().dtype(acc_of(like)));
}

Tensor empty_with_channels(const Tensor& like, int64_t channels) {
  auto shape = like.sizes().vec();
  shape.back() = channels;
  return make_empty(shape, like.options());
}

namespace {

std::string build_info() {
  std::string info = "torch=" TORCH_VERSION "\ncompiler=" __VERSION__ "\ncpu=";
  info += cpu::instruction_set_name();
#ifdef L2VIT_MM_WITH_CUDA
  info += "\ncuda=" L2VIT_MM_CUDA "\narchs=" L2VIT_MM_ARCHS;
#endif
  return info;
}

int64_t max_head_dim() { return kMaxHeadDim; }

}  // namespace

TORCH_LIBRARY(l2vit_mm, m) {
  m.def("build_info() -> str", build_info);
  m.def("max_head_dim() -> int", max_head_dim);
}

}  // namespace l2vit
