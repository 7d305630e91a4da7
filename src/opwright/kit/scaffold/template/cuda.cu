#include <opwright/kernel.h>

// One pass over memory, whatever the strides. The lambda is compiled for float and for double; half and bfloat16 are
// computed in float. A number among the inputs arrives in the same type.
Tensor ${name}_cuda(const Tensor& x, double beta) {
    return map([] __device__(auto v, auto beta) { return v * simd::sigmoid(beta * v); }, x, beta);
}

OPWRIGHT_KERNEL($name, CUDA, ${name}_cuda);
