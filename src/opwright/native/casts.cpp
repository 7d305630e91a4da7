// A cast as autocast makes it for PyTorch's own operators: that of a parameter is made once and kept until the
// outermost autocast ends.

#include <ATen/autocast_mode.h>

#include "once.h"

namespace opwright {
namespace {

at::Tensor cached_cast(const at::Tensor& tensor, at::ScalarType dtype) {
    return at::autocast::cached_cast(dtype, tensor, tensor.device().type());
}

// Made of what it calls, so that autograd records the cast itself.
OPWRIGHT_OPERATORS(m) { m.def("cached_cast(Tensor tensor, ScalarType dtype) -> Tensor", cached_cast); }

}  // namespace
}  // namespace opwright
