// What the CPU and the CUDA kernels are told about a call. Plain C++, free of torch.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define L2VIT_HOST_DEVICE __host__ __device__
#else
#define L2VIT_HOST_DEVICE
#endif

namespace l2vit {

// Sums are held in double for Float64 and in float for all others ("Acc" below).
enum class Dtype { Float64, Float32, Float16, BFloat16 };

// Where the element of an (image, row, token, head, channel) lies; strides count elements.
struct View {
  void* data;
  int64_t image, row, token, head, channel;
};

// The tokens of one image: rows x columns of them, the first column at `start`.
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

  // Offsets that point outside the tensor (bindings refuse them, where they can see them) are
  // cut to it, so that no kernel reads or writes outside.
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

  // An upper bound of the tokens of one image, without reading the offsets.
  L2VIT_HOST_DEVICE int64_t most_tokens() const { return height * width; }

 private:
  L2VIT_HOST_DEVICE static int64_t clamp(int64_t value, int64_t most) {
    return value < 0 ? 0 : value > most ? most : value;
  }
};

// One call of linear attention, forward or backward. With a = phi(q), b = phi(k), sums over the
// keys of the image, M their number, c = factor * scale[head]:
//   state = sum b v^T    key_sum = sum b    s = a . key_sum
//   out = c (a state) / den,   den = max(s, denom_min)   or, with `mean`,   s + eps M
// Backward, with g = dout, h = g / den, u = state h, t = a . u:
//   r = -t / den   (0 where the clamp was active: s < denom_min)
//   da = c (u + r key_sum)     dstate = c sum a h^T     dkey_sum = c sum r a     dscale = factor sum t
//   db = dstate v + dkey_sum   dv = dstate^T b          dq = phi'(q) da          dk = phi'(k) db
// phi is relu (a NaN stays one; phi'(x) is 0 for x <= 0, else 1) or the identity. An image without
// keys has zero outputs and gradients. Tokens outside every image get zeros, and are never read.
struct Attention {
  Dtype dtype;
  int64_t heads, head_dim, value_dim;  // H, D, Dv
  Layout queries, keys;                // of as many images
  bool relu, mean;
  double denom_min, eps, factor;
  const void* scale;  // (H) Acc, or nullptr for ones

  View q, k, v;       // (.., H, D), (.., H, D), (.., H, Dv)
  View out;           // forward: (.., H, Dv)
  void* state;        // (images, H, D, Dv) Acc, contiguous: written by forward, read by backward
  void* key_sum;      // (images, H, D) Acc, contiguous: likewise

  View dout;          // backward: (.., H, Dv)
  View dq, dk, dv;
  void* dscale;       // (H) Acc, or nullptr
  void* dstate;       // as state, scratch
  void* dkey_sum;     // as key_sum, scratch
  void* workspace;    // partial sums: as many bytes as the backend's workspace function says
};

// One call of the focused feature map, f of rows x channels values, forward or backward:
//   u = (relu(x + pos) + 1e-6) / softplus(s)     f = u^power ||u|| / ||u^power||
// f(a u) = a f(u), so powers are taken of w = u / max(u), within (0, 1]: none overflows.
// With n1 = ||w||, n2 = ||w^power||, G = sum_i dout_i w_i^power over a row's channels:
//   du_i = (n1 / n2) power w_i^(power - 1) (dout_i - G w_i^power / n2^2) + G w_i / (n1 n2)
//   dx_i = du_i / softplus(s_i)   (0 where x + pos <= 0)
//   ds_i = -sum over rows of du_i u_i sigmoid(s_i) / softplus(s_i)
// Row r has the position r % pos_rows.
struct FocusedMap {
  Dtype dtype;
  int64_t rows, channels, pos_rows;
  double power;
  const void* x;      // rows of channels contiguous values,
  int64_t x_stride;   // x_stride elements from row to row
  const void* s;      // (channels) Acc
  const void* pos;    // (pos_rows, channels) Acc, or nullptr
  void* out;          // forward: (rows, channels), contiguous
  const void* dout;   // backward: (rows, channels), contiguous
  void* dx;           // (rows, channels), contiguous
  void* ds;           // (channels) Acc
  void* workspace;
};

}  // namespace l2vit
