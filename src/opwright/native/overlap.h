#pragma once

#include <ATen/core/Tensor.h>

namespace opwright {

// Whether two tensors may have an element in common, as writing.py has it: false only where they have none.
bool may_share(const at::Tensor& a, const at::Tensor& b);

}  // namespace opwright
