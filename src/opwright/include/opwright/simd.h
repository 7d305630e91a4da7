// SIMD from one source: a loop is compiled for each instruction set, and the processor at hand picks one.
//
// A kernel writes its arithmetic on single numbers, without branches (c ? a : b is none), and the compiler makes
// vectors of it. That is portable and as fast as intrinsics here, because what limits elementwise code is memory.
#pragma once

#include <opwright/tensor.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#define OPWRIGHT_AVX2 __attribute__((target("avx,avx2,fma,f16c,bmi,bmi2"), flatten))
#define OPWRIGHT_AVX512_FEATURES "avx,avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq"
#if defined(__clang__)
#define OPWRIGHT_AVX512 __attribute__((target(OPWRIGHT_AVX512_FEATURES), min_vector_width(512), flatten))
#else
#define OPWRIGHT_AVX512 __attribute__((target(OPWRIGHT_AVX512_FEATURES ",prefer-vector-width=512"), flatten))
#endif
#endif

// Placed before a loop whose iterations are independent: at most they write where they read.
#if defined(__clang__)
#define OPWRIGHT_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define OPWRIGHT_INDEPENDENT _Pragma("GCC ivdep")
#endif

#pragma GCC visibility push(hidden)

namespace opwright {

enum class Simd { base, avx2, avx512 };

// The best that this processor has. OPWRIGHT_SIMD=base or avx2 in the environment asks for less, to compare.
inline Simd simd_level() {
    static const Simd level = [] {
#if defined(__x86_64__)
        const char* asked = std::getenv("OPWRIGHT_SIMD");
        const bool base = asked && !std::strcmp(asked, "base"), avx2 = asked && !std::strcmp(asked, "avx2");
        __builtin_cpu_init();
        if (base || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Simd::base;
        if (avx2 || !__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
            !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
            return Simd::avx2;
        }
        return Simd::avx512;
#else
        return Simd::base;
#endif
    }();
    return level;
}

// Runs Loop::run(arguments…), a static function that is OPWRIGHT_INLINE, compiled for the level at hand.
namespace detail {

template <class Loop, class... A>
inline void run_base(A... a) {
    Loop::run(a...);
}
#if defined(__x86_64__)
template <class Loop, class... A>
OPWRIGHT_AVX2 inline void run_avx2(A... a) {
    Loop::run(a...);
}
template <class Loop, class... A>
OPWRIGHT_AVX512 inline void run_avx512(A... a) {
    Loop::run(a...);
}
#endif

// The function that runs Loop on vectors, as a pointer: chosen once a call, not once a block.
template <class Loop, class... A>
auto best() -> void (*)(A...) {
#if defined(__x86_64__)
    if (simd_level() == Simd::avx512) return run_avx512<Loop, A...>;
    if (simd_level() == Simd::avx2) return run_avx2<Loop, A...>;
#endif
    return run_base<Loop, A...>;
}

template <class To, class From>
OPWRIGHT_INLINE To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits are kept");
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

}  // namespace detail

// Functions for the bodies of loops. They have no branches, so that a loop around them becomes vectors.
namespace simd {

// eˣ to about 1 ulp, denormal results included; infinities and NaN as in std::exp.
// x = n ln 2 + r with |r| ≤ ln 2 / 2, and eʳ by its Taylor series; 2ⁿ is applied in two factors, which both exist
// when n is near the ends of the range.
OPWRIGHT_INLINE float exp(float x) {
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    const float shift = 12582912.0f;  // 1.5·2²³: adding it leaves the nearest integer in the low bits
    const float shifted = x * 1.44269504f + shift;
    const float n = shifted - shift;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts; the first product is exact
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = (p * r) * r + r + 1.0f;
    const int32_t e = detail::bits<int32_t>(shifted) - detail::bits<int32_t>(shift);
    const int32_t half = e >> 1;
    return p * detail::bits<float>((half + 127) << 23) * detail::bits<float>((e - half + 127) << 23);
}

OPWRIGHT_INLINE double exp(double x) {
    x = x > 710.0 ? 710.0 : x;
    x = x < -746.0 ? -746.0 : x;
    const double shift = 6755399441055744.0;  // 1.5·2⁵²
    const double shifted = x * 1.4426950408889634 + shift;
    const double n = shifted - shift;
    const double r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
    double p = 1.0 / 6227020800;
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = (p * r) * r + r + 1.0;
    const int64_t e = detail::bits<int64_t>(shifted) - detail::bits<int64_t>(shift);
    const int64_t half = detail::bits<int64_t>(0.5 * n + shift) - detail::bits<int64_t>(shift);  // AVX2 cannot shift it
    return p * detail::bits<double>((half + 1023) << 52) * detail::bits<double>((e - half + 1023) << 52);
}

// 1 / (1 + e⁻ˣ), NaN as NaN.
template <class T>
OPWRIGHT_INLINE T sigmoid(T x) {
    return T(1) / (T(1) + exp(-x));
}

}  // namespace simd
}  // namespace opwright

#pragma GCC visibility pop
