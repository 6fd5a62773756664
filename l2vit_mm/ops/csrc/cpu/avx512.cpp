// The kernels for x86 with AVX-512.
#include "kernels.h"
#ifdef L2VIT_X86_KERNELS
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false ones in GCC's own intrinsics
#define L2VIT_ISA avx512
#define L2VIT_VECTOR_BYTES 64
#define L2VIT_TARGET _Pragma("GCC target(\"avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c\")")
#include "kernels_impl.h"
#endif
