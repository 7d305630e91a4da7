// Sums over the dimensions that an operand was broadcast along, by PyTorch.
#pragma once

#include <opwright/call.h>
#include <opwright/layout.h>

#pragma GCC visibility push(hidden)

namespace opwright {

// x summed to a smaller shape that broadcasts to its own, by PyTorch and in the given dtype; the result is contiguous.
inline Tensor sum_to(const Layout& shape, const Tensor& x, DType dtype) {
    const Layout in(x);
    const int missing = in.dim - shape.dim;
    std::vector<int64_t> summed;
    for (int d = 0; d < in.dim; ++d) {
        if (d < missing || (shape.size[d - missing] == 1 && in.size[d] != 1)) summed.push_back(d);
    }
    const Tensor sum = call("aten::sum", "dim_IntList", x, std::optional(summed), true, std::optional(dtype));
    return call("aten::reshape", "", sum, std::vector<int64_t>(shape.size, shape.size + shape.dim));
}

}  // namespace opwright

#pragma GCC visibility pop
