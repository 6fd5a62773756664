// The operators on the CPU: one overload of each function per struct of ../params.h.
#pragma once
#include "../params.h"

namespace l2vit::cpu {

const char* instruction_set_name();  // of the kernels in use

void forward(const Attention&);
void backward(const Attention&);
void forward(const FocusedMap&);
void backward(const FocusedMap&);

}  // namespace l2vit::cpu
