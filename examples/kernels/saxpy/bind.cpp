#include <opwright/kernel.h>

#include "saxpy.h"

Tensor saxpy_cuda(const Tensor& x, const Tensor& y, double a) {
    Tensor out = empty(Layout(x), dtype(x));
    const int error = saxpy_launch(x.numel(), static_cast<float>(a), data<const float>(x), data<const float>(y),
                                   data<float>(out), stream());
    check(error == 0, "saxpy: ", cudaGetErrorString(static_cast<cudaError_t>(error)));
    return out;
}

OPWRIGHT_KERNEL(saxpy, CUDA, saxpy_cuda);
