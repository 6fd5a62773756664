// The CPU kernels, compiled once per instruction set: L2VIT_ISA is its name, L2VIT_VECTOR_BYTES the
// size of a vector register, L2VIT_TARGET the pragma that lets the compiler use it.
//
// A thread processes its tokens in chunks. The heads of a chunk are copied to small matrices,
// converted to Acc and mapped by phi on the way; all products are of such matrices, which stay in
// the caches. Their rows are padded to whole vectors. Tensors are read a token at a time, all heads
// of the item at once: head by head, the rows of a chunk would be short pieces of memory at
// distances that map to the same few cache sets.
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "kernels.h"

// Everything below has internal linkage (unnamed namespaces): otherwise the linker could keep the
// copy for an instruction set that the processor lacks.
#ifdef L2VIT_TARGET
#pragma GCC push_options
L2VIT_TARGET
#endif
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed between functions of this file only

// clang-format off: in this order
#include "simd_impl.h"
#include "linear_attention_impl.h"
#include "focused_map_impl.h"
// clang-format on

namespace l2vit::cpu {
namespace L2VIT_ISA {

template <class T>
static constexpr Kernels kernels_for = {
    scratch_size<T>, sum_keys<T>,
    attend<T>,       query_gradient<T>,
    key_gradient<T>, focused_scratch_size<T>,
    focused_map<T>,  focused_map_gradient<T>,
};

extern const Kernels kernels[] = {kernels_for<double>, kernels_for<float>, kernels_for<Half>,
                                  kernels_for<BFloat16>};

}  // namespace L2VIT_ISA
}  // namespace l2vit::cpu

#ifdef L2VIT_TARGET
#pragma GCC pop_options
#endif
