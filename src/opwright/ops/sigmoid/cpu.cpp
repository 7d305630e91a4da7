#include <opwright/kernel.h>

Tensor sigmoid_cpu(const Tensor& x) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map([](C x) { return simd::sigmoid(x); }, x);
    });
}

Tensor sigmoid_backward_cpu(const Tensor& grad, const Tensor& result, const Wanted&) {
    return compute(result, [&](auto zero) {
        using C = decltype(zero);
        Tensor out = empty(broadcast(grad, broadcast(result, with_number(result))), dtype(result));
        return map_into(out, [](C g, C s) { return g * (s * (1 - s)); }, grad, result);
    });
}

OPWRIGHT_KERNEL(sigmoid, CPU, sigmoid_cpu);
OPWRIGHT_KERNEL(sigmoid_backward, CPU, sigmoid_backward_cpu);
