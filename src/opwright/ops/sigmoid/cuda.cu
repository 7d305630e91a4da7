#include <opwright/kernel.h>

Tensor sigmoid_cuda(const Tensor& x) {
    return map([] __device__(auto x) { return simd::sigmoid(x); }, x);
}

Tensor sigmoid_backward_cuda(const Tensor& grad, const Tensor& result, const Wanted&) {
    Tensor out = empty(broadcast(grad, broadcast(result, with_number(result))), dtype(result));
    return map_into(out, [] __device__(auto g, auto s) { return g * (s * (1 - s)); }, grad, result);
}

OPWRIGHT_KERNEL(sigmoid, CUDA, sigmoid_cuda);
OPWRIGHT_KERNEL(sigmoid_backward, CUDA, sigmoid_backward_cuda);
