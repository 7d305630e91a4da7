#include <opwright/kernel.h>

Tensor scale_cpu(const Tensor& x, double factor) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map_into(empty(with_number(x), dtype(x)), [factor = C(factor)](C x) { return x * factor; }, x);
    });
}

// x lends its shape and dtype alone, and they are those of grad.
Tensor scale_backward_cpu(const Tensor& grad, const Tensor&, double factor, const Wanted&) {
    return scale_cpu(grad, factor);
}

OPWRIGHT_KERNEL(scale, CPU, scale_cpu);
OPWRIGHT_KERNEL(scale_backward, CPU, scale_backward_cpu);
