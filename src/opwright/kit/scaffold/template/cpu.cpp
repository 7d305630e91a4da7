#include <opwright/kernel.h>

// One pass over memory, whatever the strides. C is what is computed in: the lambda is compiled for single elements and
// for SIMD vectors alike, and half and bfloat16 compute in float.
Tensor ${name}_cpu(const Tensor& x, double beta) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map([beta = C(beta)](C v) { return v * simd::sigmoid(beta * v); }, x);
    });
}

OPWRIGHT_KERNEL($name, CPU, ${name}_cpu);
