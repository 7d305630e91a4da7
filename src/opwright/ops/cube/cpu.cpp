#include <opwright/kernel.h>

Tensor cube_cpu(const Tensor& x) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        Tensor out = empty(broadcast(broadcast(x), x), dtype(x));
        return map_into(out, [](C x) { return x * x * x; }, x);
    });
}

Tensor cube_backward_cpu(const Tensor& grad, const Tensor& x, const Wanted&) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        Tensor out = empty(broadcast(with_number(grad), broadcast(x)), dtype(x));
        return map_into(out, [](C g, C x) { return 3 * g * (x * x); }, grad, x);
    });
}

OPWRIGHT_KERNEL(cube, CPU, cube_cpu);
OPWRIGHT_KERNEL(cube_backward, CPU, cube_backward_cpu);
