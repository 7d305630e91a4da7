#include <opwright/kernel.h>

Tensor cube_cuda(const Tensor& x) {
    Tensor out = empty(broadcast(broadcast(x), x), dtype(x));
    return map_into(out, [] __device__(auto x) { return x * x * x; }, x);
}

Tensor cube_backward_cuda(const Tensor& grad, const Tensor& x, const Wanted&) {
    Tensor out = empty(broadcast(with_number(grad), broadcast(x)), dtype(x));
    return map_into(out, [] __device__(auto g, auto x) { return 3 * g * (x * x); }, grad, x);
}

OPWRIGHT_KERNEL(cube, CUDA, cube_cuda);
OPWRIGHT_KERNEL(cube_backward, CUDA, cube_backward_cuda);
