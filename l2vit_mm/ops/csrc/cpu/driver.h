// Linear attention and the focused feature map on the CPU: see ../params.h for what they compute.
#pragma once
#include "../params.h"

namespace l2vit::cpu {

const char* kernels_name();  // the instruction set that is used

void attention_forward(const Attention&);
void attention_backward(const Attention&);
void focused_map_forward(const FocusedMap&);
void focused_map_backward(const FocusedMap&);

}  // namespace l2vit::cpu
