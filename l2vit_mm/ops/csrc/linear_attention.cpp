// torch.ops.l2vit_mm.linear_attention, linear_attention_qkvpacked and their backward operators.
#include <ATen/ops/empty_like.h>

#include <string>

#include "bindings.h"

namespace l2vit {
namespace {

// The image sizes of a call. They decide the layout of q, k, v and dout: dense (B, N, H, D), packed
// (T, H, D) or padded maps (B, Hmax, Wmax, H, D).
struct Sizes {
  OptionalTensor cu_seqlens, cu_seqlens_k, valid_hw;

  Layout queries(const Tensor& q) const { return layout(q, "cu_seqlens", cu_seqlens); }
  Layout keys(const Tensor& k) const {
    return cu_seqlens_k ? layout(k, "cu_seqlens_k", cu_seqlens_k)
                        : layout(k, "cu_seqlens", cu_seqlens);
  }

  View view(const Tensor& x) const {
    const int64_t head = x.stride(-2), channel = x.stride(-1);
    if (cu_seqlens) return {x.data_ptr(), 0, 0, x.stride(0), head, channel};
    if (valid_hw) return {x.data_ptr(), x.stride(0), x.stride(1), x.stride(2), head, channel};
    return {x.data_ptr(), x.stride(0), 0, x.stride(1), head, channel};
  }

 private:
  Layout layout(const Tensor& x, const char* name, const OptionalTensor& cu_seqlens) const {
    if (cu_seqlens) {
      check(*cu_seqlens, name, x, 3);
      TORCH_CHECK_VALUE(cu_seqlens->dim() == 1 && cu_seqlens->numel() > 0, "l2vit_mm: ", name,
                        " must have shape (B + 1,), got ", cu_seqlens->sizes());
      const int64_t images = cu_seqlens->numel() - 1;
      const int32_t* values = cu_seqlens->const_data_ptr<int32_t>();
      if (x.is_cpu()) {
        TORCH_CHECK_VALUE(values[0] == 0, "l2vit_mm: ", name, " must start with 0, got ",
                          values[0]);
        TORCH_CHECK_VALUE(values[images] <= x.size(0), "l2vit_mm: ", name,
                          " must end with at most ", x.size(0), ", got ", values[images]);
        for (int64_t i = 0; i < images; ++i)
          TORCH_CHECK_VALUE(values[i] <= values[i + 1], "l2vit_mm: ", name,
                            " must not decrease, got ", values[i], " before ", values[i + 1]);
      }
      return {images, 1, x.size(0), values, nullptr};
    }
    if (valid_hw) {
      check(*valid_hw, "valid_hw", x, 5);
      TORCH_CHECK_VALUE(
          valid_hw->dim() == 2 && valid_hw->size(0) == x.size(0) && valid_hw->size(1) == 2,
          "l2vit_mm: valid_hw must have shape (", x.size(0), ", 2), got ", valid_hw->sizes());
      const int32_t* values = valid_hw->const_data_ptr<int32_t>();
      if (x.is_cpu())
        for (int64_t i = 0; i < 2 * x.size(0); ++i)
          TORCH_CHECK_VALUE(values[i] >= 0 && values[i] <= x.size(1 + i % 2),
                            "l2vit_mm: valid_hw must be 0 to ", x.size(1 + i % 2), " for image ",
                            i / 2, ", got ", values[i]);
      return {x.size(0), x.size(1), x.size(2), nullptr, values};
    }
    TORCH_CHECK_VALUE(x.dim() == 4, "l2vit_mm: a dense tensor must have shape (B, N, H, D), got ",
                      x.sizes());
    return {x.size(0), 1, x.size(1), nullptr, nullptr};
  }

