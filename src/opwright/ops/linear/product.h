// What the kernels of every device do.
#pragma once

#include <opwright/kernel.h>

// PyTorch's matrix product is as good as any; what is saved is the way there through Python.
static Tensor product(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
    return call("aten::linear", "", x, weight, bias);
}

// x as a matrix of rows. -1 would not do for their number where they are empty.
static Tensor rows(const Tensor& x) {
    int64_t count = 1;
    for (int64_t d = 0; d + 1 < x.dim(); ++d) count *= x.size(d);
    return call("aten::reshape", "", x, std::vector<int64_t>{count, x.size(x.dim() - 1)});
}

static std::tuple<Tensor, Tensor, Tensor> product_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                           const std::optional<Tensor>& bias, const Wanted& wanted) {
    const Tensor g = rows(grad);
    return {
        wants(wanted, 0) ? call("aten::matmul", "", grad, weight) : Tensor(),
        wants(wanted, 1) ? call("aten::mm", "", call("aten::t", "", g), rows(x)) : Tensor(),
        bias && wants(wanted, 2)
            ? call("aten::sum", "dim_IntList", g, std::optional(std::vector<int64_t>{0}), false, std::optional<DType>())
            : Tensor(),
    };
}
