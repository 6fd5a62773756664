// The operators on a GPU: one overload of each function per struct of ../params.h.
#pragma once
#include "../params.h"

namespace l2vit::cuda {

// Bytes of workspace, whose contents may be uninitialized. The sizes of the images are not read.
int64_t workspace_size(const Attention&, bool backward);
int64_t workspace_size(const FocusedMap&, bool backward);

// Launch on a cudaStream_t of the current device; return nullptr or an error message.
const char* forward(const Attention&, void* stream);
const char* backward(const Attention&, void* stream);
const char* forward(const FocusedMap&, void* stream);
const char* backward(const FocusedMap&, void* stream);

}  // namespace l2vit::cuda
