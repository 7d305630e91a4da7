// Functions for elementwise kernels on the GPU, by the names they have on the CPU. They are as exact as those there, in
// few enough instructions that bfloat16 still goes at the speed of memory.
#pragma once

#include <cuda_runtime.h>

namespace opwright {
namespace ow_inner {

// eˣ = 2^high · (1 + ln 2 · low), where high + low = x log₂e: rounding that product alone would cost |x| ulp. Where eˣ
// is infinite or 0, low has no meaning, and is kept from becoming NaN or large.
struct Power {
    float high, low;
    __device__ __forceinline__ explicit Power(float x) : high(x * 1.44269502f) {
        low = fmaf(x, 1.44269502f, -high);
        low = fminf(fmaxf(fmaf(x, 1.92596299e-8f, low), -1e-3f), 1e-3f);
    }
};

}  // namespace ow_inner

namespace simd {

// eˣ within 2 ulp.
__device__ __forceinline__ float exp(float x) {
    const ow_inner::Power power(x);
    float result;
    asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(power.high));
    return result * fmaf(power.low, 0.693147182f, 1.0f);
}
__device__ __forceinline__ double exp(double x) { return ::exp(x); }

// 1 / (1 + e⁻ˣ) within 2 ulp of it or of 1; NaN stays NaN. The sum is divided by 16 so that its inverse is a normal
// number wherever the sum is finite: the last product brings results that are not.
__device__ __forceinline__ float sigmoid(float x) {
    const ow_inner::Power power(-x);
    float result, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(power.high));
    const float sum = fmaf(result, fmaf(power.low, 0.693147182f / 16, 1.0f / 16), 1.0f / 16);
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(sum));
    return inverse * (1.0f / 16);
}
__device__ __forceinline__ double sigmoid(double x) { return 1.0 / (1.0 + ::exp(-x)); }

}  // namespace simd
}  // namespace opwright
