#include <opwright/kernel.h>

Tensor axpby_cuda(const Tensor& x, const Tensor& y, double a, double b) {
    // a·x and b·y are tensors of their own in the reference, and their strides decide.
    Tensor out = empty(broadcast(with_number(x), with_number(y)), dtype(x));
    return map_into(out, [] __device__(auto x, auto y, auto a, auto b) { return a * x + b * y; }, x, y, a, b);
}

// What x is owed: a·grad, summed over the dimensions that x was broadcast along.
static Tensor scaled(const Tensor& grad, const Tensor& x, double a) {
    const DType sums = dtype(grad) == DType::Double ? DType::Double : DType::Float;
    const Tensor sum = Layout(grad).same_shape(x) ? grad : sum_to(x, grad, sums);
    return map_into(empty(with_number(sum), dtype(x)), [] __device__(auto g, auto a) { return a * g; }, sum, a);
}

std::tuple<Tensor, Tensor> axpby_backward_cuda(const Tensor& grad, const Tensor& x, const Tensor& y, double a, double b,
                                               const Wanted& wanted) {
    const Layout shape(grad);
    if (wants(wanted, 0) && wants(wanted, 1) && shape.same_shape(x) && shape.same_shape(y)) {
        Tensor p = empty(with_number(grad), dtype(x)), q = empty(with_number(grad), dtype(x));
        map_into(into(p, q), [] __device__(auto g, auto a, auto b) { return several(a * g, b * g); }, grad, a, b);
        return {p, q};
    }
    return {wants(wanted, 0) ? scaled(grad, x, a) : Tensor(), wants(wanted, 1) ? scaled(grad, y, b) : Tensor()};
}

OPWRIGHT_KERNEL(axpby, CUDA, axpby_cuda);
OPWRIGHT_KERNEL(axpby_backward, CUDA, axpby_backward_cuda);
