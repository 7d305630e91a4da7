#include <opwright/kernel.h>

// One pass over memory, whatever the strides. C is what is computed in: the lambda is compiled for single elements and
// for SIMD vectors alike, and half and bfloat16 compute in float.
Tensor swish_cpu(const Tensor& x, double beta) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map([beta = C(beta)](C v) { return v * simd::sigmoid(beta * v); }, x);
    });
}

// The gradient takes what its formula in op.py takes. Operands stand in the order of the formula: it decides the
// strides.
Tensor swish_backward_cpu(const Tensor& grad, const Tensor& x, double beta, const Wanted&) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        const auto slope = [beta = C(beta)](C g, C v) {
            const C s = simd::sigmoid(beta * v);
            return g * (s * (C(1) + beta * v * (C(1) - s)));
        };
        return map(slope, grad, x);
    });
}

OPWRIGHT_KERNEL(swish, CPU, swish_cpu);
OPWRIGHT_KERNEL(swish_backward, CPU, swish_backward_cpu);
