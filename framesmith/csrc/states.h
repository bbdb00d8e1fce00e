// States of tensors and threads in which operators do more than compiled code does.
#pragma once

#include <ATen/core/Tensor.h>

namespace framesmith {

// A dense tensor of one device with its numbers in memory: no wrapper of a function transform, no subclass that sees
// operators, not sparse, quantized or all zeros without memory. It may be lazily conjugated or negated.
bool is_plain(const at::Tensor& t);

// At a level of forward-mode AD. The caller holds the interpreter's lock.
bool is_at_forward_level();

// Within a function transform, or at a level of forward-mode AD. The caller holds the interpreter's lock.
bool is_transformed();

}  // namespace framesmith
