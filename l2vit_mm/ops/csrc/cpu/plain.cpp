// The kernels for any processor.
#define L2VIT_ISA plain
#define L2VIT_VECTOR_BYTES 16
#include "kernels_impl.h"
