// The CPU kernels as seen by the functions of backend.h: one table of functions per instruction set
// and type. Free of torch.
#pragma once
#include "../params.h"

namespace l2vit::cpu {

// The unit of work of a thread: some tokens of one image and some heads.
struct Item {
  int64_t image;
  Region region;       // the tokens of the image, those of q or those of k and v
  int64_t begin, end;  // range of these tokens
  int64_t head_begin, head_end, max_heads;  // max_heads: the most that an item of this call has
  int64_t partners;  // tokens of the image on the other side: keys for q, queries for k
  bool stream;       // the results do not fit into the caches
  void* partial;     // (H, partial_size) Acc: sums over these tokens, per head
};

// The kernels for tensors of one type.
struct Kernels {
  // Bytes of scratch memory that a thread needs for items of `heads` heads; zero at first.
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
  // Rows begin to end. `inverse` (channels) Acc is 1 / softplus(s); the gradient also writes the
  // sum of -du u over these rows, (channels) Acc.
  void (*focused_map)(const FocusedMap&, int64_t begin, int64_t end, const void* inverse,
                      void* scratch);
  void (*focused_map_gradient)(const FocusedMap&, int64_t begin, int64_t end, const void* inverse,
                               void* partial, void* scratch);
};

// The target pragma of kernels_impl.h is specific to GCC.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define L2VIT_X86_KERNELS
#endif

// One entry per Dtype, in its order.
namespace plain {
extern const Kernels kernels[4];
}
#ifdef L2VIT_X86_KERNELS
namespace avx2 {
extern const Kernels kernels[4];
}
namespace avx512 {
extern const Kernels kernels[4];
}
#endif

// The kernels for a type, of the instruction set that this processor runs.
const Kernels& kernels(Dtype dtype);

}  // namespace l2vit::cpu
