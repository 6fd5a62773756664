// The operators of torch.ops.l2vit_mm: tensors to the structs of params.h, and memory for results.
// Autograd, fake kernels and autocast are registered in linear_attention.py, and so are most
// checks, with messages for people; here is what keeps any call from touching foreign memory.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>
#include <torch/version.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <optional>
#include <string>
#include <tuple>

#include "cpu/driver.h"
#ifdef L2VIT_MM_WITH_CUDA
#include <c10/cuda/CUDAStream.h>

#include "cuda/launch.h"
#endif

namespace l2vit {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kMostChannels = 256;  // of a head

Dtype dtype_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case at::kDouble: return Dtype::Float64;
    case at::kFloat: return Dtype::Float32;
    case at::kHalf: return Dtype::Float16;
    case at::kBFloat16: return Dtype::BFloat16;
    default: TORCH_CHECK_TYPE(false, "l2vit_mm takes floating tensors, got ", x.scalar_type());
  }
}

at::ScalarType acc_of(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Tensor in_acc(const Tensor& small, const Tensor& like) {
  TORCH_CHECK_VALUE(small.device() == like.device(), "l2vit_mm: tensors on ", small.device(),
                    " and ", like.device());
  return small.to(acc_of(like)).contiguous();
}

// The image sizes of a call. q, k, v and dout are dense (B, N, H, D), packed (T, H, D) or padded
// maps (B, Hmax, Wmax, H, D), as the sizes say.
struct Sizes {
  OptionalTensor cu_seqlens, cu_seqlens_k, valid_hw;

  Layout layout(const Tensor& x, const OptionalTensor& offsets) const {
    if (offsets) {
      check(*offsets, "cu_seqlens", x, 3);
      TORCH_CHECK_VALUE(offsets->dim() == 1 && offsets->numel() > 0,
                        "l2vit_mm: cu_seqlens has the shape ", offsets->sizes());
      const int64_t images = offsets->numel() - 1;
      const int32_t* values = offsets->const_data_ptr<int32_t>();
      if (x.is_cpu()) {
        TORCH_CHECK_VALUE(values[0] == 0 && values[images] <= x.size(0),
                          "l2vit_mm: cu_seqlens goes from ", values[0], " to ", values[images],
                          "; accepted is from 0 to at most ", x.size(0));
        for (int64_t i = 0; i < images; ++i)
          TORCH_CHECK_VALUE(values[i] <= values[i + 1], "l2vit_mm: cu_seqlens decreases at ",
                            i + 1);
      }
      return {images, 1, x.size(0), values, nullptr};
    }
    if (valid_hw) {
      check(*valid_hw, "valid_hw", x, 5);
      TORCH_CHECK_VALUE(valid_hw->dim() == 2 && valid_hw->size(0) == x.size(0) &&
                            valid_hw->size(1) == 2,
                        "l2vit_mm: valid_hw has the shape ", valid_hw->sizes());
      const int32_t* values = valid_hw->const_data_ptr<int32_t>();
      if (x.is_cpu())
        for (int64_t i = 0; i < 2 * x.size(0); ++i)
          TORCH_CHECK_VALUE(values[i] >= 0 && values[i] <= x.size(1 + i % 2),
                            "l2vit_mm: valid_hw has ", values[i], " for image ", i / 2,
                            "; accepted is at most ", x.size(1 + i % 2));
      return {x.size(0), x.size(1), x.size(2), nullptr, values};
    }
    TORCH_CHECK_VALUE(x.dim() == 4, "l2vit_mm: a dense tensor has the shape ", x.sizes());
    return {x.size(0), 1, x.size(1), nullptr, nullptr};
  }

  Layout queries(const Tensor& q) const { return layout(q, cu_seqlens); }
  Layout keys(const Tensor& k) const { return layout(k, cu_seqlens_k ? cu_seqlens_k : cu_seqlens); }

  View view(const Tensor& x) const {
    const int64_t head = x.stride(-2), channel = x.stride(-1);
    if (cu_seqlens) return {x.data_ptr(), 0, 0, x.stride(0), head, channel};
    if (valid_hw) return {x.data_ptr(), x.stride(0), x.stride(1), x.stride(2), head, channel};
    return {x.data_ptr(), x.stride(0), 0, x.stride(1), head, channel};
  }

 private:
  static void check(const Tensor& sizes, const char* name, const Tensor& x, int64_t dim) {
    TORCH_CHECK_TYPE(sizes.scalar_type() == at::kInt, "l2vit_mm: ", name, " is ",
                     sizes.scalar_type(), "; the operators take int32");
    TORCH_CHECK_VALUE(sizes.is_contiguous() && sizes.device() == x.device() && x.dim() == dim,
                      "l2vit_mm: ", name, " (", sizes.device(), ", strides ", sizes.strides(),
                      ") with a tensor of the shape ", x.sizes(), " on ", x.device());
  }
};

struct Options {
  double factor;
  bool relu, mean;
  double denom_min, eps;
};

// What forward and backward have in common. `scale` holds the values that the result points to.
Attention make_attention(const Tensor& q, const Tensor& k, const Tensor& v, OptionalTensor& scale,
                         Sizes& sizes, const Options& options) {
  for (const Tensor* x : {&k, &v})
    TORCH_CHECK_VALUE(x->scalar_type() == q.scalar_type() && x->device() == q.device() &&
                          x->dim() == q.dim() && q.dim() >= 3,
                      "l2vit_mm: q, k and v differ in type, device or dimensions");
  TORCH_CHECK_VALUE(k.sizes().slice(q.dim() - 2) == q.sizes().slice(q.dim() - 2) &&
                        v.sizes().slice(0, q.dim() - 1) == k.sizes().slice(0, q.dim() - 1) &&
                        (!sizes.valid_hw || k.sizes() == q.sizes()),
                    "l2vit_mm: shapes q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes());
  TORCH_CHECK_VALUE(q.size(-2) > 0, "l2vit_mm: no heads");
  for (const Tensor* x : {&q, &v})
    TORCH_CHECK_VALUE(x->size(-1) > 0 && x->size(-1) <= kMostChannels, "l2vit_mm: a head has ",
                      x->size(-1), " channels; accepted are 1 to ", kMostChannels);
  if (scale) {
    TORCH_CHECK_VALUE(scale->numel() == q.size(-2), "l2vit_mm: scale has ", scale->numel(),
                      " values for ", q.size(-2), " heads");
    scale = in_acc(*scale, q);
  }
  for (OptionalTensor* x : {&sizes.cu_seqlens, &sizes.cu_seqlens_k, &sizes.valid_hw})
    if (*x) *x = (*x)->contiguous();
  Attention a{};
  a.dtype = dtype_of(q);
  a.heads = q.size(-2);
  a.head_dim = q.size(-1);
  a.value_dim = v.size(-1);
  a.queries = sizes.queries(q);
  a.keys = sizes.keys(k);
  TORCH_CHECK_VALUE(a.queries.images == a.keys.images, "l2vit_mm: ", a.queries.images,
                    " images of queries, ", a.keys.images, " of keys");
  a.relu = options.relu;
  a.mean = options.mean;
  a.denom_min = options.denom_min;
  a.eps = options.eps;
  a.factor = options.factor;
  a.scale = scale ? scale->const_data_ptr() : nullptr;
  a.q = sizes.view(q);
  a.k = sizes.view(k);
  a.v = sizes.view(v);
  return a;
}

// An uninitialised tensor. Linux gives a large new block of memory page by page as it is first
// written to; in pages of 2 MiB, where the system leaves that to programs, this takes a fraction of
// the time, which is as long as the computation otherwise.
Tensor make_empty(at::IntArrayRef shape, const at::TensorOptions& options) {
  Tensor x = at::empty(shape, options);
#ifdef __linux__
  constexpr uintptr_t kHugePage = 2 << 20;
  if (x.is_cpu() && x.nbytes() >= 2 * kHugePage) {
    const uintptr_t data = reinterpret_cast<uintptr_t>(x.data_ptr());
    const uintptr_t begin = (data + kHugePage - 1) & ~(kHugePage - 1);
    madvise(reinterpret_cast<void*>(begin), (data + x.nbytes() - begin) & ~(kHugePage - 1),
            MADV_HUGEPAGE);  // a hint: if it fails nothing is lost
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

// Runs the CPU function, or the CUDA launcher with the workspace that it asks for.
#ifdef L2VIT_MM_WITH_CUDA
template <class Call>
void on_cuda(Call& call, const Tensor& like, int64_t workspace_size,
             const char* (*launch)(const Call&, void*)) {
  const Tensor workspace = at::empty({workspace_size}, like.options().dtype(at::kByte));
  call.workspace = workspace.data_ptr();
  const char* error = launch(call, c10::cuda::getCurrentCUDAStream().stream());
  TORCH_CHECK(!error, "l2vit_mm: CUDA: ", error);
}
#define L2VIT_RUN(function, call, like, backward)                                      \
  if ((like).is_cuda())                                                                \
    on_cuda(call, like, cuda::function##_workspace(call, backward),                    \
            backward ? cuda::function##_backward : cuda::function##_forward);          \
  else                                                                                 \
    (backward ? cpu::function##_backward : cpu::function##_forward)(call)
#else
#define L2VIT_RUN(function, call, like, backward) \
  (backward ? cpu::function##_backward : cpu::function##_forward)(call)
#endif

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                           OptionalTensor scale, Sizes sizes,
                                           const Options& options) {
  const c10::OptionalDeviceGuard guard(q.device());
  Attention a = make_attention(q, k, v, scale, sizes, options);
  const Tensor out = empty_with_channels(q, a.value_dim);
  const Tensor state = empty_acc({a.queries.images, a.heads, a.head_dim, a.value_dim}, q);
  const Tensor key_sum = empty_acc({a.queries.images, a.heads, a.head_dim}, q);
  a.out = sizes.view(out);
  a.state = state.data_ptr();
  a.key_sum = key_sum.data_ptr();
  L2VIT_RUN(attention, a, q, false);
  return {out, state, key_sum};
}

// Fills dq, dk and dv; returns the gradient of scale, empty without one.
Tensor backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                OptionalTensor scale, const Tensor& state, const Tensor& key_sum, Sizes sizes,
                const Options& options, const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  const c10::OptionalDeviceGuard guard(q.device());
  const at::ScalarType scale_type = scale ? scale->scalar_type() : acc_of(q);
  Attention a = make_attention(q, k, v, scale, sizes, options);
  const int64_t state_size = a.queries.images * a.heads * a.head_dim * a.value_dim;
  TORCH_CHECK_VALUE(dout.sizes().slice(0, q.dim() - 1) == q.sizes().slice(0, q.dim() - 1) &&
                        dout.size(-1) == a.value_dim && dout.scalar_type() == q.scalar_type() &&
                        dout.device() == q.device(),
                    "l2vit_mm: dout is ", dout.scalar_type(), " ", dout.sizes());
  for (const Tensor* x : {&state, &key_sum})
    TORCH_CHECK_VALUE(x->is_contiguous() && x->scalar_type() == acc_of(q) &&
                          x->device() == q.device() &&
                          x->numel() == (x == &state ? state_size : state_size / a.value_dim),
                      "l2vit_mm: state and key_sum are not those of this forward call");
  const Tensor dscale = empty_acc({scale ? a.heads : 0}, q);
  const Tensor dstate = at::empty_like(state), dkey_sum = at::empty_like(key_sum);
  a.state = state.data_ptr();
  a.key_sum = key_sum.data_ptr();
  a.dout = sizes.view(dout);
  a.dq = sizes.view(dq);
  a.dk = sizes.view(dk);
  a.dv = sizes.view(dv);
  a.dscale = scale ? dscale.data_ptr() : nullptr;
  a.dstate = dstate.data_ptr();
  a.dkey_sum = dkey_sum.data_ptr();
  L2VIT_RUN(attention, a, q, true);
  return dscale.to(scale_type);
}

using Result = std::tuple<Tensor, Tensor, Tensor>;

Result linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const OptionalTensor& scale, double factor,
                        const OptionalTensor& cu_seqlens, const OptionalTensor& cu_seqlens_k,
                        const OptionalTensor& valid_hw, bool relu, bool mean, double denom_min,
                        double eps) {
  return forward(q, k, v, scale, {cu_seqlens, cu_seqlens_k, valid_hw},
                 {factor, relu, mean, denom_min, eps});
}

std::tuple<Tensor, Tensor, Tensor, Tensor> linear_attention_backward(
    const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
    const OptionalTensor& scale, double factor, const Tensor& state, const Tensor& key_sum,
    const OptionalTensor& cu_seqlens, const OptionalTensor& cu_seqlens_k,
    const OptionalTensor& valid_hw, bool relu, bool mean, double denom_min, double eps) {
  const Tensor dq = empty_with_channels(q, q.size(-1)), dk = empty_with_channels(k, k.size(-1)),
               dv = empty_with_channels(v, v.size(-1));
  const Tensor dscale =
      backward(dout, q, k, v, scale, state, key_sum, {cu_seqlens, cu_seqlens_k, valid_hw},
               {factor, relu, mean, denom_min, eps}, dq, dk, dv);
  return {dq, dk, dv, dscale};
}

void check_projection(const Tensor& qkv) {
  TORCH_CHECK_VALUE(qkv.dim() >= 4 && qkv.size(-3) == 3, "l2vit_mm: qkv has the shape ",
                    qkv.sizes());
}

Result linear_attention_qkv(const Tensor& qkv, const OptionalTensor& scale, double factor,
                            const OptionalTensor& cu_seqlens, const OptionalTensor& valid_hw,
                            bool relu, bool mean, double denom_min, double eps) {
  check_projection(qkv);
  return forward(qkv.select(-3, 0), qkv.select(-3, 1), qkv.select(-3, 2), scale,
                 {cu_seqlens, std::nullopt, valid_hw}, {factor, relu, mean, denom_min, eps});
}

std::tuple<Tensor, Tensor> linear_attention_qkv_backward(
    const Tensor& dout, const Tensor& qkv, const OptionalTensor& scale, double factor,
    const Tensor& state, const Tensor& key_sum, const OptionalTensor& cu_seqlens,
    const OptionalTensor& valid_hw, bool relu, bool mean, double denom_min, double eps) {
  check_projection(qkv);
  const Tensor dqkv = empty_with_channels(qkv, qkv.size(-1));
  const Tensor dscale = backward(
      dout, qkv.select(-3, 0), qkv.select(-3, 1), qkv.select(-3, 2), scale, state, key_sum,
      {cu_seqlens, std::nullopt, valid_hw}, {factor, relu, mean, denom_min, eps},
      dqkv.select(-3, 0), dqkv.select(-3, 1), dqkv.select(-3, 2));
  return {dqkv, dscale};
}

// What a FocusedMap points to.
struct FocusedTensors {
  Tensor x, s;
  OptionalTensor pos;
};

FocusedMap make_focused_map(const Tensor& x, const Tensor& s, const OptionalTensor& pos,
                            double power, FocusedTensors& tensors) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(-1) >= 1 && s.numel() == x.size(-1),
                    "l2vit_mm: shapes x ", x.sizes(), ", s ", s.sizes());
  const int64_t channels = x.size(-1), rows = x.numel() / channels;
  // Rows that are equally spaced runs, as in a view of a projection, are not copied.
  tensors.x = (x.stride(-1) == 1 ? x : x.contiguous()).reshape({rows, channels});
  tensors.s = in_acc(s, x);
  if (pos) {
    TORCH_CHECK_VALUE(pos->dim() == 2 && pos->size(1) == channels &&
                          (rows == 0 || (pos->size(0) > 0 && rows % pos->size(0) == 0)),
                      "l2vit_mm: shapes x ", x.sizes(), ", pos ", pos->sizes());
    tensors.pos = in_acc(*pos, x);
  }
  FocusedMap f{};
  f.dtype = dtype_of(x);
  f.rows = rows;
  f.channels = channels;
  f.power = power;
  f.x = tensors.x.const_data_ptr();
  f.x_stride = tensors.x.stride(0);
  f.s = tensors.s.const_data_ptr();
  if (pos && rows) {
    f.pos = tensors.pos->const_data_ptr();
    f.pos_rows = pos->size(0);
  }
  return f;
}

Tensor focused_feature_map(const Tensor& x, const Tensor& s, const OptionalTensor& pos,
                           double power) {
  const c10::OptionalDeviceGuard guard(x.device());
  FocusedTensors tensors;
  FocusedMap f = make_focused_map(x, s, pos, power, tensors);
  const Tensor out = make_empty(x.sizes(), x.options());
  f.out = out.data_ptr();
  L2VIT_RUN(focused_map, f, x, false);
  return out;
}

std::tuple<Tensor, Tensor> focused_feature_map_backward(const Tensor& dout, const Tensor& x,
                                                        const Tensor& s, const OptionalTensor& pos,
                                                        double power) {
  TORCH_CHECK_VALUE(dout.sizes() == x.sizes() && dout.scalar_type() == x.scalar_type() &&
                        dout.device() == x.device(),
                    "l2vit_mm: dout is ", dout.scalar_type(), " ", dout.sizes());
  const c10::OptionalDeviceGuard guard(x.device());
  FocusedTensors tensors;
  FocusedMap f = make_focused_map(x, s, pos, power, tensors);
  const Tensor gradient = dout.contiguous(), dx = make_empty(x.sizes(), x.options());
  const Tensor ds = empty_acc({f.channels}, x);
  f.dout = gradient.const_data_ptr();
  f.dx = dx.data_ptr();
  f.ds = ds.data_ptr();
  L2VIT_RUN(focused_map, f, x, true);
  return {dx, ds.to(s.scalar_type()).view(s.sizes())};
}

std::string build_info() {
  std::string info = "torch=" TORCH_VERSION "\ncompiler=" __VERSION__ "\ncpu=";
  info += cpu::kernels_name();
#ifdef L2VIT_MM_WITH_CUDA
  info += "\ncuda=" L2VIT_MM_CUDA "\narchs=" L2VIT_MM_ARCHS;
#endif
  return info;
}

}  // namespace

TORCH_LIBRARY(l2vit_mm, m) {
#define L2VIT_OPTIONS "bool relu, bool mean, float denom_min, float eps"
  m.def("linear_attention(Tensor q, Tensor k, Tensor v, Tensor? scale, float factor, "
        "Tensor? cu_seqlens, Tensor? cu_seqlens_k, Tensor? valid_hw, " L2VIT_OPTIONS
        ") -> (Tensor out, Tensor state, Tensor key_sum)");
  m.def("linear_attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor? scale, "
        "float factor, Tensor state, Tensor key_sum, Tensor? cu_seqlens, Tensor? cu_seqlens_k, "
        "Tensor? valid_hw, " L2VIT_OPTIONS ") -> (Tensor dq, Tensor dk, Tensor dv, Tensor dscale)");
  m.def("linear_attention_qkv(Tensor qkv, Tensor? scale, float factor, Tensor? cu_seqlens, "
        "Tensor? valid_hw, " L2VIT_OPTIONS ") -> (Tensor out, Tensor state, Tensor key_sum)");
  m.def("linear_attention_qkv_backward(Tensor dout, Tensor qkv, Tensor? scale, float factor, "
        "Tensor state, Tensor key_sum, Tensor? cu_seqlens, Tensor? valid_hw, " L2VIT_OPTIONS
        ") -> (Tensor dqkv, Tensor dscale)");
  m.def("focused_feature_map(Tensor x, Tensor s, Tensor? pos, float power) -> Tensor");
  m.def("focused_feature_map_backward(Tensor dout, Tensor x, Tensor s, Tensor? pos, float power)"
        " -> (Tensor dx, Tensor ds)");
  m.def("build_info() -> str", build_info);
}

void implement(torch::Library& m) {
  m.impl("linear_attention", linear_attention);
  m.impl("linear_attention_backward", linear_attention_backward);
  m.impl("linear_attention_qkv", linear_attention_qkv);
  m.impl("linear_attention_qkv_backward", linear_attention_qkv_backward);
  m.impl("focused_feature_map", focused_feature_map);
  m.impl("focused_feature_map_backward", focused_feature_map_backward);
}

TORCH_LIBRARY_IMPL(l2vit_mm, CPU, m) { implement(m); }
#ifdef L2VIT_MM_WITH_CUDA
TORCH_LIBRARY_IMPL(l2vit_mm, CUDA, m) { implement(m); }
#endif

}  // namespace l2vit
