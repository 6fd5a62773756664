// The arguments of the CPU and CUDA kernels, one struct per operator. Plain C++, free of torch.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define L2VIT_HOST_DEVICE __host__ __device__
#else
#define L2VIT_HOST_DEVICE
#endif

namespace l2vit {

// Largest D and Dv of the kernels. Python reads it as torch.ops.l2vit_mm.max_head_dim().
constexpr int64_t kMaxHeadDim = 256;

enum class Dtype { Float64, Float32, Float16, BFloat16 };

// Sums are accumulated in double for Float64 and in float for all other types: the type "Acc".
template <class T> struct AccOf {
  using type = float;
};
template <> struct AccOf<double> {
  using type = double;
};
template <class T> using AccType = typename AccOf<T>::type;

// A type as a value, for generic lambdas.
template <class T> struct Type {
  using type = T;
};

// Calls function(Type<Acc>()).
template <class Function> static inline auto with_acc(Dtype dtype, Function function) {
  return dtype == Dtype::Float64 ? function(Type<double>()) : function(Type<float>());
}

// In bytes.
static inline int64_t element_size(Dtype dtype) {
  return dtype == Dtype::Float64 ? 8 : dtype == Dtype::Float32 ? 4 : 2;
}
static inline int64_t acc_size(Dtype dtype) { return dtype == Dtype::Float64 ? 8 : 4; }

// Strides of a tensor, in elements, over (image, row, token, head, channel).
struct View {
  void* data;
  int64_t image, row, token, head, channel;
};

// The tokens of one image: rows x columns, the first column at `start`.
struct Region {
  int64_t start, rows, columns;
  L2VIT_HOST_DEVICE int64_t count() const { return rows * columns; }
};

// How tokens are divided among the images of a batch.
//   dense         height 1, width N
//   packed        height 1, width T, cu_seqlens (images + 1)
//   padded map    height and width of the map, valid_hw (images, 2)
struct Layout {
  int64_t images, height, width;
  const int32_t* cu_seqlens;  // nullptr unless packed
  const int32_t* valid_hw;    // nullptr unless a padded map

  // Sizes that point outside the tensor are clamped to it, so that no kernel reads or writes
  // outside. (The bindings reject them where the values are in host memory.)
  L2VIT_HOST_DEVICE Region region(int64_t image) const {
    if (cu_seqlens) {
      const int64_t start = clamp(cu_seqlens[image], width);
      const int64_t end = clamp(cu_seqlens[image + 1], width);
      return {start, 1, end > start ? end - start : 0};
    }
    if (valid_hw)
      return {0, clamp(valid_hw[2 * image], height), clamp(valid_hw[2 * image + 1], width)};
    return {0, height, width};
  }

  // Upper bound of the tokens of one image, without reading the sizes.
  L2VIT_HOST_DEVICE int64_t max_tokens() const { return height * width; }

 private:
  L2VIT_HOST_DEVICE static int64_t clamp(int64_t value, int64_t max) {
    return value < 0 ? 0 : value > max ? max : value;
  }
};

// One call of linear attention, forward or backward. With a = phi(q), b = phi(k), sums over the M
// keys of the image, c = factor * scale[head]:
//   state = sum b v^T    key_sum = sum b    s = a . key_sum
//   out = c (a state) / den,   den = max(s, denom_min)   or, with `mean`,   s + eps M
// Backward, with g = dout, h = g / den, u = state h, t = a . u:
//   r = -t / den   (0 where the clamp was active: s < denom_min)
//   da = c (u + r key_sum)     dstate = c sum a h^T     dkey_sum = c sum r a     dscale = factor
//   sum t db = dstate v + dkey_sum   dv = dstate^T b          dq = phi'(q) da          dk = phi'(k)
//   db
// phi is relu (NaN stays NaN; phi'(x) is 0 for x <= 0, else 1) or the identity. An image without
// keys has zero outputs and gradients. Tokens outside every image are set to zero and never read.
struct Attention {
  Dtype dtype;
  int64_t heads, head_dim, value_dim;  // H, D, Dv
  Layout queries, keys;                // of the same number of images
  bool relu, mean;
  double denom_min, eps, factor;
  const void* scale;  // (H) Acc, or nullptr for ones

  View q, k, v;   // (.., H, D), (.., H, D), (.., H, Dv)
  View out;       // forward: (.., H, Dv)
  void* state;    // (images, H, D, Dv) Acc, contiguous: written by forward, read by backward
  void* key_sum;  // (images, H, D) Acc, contiguous: likewise

  View dout;  // backward: (.., H, Dv)
  View dq, dk, dv;
  void* dscale;     // (H) Acc, or nullptr
  void* dstate;     // as state, scratch
  void* dkey_sum;   // as key_sum, scratch
  void* workspace;  // partial sums, of the size that the backend's workspace function returns
};

// Functions of both CPU and CUDA are static: the CPU kernels are compiled once per instruction set,
// and the linker must not merge a copy for one with a copy for another.

// Partial sums of a head: state-like (D x Dv), key_sum-like (D) and scale-like (1), in this order.
L2VIT_HOST_DEVICE static inline int64_t partial_size(const Attention& a) {
  return a.head_dim * a.value_dim + a.head_dim + 1;
}

// The c above.
template <class Acc>
L2VIT_HOST_DEVICE static inline Acc scale_of(const Attention& a, int64_t head) {
  const Acc factor = static_cast<Acc>(a.factor);
  return a.scale ? factor * static_cast<const Acc*>(a.scale)[head] : factor;
}

// One call of the focused feature map f of rows x channels values, forward or backward:
//   u = (relu(x + pos) + 1e-6) / softplus(s)     f = u^power ||u|| / ||u^power||
// f(a u) = a f(u), so powers are taken of w = u / max(u), which is in (0, 1]: none overflows.
// With n1 = ||w||, n2 = ||w^power||, G = sum_i dout_i w_i^power over a row's channels:
//   du_i = (n1 / n2) power w_i^(power - 1) (dout_i - G w_i^power / n2^2) + G w_i / (n1 n2)
//   dx_i = du_i / softplus(s_i)   (0 where x + pos <= 0)
//   ds_i = -sum over rows of du_i u_i sigmoid(s_i) / softplus(s_i)
// Row r has the position encoding r % pos_rows.
struct FocusedMap {
  Dtype dtype;
  int64_t rows, channels, pos_rows;
  double power;
  const void* x;     // (rows, channels), channels contiguous
  int64_t x_stride;  // elements from row to row
  const void* s;     // (channels) Acc
  const void* pos;   // (pos_rows, channels) Acc, or nullptr
  void* out;         // forward: (rows, channels), contiguous
  const void* dout;  // backward: (rows, channels), contiguous
  void* dx;          // (rows, channels), contiguous
  void* ds;          // (channels) Acc
  void* workspace;
};

}  // namespace l2vit
