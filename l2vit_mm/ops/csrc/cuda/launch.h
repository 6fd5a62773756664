// Linear attention and the focused feature map on a GPU: see ../params.h for what they compute.
#pragma once
#include "../params.h"

namespace l2vit::cuda {

// Bytes of workspace, which may hold anything. Offsets are not read.
int64_t attention_workspace(const Attention&, bool backward);
int64_t focused_map_workspace(const FocusedMap&, bool backward);

// They launch on a cudaStream_t of the current device, and return nullptr or what went wrong.
const char* attention_forward(const Attention&, void* stream);
const char* attention_backward(const Attention&, void* stream);
const char* focused_map_forward(const FocusedMap&, void* stream);
const char* focused_map_backward(const FocusedMap&, void* stream);

}  // namespace l2vit::cuda
