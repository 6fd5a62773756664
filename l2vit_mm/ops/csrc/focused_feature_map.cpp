// torch.ops.l2vit_mm.focused_feature_map and its backward operator.
#include "bindings.h"

namespace l2vit {
namespace {

// The tensors that a FocusedMap points into.
struct FocusedTensors {
  Tensor x, s;
  OptionalTensor pos;
};

FocusedMap make_focused_map(const Tensor& x, const Tensor& s, const OptionalTensor& pos,
                            double power, FocusedTensors& tensors) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(-1) >= 1 && s.numel() == x.size(-1),
                    "l2vit_mm: x and s must have shapes (..., C) and (C), got ", x.sizes(), " and ",
                    s.sizes());
  const int64_t channels = x.size(-1), rows = x.numel() / channels;
  // Equally spaced rows with contiguous channels, as in a view of a projection, are not copied.
  tensors.x = (x.stride(-1) == 1 ? x : x.contiguous()).reshape({rows, channels});
  tensors.s = to_acc(s, x);
  if (pos) {
    TORCH_CHECK_VALUE(pos->dim() == 2 && pos->size(1) == channels &&
                          (rows == 0 || (pos->size(0) > 0 && rows % pos->size(0) == 0)),
                      "l2vit_mm: pos must have shape (N, ", channels, ") with N dividing ", rows,
                      ", got ", pos->sizes());
    tensors.pos = to_acc(*pos, x);
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

template <class Backend>
Tensor focused_feature_map(const Tensor& x, const Tensor& s, const OptionalTensor& pos,
                           double power) {
  const c10::OptionalDeviceGuard guard(x.device());
  FocusedTensors tensors;
  FocusedMap f = make_focused_map(x, s, pos, power, tensors);
  const Tensor out = make_empty(x.sizes(), x.options());
  f.out = out.data_ptr();
  Backend::forward(f, x);
  return out;
}

template <class Backend>
std::tuple<Tensor, Tensor> focused_feature_map_backward(const Tensor& dout, const Tensor& x,
                                                        const Tensor& s, const OptionalTensor& pos,
                                                        double power) {
  TORCH_CHECK_VALUE(dout.sizes() == x.sizes() && dout.scalar_type() == x.scalar_type() &&
                        dout.device() == x.device(),
                    "l2vit_mm: dout must be like x, got ", dout.scalar_type(), " ", dout.sizes());
  const c10::OptionalDeviceGuard guard(x.device());
  FocusedTensors tensors;
  FocusedMap f = make_focused_map(x, s, pos, power, tensors);
  const Tensor gradient = dout.contiguous(), dx = make_empty(x.sizes(), x.options());
  const Tensor ds = empty_acc({f.channels}, x);
  f.dout = gradient.const_data_ptr();
  f.dx = dx.data_ptr();
  f.ds = ds.data_ptr();
  Backend::backward(f, x);
  return {dx, ds.to(s.scalar_type()).view(s.sizes())};
}

template <class Backend> void implement(torch::Library& m) {
  m.impl("focused_feature_map", focused_feature_map<Backend>);
  m.impl("focused_feature_map_backward", focused_feature_map_backward<Backend>);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(l2vit_mm, m) {
  m.def("focused_feature_map(Tensor x, Tensor s, Tensor? pos, float power) -> Tensor");
  m.def(
      "focused_feature_map_backward(Tensor dout, Tensor x, Tensor s, Tensor? pos, float power)"
      " -> (Tensor dx, Tensor ds)");
}

TORCH_LIBRARY_IMPL(l2vit_mm, CPU, m) { implement<Cpu>(m); }
#ifdef L2VIT_MM_WITH_CUDA
TORCH_LIBRARY_IMPL(l2vit_mm, CUDA, m) { implement<Cuda>(m); }
#endif

}  // namespace l2vit
