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
namespace ow_inner {

// On x86 the base is for processors before 2013: small rather than fast, which is sooner compiled.
#if defined(__x86_64__)
#define OPWRIGHT_BASE __attribute__((cold))
#else
#define OPWRIGHT_BASE
#endif
template <class Loop, class... A>
OPWRIGHT_BASE inline void run_base(A... a) {
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

}  // namespace ow_inner

namespace ow_inner {

// One rounding for a · b + c. Where there is no such instruction (x86 before 2013) it is a function call, right but
// slow.
OPWRIGHT_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
OPWRIGHT_INLINE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

// 2ⁿ for the n that stands in the low bits of shift + n, and x · 2ⁿ, where these are normal numbers.
OPWRIGHT_INLINE float power(float n) { return bits<float>((bits<uint32_t>(n) << 23) + (127u << 23)); }
OPWRIGHT_INLINE double power(double n) { return bits<double>((bits<uint64_t>(n) << 52) + (1023ull << 52)); }
OPWRIGHT_INLINE float scale(float x, float n) { return bits<float>((bits<uint32_t>(n) << 23) + bits<uint32_t>(x)); }
OPWRIGHT_INLINE double scale(double x, double n) { return bits<double>((bits<uint64_t>(n) << 52) + bits<uint64_t>(x)); }

// eˣ = fraction · 2ⁿ with 1/√2 ≤ fraction ≤ √2: x = n ln 2 + r, and eʳ = 1 + r + r² q(r), where q is the polynomial
// with the least largest relative error on |r| ≤ ln 2 / 2: 3e-9 for float, 8e-18 for double. Adding `shift`, 1.5 · 2²³
// or 1.5 · 2⁵², to a number rounds it to an integer, which is left in the low bits of the sum.
template <class T>
struct Exponential;

template <>
struct Exponential<float> {
    static constexpr float shift = 12582912.0f, least = -104.0f, greatest = 89.0f, least_normal = -87.0f;
    float fraction, shifted, rest;  // fraction = 1 + rest

    OPWRIGHT_INLINE explicit Exponential(float x) {
        shifted = fma(x, 1.44269504f, shift);
        const float n = shifted - shift;
        const float r = fma(n, 2.12194440e-4f, fma(n, -0.693359375f, x));
        float q = 0.0013814599f;
        q = fma(q, r, 0.008368717f);
        q = fma(q, r, 0.04166839f);
        q = fma(q, r, 0.16666521f);
        q = fma(q, r, 0.49999994f);
        rest = fma(q, r * r, r);
        fraction = rest + 1.0f;
    }
};

template <>
struct Exponential<double> {
    static constexpr double shift = 6755399441055744.0, least = -746.0, greatest = 710.0, least_normal = -708.0;
    double fraction, shifted, rest;

    OPWRIGHT_INLINE explicit Exponential(double x) {
        shifted = fma(x, 1.4426950408889634, shift);
        const double n = shifted - shift;
        const double r = fma(n, -1.9082149292705877e-10, fma(n, -0.6931471803691238, x));
        double q = 2.511004989585871623e-8;
        q = fma(q, r, 2.76326557593320308e-7);
        q = fma(q, r, 2.755724233668035712e-6);
        q = fma(q, r, 2.48014873260123366e-5);
        q = fma(q, r, 1.984126988659099934e-4);
        q = fma(q, r, 1.388888894782089142e-3);
        q = fma(q, r, 8.333333333322207296e-3);
        q = fma(q, r, 4.166666666652199074e-2);
        q = fma(q, r, 1.666666666666667453e-1);
        q = fma(q, r, 5.000000000000010224e-1);
        rest = fma(q, r * r, r);
        fraction = rest + 1.0;
    }
};

}  // namespace ow_inner

// Functions for the bodies of loops, on float and double. They have no branches, so that a loop around them becomes
// vectors.
namespace simd {

// eˣ within 1 ulp; infinities, NaN and results too small to be normal as in std::exp.
template <class T>
OPWRIGHT_INLINE T exp(T x) {
    using E = ow_inner::Exponential<T>;
    T y = x > E::greatest ? E::greatest : x;
    y = y < E::least ? E::least : y;
    const E e(y);
    // At the ends of the range 2ⁿ is no normal number; two factors are.
    const T n = e.shifted - E::shift;
    const T half = ow_inner::fma(n, T(0.5), E::shift);
    const T rest = (n - (half - E::shift)) + E::shift;
    const T result = ow_inner::scale(e.fraction, half) * ow_inner::power(rest);
    return result > y ? result : y;  // the latter for NaN alone: eˣ > x
}

// 1 / (1 + e⁻ˣ) within 2 ulp; NaN stays NaN.
template <class T>
OPWRIGHT_INLINE T sigmoid(T x) {
    using E = ow_inner::Exponential<T>;
    T y = -x > E::greatest ? E::greatest : -x;
    y = y < E::least_normal ? E::least_normal : y;
    const E e(y);
    T power = T(2) * ow_inner::scale(e.fraction, e.shifted - T(1));  // 2ⁿ in two factors: it may overflow
    power = power > y ? power : y;                                   // the latter for NaN alone
    return T(1) / (T(1) + power);
}

// eˣ - 1 for x ≤ 0 within 2 ulp, near 0 too; for x > 0 some number. NaN stays NaN.
template <class T>
OPWRIGHT_INLINE T expm1_negative(T x) {
    using E = ow_inner::Exponential<T>;
    T y = x > T(0) ? T(0) : x;
    y = y < -E::greatest / T(2) ? -E::greatest / T(2) : y;  // -1 long before, and 2ⁿ is normal
    const E e(y);
    const T power = ow_inner::power(e.shifted);
    return ow_inner::fma(e.rest, power, power - T(1));
}

// tanh x within 3 ulp; NaN stays NaN, and zero keeps its sign.
template <class T>
OPWRIGHT_INLINE T tanh(T x) {
    const T t = expm1_negative(x > T(0) ? T(-2) * x : T(2) * x);
    const T y = t / (T(-2) - t);
    return x > T(0) ? y : x == T(0) ? x : -y;
}

}  // namespace simd
}  // namespace opwright

#pragma GCC visibility pop