  static void check(const Tensor& sizes, const char* name, const Tensor& x, int64_t dim) {
    TORCH_CHECK_TYPE(sizes.scalar_type() == at::kInt, "l2vit_mm: ", name, " must be int32, got ",
                     sizes.scalar_type());
    TORCH_CHECK_VALUE(sizes.is_contiguous() && sizes.device() == x.device() && x.dim() == dim,
                      "l2vit_mm: ", name, " must be contiguous, on the device of tensors of ", dim,
                      " dimensions, got strides ", sizes.strides(), " on ", sizes.device(),
                      " with a tensor of shape ", x.sizes(), " on ", x.device());
  }
};

struct Options {
  double factor;
  bool relu, mean;
  double denom_min, eps;
};

// The part of a call that forward and backward share. The result points into `scale` and `sizes`,
// which are converted as needed.
Attention make_attention(const Tensor& q, const Tensor& k, const Tensor& v, OptionalTensor& scale,
                         Sizes& sizes, const Options& options) {
  for (const Tensor* x : {&k, &v})
    TORCH_CHECK_VALUE(
        x->scalar_type() == q.scalar_type() && x->device() == q.device() && x->dim() == q.dim() &&
            q.dim() >= 3,
        "l2vit_mm: q, k and v must have the same type, device and number of dimensions");
  TORCH_CHECK_VALUE(k.sizes().slice(q.dim() - 2) == q.sizes().slice(q.dim() - 2) &&
                        v.sizes().slice(0, q.dim() - 1) == k.sizes().slice(0, q.dim() - 1) &&
                        (!sizes.valid_hw || k.sizes() == q.sizes()),
                    "l2vit_mm: q, k and v must have matching shapes, got ", q.sizes(), ", ",
                    k.sizes(), " and ", v.sizes());
  TORCH_CHECK_VALUE(q.size(-2) > 0, "l2vit_mm: q must have 1 or more heads, got 0");
  for (const Tensor* x : {&q, &v})
    TORCH_CHECK_VALUE(x->size(-1) > 0 && x->size(-1) <= kMaxHeadDim,
                      "l2vit_mm: a head must have 1 to ", kMaxHeadDim, " channels, got ",
                      x->size(-1));
  if (scale) {
    TORCH_CHECK_VALUE(scale->numel() == q.size(-2), "l2vit_mm: scale must have ", q.size(-2),
                      " values, one per head, got ", scale->numel());
    scale = to_acc(*scale, q);
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
  TORCH_CHECK_VALUE(a.queries.images == a.keys.images,
                    "l2vit_mm: q and k must be of the same number of images, got ",
                    a.queries.images, " and ", a.keys.images);
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

using Result = std::tuple<Tensor, Tensor, Tensor>;  // out, state, key_sum

template <class Backend>
Result forward(const Tensor& q, const Tensor& k, const Tensor& v, OptionalTensor scale, Sizes sizes,
               const Options& options) {
  const c10::OptionalDeviceGuard guard(q.device());
  Attention a = make_attention(q, k, v, scale, sizes, options);
  const Tensor out = empty_with_channels(q, a.value_dim);
  const Tensor state = empty_acc({a.queries.images, a.heads, a.head_dim, a.value_dim}, q);
  const Tensor key_sum = empty_acc({a.queries.images, a.heads, a.head_dim}, q);
  a.out = sizes.view(out);
  a.state = state.data_ptr();
  a.key_sum = key_sum.data_ptr();
  Backend::forward(a, q);
  return {out, state, key_sum};
}

// Writes dq, dk and dv; returns the gradient of scale, empty without a scale.
template <class Backend>
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
                    "l2vit_mm: dout must be like the output, got ", dout.scalar_type(), " ",
                    dout.sizes());
  for (const Tensor* x : {&state, &key_sum})
    TORCH_CHECK_VALUE(
        x->is_contiguous() && x->scalar_type() == acc_of(q) && x->device() == q.device() &&
            x->numel() == (x == &state ? state_size : state_size / a.value_dim),
        "l2vit_mm: state and key_sum must be those of this forward call, got shape ", x->sizes());
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
  Backend::backward(a, q);
  return dscale.to(scale_type);
}

template <class Backend>
Result linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const OptionalTensor& scale, double factor,
                        const OptionalTensor& cu_seqlens, const OptionalTensor& cu_seqlens_k,
                        const OptionalTensor& valid_hw, bool relu, bool mean, double denom_min,
                        double eps) {
  return forward<Backend>(q, k, v, scale, {cu_seqlens, cu_seqlens_k, valid_hw},
                          {factor, relu, mean, denom_min, eps});
}

template <class Backend>
std::tuple<Tensor, Tensor, Tensor, Tensor> linear_attention_backward(
    const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
    const OptionalTensor& scale, double factor, const Tensor& state, const Tensor& key_sum,
    const OptionalTensor& cu_seqlens, const OptionalTensor& cu_seqlens_k,
    const OptionalTensor& valid_hw, bool relu, bool mean, double denom_min, double eps) {
  const Tensor dq = empty_with_channels(q, q.size(-1)), dk = empty_with_channels(k, k.size(-1)),
               dv = empty_with_channels(v, v.size(-1));
  const Tensor dscale =
      backward<Backend>(dout, q, k, v, scale, state, key_sum, {cu_seqlens, cu_seqlens_k, valid_hw},
                        {factor, relu, mean, denom_min, eps}, dq, dk, dv);
  return {dq, dk, dv, dscale};
}

void check_qkv(const Tensor& qkv) {
  TORCH_CHECK_VALUE(qkv.dim() >= 4 && qkv.size(-3) == 3,
                    "l2vit_mm: qkv must have shape (..., 3, H, D), got ", qkv.sizes());
}

template <class Backend>
Result linear_attention_qkvpacked(const Tensor& qkv, const OptionalTensor& scale, double factor,
                                  const OptionalTensor& cu_seqlens, const OptionalTensor& valid_hw,
                                  bool relu, bool mean, double denom_min, double eps) {
  check_qkv(qkv);
  return forward<Backend>(qkv.select(-3, 0), qkv.select(-3, 1), qkv.select(-3, 2), scale,
                          {cu_seqlens, std::nullopt, valid_hw},
                          {factor, relu, mean, denom_min, eps});
}

template <class Backend>
std::tuple<Tensor, Tensor> linear_attention_qkvpacked_backward(
    const Tensor& dout, const Tensor& qkv, const OptionalTensor& scale, double factor,
    const Tensor& state, const Tensor& key_sum, const OptionalTensor& cu_seqlens,
    const OptionalTensor& valid_hw, bool relu, bool mean, double denom_min, double eps) {
  check_qkv(qkv);
  const Tensor dqkv = empty_with_channels(qkv, qkv.size(-1));
  const Tensor dscale = backward<Backend>(
      dout, qkv.select(-3, 0), qkv.select(-3, 1), qkv.select(-3, 2), scale, state, key_sum,
      {cu_seqlens, std::nullopt, valid_hw}, {factor, relu, mean, denom_min, eps},
      dqkv.select(-3, 0), dqkv.select(-3, 1), dqkv.select(-3, 2));
  return {dqkv, dscale};
}

template <class Backend> void implement(torch::Library& m) {
  m.impl("linear_attention", linear_attention<Backend>);
  m.impl("linear_attention_backward", linear_attention_backward<Backend>);
  m.impl("linear_attention_qkvpacked", linear_attention_qkvpacked<Backend>);
  m.impl("linear_attention_qkvpacked_backward", linear_attention_qkvpacked_backward<Backend>);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(l2vit_mm, m) {
  const std::string options = "bool relu, bool mean, float denom_min, float eps";
  m.def(("linear_attention(Tensor q, Tensor k, Tensor v, Tensor? scale, float factor, "
         "Tensor? cu_seqlens, Tensor? cu_seqlens_k, Tensor? valid_hw, " +
         options + ") -> (Tensor out, Tensor state, Tensor key_sum)")
            .c_str());
  m.def(("linear_attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor? scale, "
         "float factor, Tensor state, Tensor key_sum, Tensor? cu_seqlens, Tensor? cu_seqlens_k, "
         "Tensor? valid_hw, " +
         options + ") -> (Tensor dq, Tensor dk, Tensor dv, Tensor dscale)")
            .c_str());
  m.def(("linear_attention_qkvpacked(Tensor qkv, Tensor? scale, float factor, Tensor? cu_seqlens, "
         "Tensor? valid_hw, " +
         options + ") -> (Tensor out, Tensor state, Tensor key_sum)")
            .c_str());
  m.def(("linear_attention_qkvpacked_backward(Tensor dout, Tensor qkv, Tensor? scale, "
         "float factor, Tensor state, Tensor key_sum, Tensor? cu_seqlens, Tensor? valid_hw, " +
         options + ") -> (Tensor dqkv, Tensor dscale)")
            .c_str());
}

TORCH_LIBRARY_IMPL(l2vit_mm, CPU, m) { implement<Cpu>(m); }
#ifdef L2VIT_MM_WITH_CUDA
TORCH_LIBRARY_IMPL(l2vit_mm, CUDA, m) { implement<Cuda>(m); }
#endif

}  // namespace l2vit
