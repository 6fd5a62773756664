// The CPU kernels as the driver sees them: one table of functions an instruction set. Free of torch.
#pragma once
#include "../params.h"

namespace l2vit::cpu {

// Some tokens of one image and some heads: what one thread works on at a time.
struct Item {
  int64_t image;
  Region region;               // the image's tokens, those of q or of k and v
  int64_t begin, end;          // which of them
  int64_t head_begin, head_end, most_heads;  // the most that an item of this call has
  int64_t partners;            // tokens of the image on the other side: keys for q, queries for k
  bool stream;                 // results are too large to stay in the caches
  void* partial;               // (H, partial_size) Acc: sums over these tokens, a head at a time
};

// A head's sums: like state, like key_sum, and one like scale.
constexpr int64_t partial_size(const Attention& a) {
  return a.head_dim * a.value_dim + a.head_dim + 1;
}

struct Kernels {
  const char* name;
  // Bytes of scratch that a thread needs for items of so many heads; zeros at first.
  int64_t (*scratch_size)(const Attention&, int64_t heads);
  // (k, v) -> partial state, key_sum
  void (*sum_keys)(const Attention&, const Item&, void* scratch);
  // (q, state, key_sum) -> out
  void (*attend)(const Attention&, const Item&, void* scratch);
  // (q, dout, state, key_sum) -> dq, partial dstate, dkey_sum, dscale, all without `c`
  void (*query_gradient)(const Attention&, const Item&, void* scratch);
  // (k, v, dstate, dkey_sum) -> dk, dv
  void (*key_gradient)(const Attention&, const Item&, void* scratch);

  int64_t (*focused_scratch_size)(const FocusedMap&);
  // Rows begin to end. `inverse` (channels) Acc is 1 / softplus(s); the second also writes the sum
  // over these rows of -du u, (channels) Acc.
  void (*focused_map)(const FocusedMap&, int64_t begin, int64_t end, const void* inverse,
                      void* scratch);
  void (*focused_map_gradient)(const FocusedMap&, int64_t begin, int64_t end, const void* inverse,
                               void* partial, void* scratch);
};

// The target pragma of kernels_impl.h is GCC's.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define L2VIT_X86_KERNELS
#endif

namespace plain { extern const Kernels kernels; }
#ifdef L2VIT_X86_KERNELS
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }
#endif

}  // namespace l2vit::cpu
