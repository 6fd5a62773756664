// The kernels for x86 with AVX2, FMA and F16C.
#include "kernels.h"
#ifdef L2VIT_X86_KERNELS
#define L2VIT_ISA avx2
#define L2VIT_VECTOR_BYTES 32
#define L2VIT_TARGET _Pragma("GCC target(\"avx2,fma,f16c\")")
#include "kernels_impl.h"
#endif
