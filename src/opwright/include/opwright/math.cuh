// Functions for elementwise kernels on the GPU, by the names they have on the CPU. They are as exact as those there, in
// few enough instructions that bfloat16 still goes at the speed of memory.
#pragma once

#include <cuda_runtime.h>

namespace opwright {
namespace simd {

// eˣ within 2 ulp. x log₂e is taken in two parts: rounding it alone would cost |x| ulp.
__device__ __forceinline__ float exp(float x) {
    const float high = x * 1.44269502f;
    // Beyond 200 the result is infinite or 0 whatever the second part, which has no meaning for infinities.
    const float low = fabsf(x) < 200.0f ? fmaf(x, 1.44269502f, -high) + x * 1.92596299e-8f : 0.0f;
    float power;
    asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(high));
    return power * fmaf(low, 0.693147182f, 1.0f);
}
__device__ __forceinline__ double exp(double x) { return ::exp(x); }

// 1 / (1 + e⁻ˣ) within 2 ulp of it or of 1; NaN stays NaN.
__device__ __forceinline__ float sigmoid(float x) {
    float inverse;
    asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + exp(-x)));
    return inverse;
}
__device__ __forceinline__ double sigmoid(double x) { return 1.0 / (1.0 + ::exp(-x)); }

}  // namespace simd
}  // namespace opwright
