#include <opwright/kernel.h>

// One pass over memory, whatever the strides. The lambda is compiled for float and for double; half and bfloat16 are
// computed in float. A number among the inputs arrives in the same type.
Tensor ${name}_cuda(const Tensor& x, double beta) {
    return map([] __device__(auto v, auto beta) { return v * simd::sigmoid(beta * v); }, x, beta);
}

// The gradient takes what its formula in op.py takes. Operands stand in the order of the formula: it decides the strides.
Tensor ${name}_backward_cuda(const Tensor& grad, const Tensor& x, double beta, const Wanted&) {
    const auto slope = [] __device__(auto g, auto v, auto beta) {
        const auto s = simd::sigmoid(beta * v);
        return g * (s * (1 + beta * v * (1 - s)));
    };
    return map(slope, grad, x, beta);
}

OPWRIGHT_KERNEL($name, CUDA, ${name}_cuda);
OPWRIGHT_KERNEL(${name}_backward, CUDA, ${name}_backward_cuda);
