#include <opwright/kernel.h>

Tensor scale_cuda(const Tensor& x, double factor) {
    return map([] __device__(auto x, auto factor) { return x * factor; }, x, factor);
}

// x lends its shape and dtype alone, and they are those of grad.
Tensor scale_backward_cuda(const Tensor& grad, const Tensor&, double factor, const Wanted&) {
    return scale_cuda(grad, factor);
}

OPWRIGHT_KERNEL(scale, CUDA, scale_cuda);
OPWRIGHT_KERNEL(scale_backward, CUDA, scale_backward_cuda);
