#include <opwright/kernel.h>

Tensor axpby_cpu(const Tensor& x, const Tensor& y, double a, double b) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        // a·x and b·y are tensors of their own in the reference, and their strides decide.
        Tensor out = empty(broadcast(with_number(x), with_number(y)), dtype(x));
        return map_into(out, [a = C(a), b = C(b)](C x, C y) { return a * x + b * y; }, x, y);
    });
}

// The gradient of x: a·grad, summed over the dimensions that x was broadcast along.
static Tensor scaled(const Tensor& grad, const Tensor& x, double a) {
    return compute(grad, [&](auto zero) {
        using C = decltype(zero);
        const bool broadcast = !Layout(grad).same_shape(x);
        const Tensor sum = broadcast ? sum_to(x, grad, dtype_of<C>) : grad;
        return map_into(empty(with_number(sum), dtype(x)), [a = C(a)](C g) { return a * g; }, sum);
    });
}

std::tuple<Tensor, Tensor> axpby_backward_cpu(const Tensor& grad, const Tensor& x, const Tensor& y, double a, double b,
                                              const Wanted& wanted) {
    return {wants(wanted, 0) ? scaled(grad, x, a) : Tensor(), wants(wanted, 1) ? scaled(grad, y, b) : Tensor()};
}

OPWRIGHT_KERNEL(axpby, CPU, axpby_cpu);
OPWRIGHT_KERNEL(axpby_backward, CPU, axpby_backward_cpu);
