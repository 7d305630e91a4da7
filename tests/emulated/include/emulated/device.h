// What kernels call: numbers in other forms, meetings of threads, loads.
#pragma once

#include <emulated/threads.h>
#include <math.h>
#include <stdlib.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <type_traits>

struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct __half {
    uint16_t bits;
};
struct alignas(4) __half2 {
    uint16_t x, y;
};
struct alignas(4) __nv_bfloat162 {
    uint16_t x, y;
};

// --- numbers ---------------------------------------------------------------------------------------------------------

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    return b < a ? b : a;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    return a < b ? b : a;
}

namespace emulated {

template <class To, class From>
To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}
// What the GPU's short instructions make of numbers that are not normal.
inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

}  // namespace emulated

inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __float_as_uint(float x) { return emulated::bits<unsigned>(x); }
inline void __stwb(uint4* to, uint4 value) { *to = value; }
inline float __uint_as_float(unsigned x) { return emulated::bits<float>(x); }
inline double __longlong_as_double(long long x) { return emulated::bits<double>(x); }
inline double __hiloint2double(int high, int low) {
    return emulated::bits<double>(uint64_t(unsigned(high)) << 32 | unsigned(low));
}
inline __half __ushort_as_half(unsigned short x) { return {x}; }
inline float __half2float(__half x) { return static_cast<float>(emulated::bits<c10::Half>(x.bits)); }
inline float2 __half22float2(__half2 x) { return {__half2float({x.x}), __half2float({x.y})}; }
inline __half2 __floats2half2_rn(float x, float y) {
    return {emulated::bits<uint16_t>(c10::Half(x)), emulated::bits<uint16_t>(c10::Half(y))};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {emulated::bits<uint16_t>(c10::BFloat16(x)), emulated::bits<uint16_t>(c10::BFloat16(y))};
}

// --- threads that meet -----------------------------------------------------------------------------------------------

// The caller's line, told by the compiler: a function's inside a header is the same for all threads of a kernel.
#define EMULATED_HERE int line = __builtin_LINE()

namespace emulated {

inline Thread& at_barrier(const char* what, int line, bool holds) {
    return Machine::get().meet(Meets::block, {what, line, 0}, holds);
}
inline Thread& in_warp(const char* what, int line, unsigned mask, uint64_t given, int source = 0) {
    return Machine::get().meet(Meets::warp, {what, line, mask}, given, source);
}

template <class T>
T moved(const char* what, int line, unsigned mask, T value, int source) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
    uint64_t given = 0;
    std::memcpy(&given, &value, sizeof(T));
    const uint64_t taken = in_warp(what, line, mask, given, source).taken;
    std::memcpy(&value, &taken, sizeof(T));
    return value;
}

}  // namespace emulated

inline void __syncthreads(EMULATED_HERE) { emulated::at_barrier("__syncthreads", line, false); }
inline int __syncthreads_count(int holds, EMULATED_HERE) {
    return int(emulated::at_barrier("__syncthreads_count", line, holds).taken);
}
inline int __syncthreads_or(int holds, EMULATED_HERE) {
    return emulated::at_barrier("__syncthreads_or", line, holds).taken != 0;
}
inline int __syncthreads_and(int holds, EMULATED_HERE) {
    const auto& found = emulated::at_barrier("__syncthreads_and", line, holds);
    return found.taken == uint64_t(found.source);  // of as many as were there
}
inline void __syncwarp(unsigned mask = ~0u, EMULATED_HERE) { emulated::in_warp("__syncwarp", line, mask, 0); }
inline unsigned __ballot_sync(unsigned mask, int holds, EMULATED_HERE) {
    return unsigned(emulated::in_warp("__ballot_sync", line, mask, holds != 0).taken);
}
inline int __any_sync(unsigned mask, int holds, EMULATED_HERE) {
    return emulated::in_warp("__any_sync", line, mask, holds != 0).taken != 0;
}
inline int __all_sync(unsigned mask, int holds, EMULATED_HERE) {
    return emulated::in_warp("__all_sync", line, mask, holds == 0).taken == 0;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = warpSize, EMULATED_HERE) {
    const int lane = emulated::Machine::get().lane();
    return emulated::moved("__shfl_sync", line, mask, value, (lane & -width) | (from & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int by, int width = warpSize, EMULATED_HERE) {
    const int lane = emulated::Machine::get().lane(), from = lane ^ by, last = lane | (width - 1);
    return emulated::moved("__shfl_xor_sync", line, mask, value, from <= last ? from : lane);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = warpSize, EMULATED_HERE) {
    const int lane = emulated::Machine::get().lane(), from = lane + int(by), last = lane | (width - 1);
    return emulated::moved("__shfl_down_sync", line, mask, value, from <= last ? from : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = warpSize, EMULATED_HERE) {
    const int lane = emulated::Machine::get().lane(), from = lane - int(by), first = lane & -width;
    return emulated::moved("__shfl_up_sync", line, mask, value, from >= first ? from : lane);
}

// --- memory ----------------------------------------------------------------------------------------------------------

namespace emulated {

inline void refuse_unaligned(const void* at, size_t bytes) {
    if (reinterpret_cast<uintptr_t>(at) % bytes != 0)
        Machine::get().fail("takes " + std::to_string(bytes) + " bytes at once from where they are not aligned");
}

// What a load of PTX reads, by its name: ld.global.cs.u16 reads 16 bits.
template <class Bits>
Bits load(const char* name, const void* from) {
    const int bits = atoi(name + std::string(name).rfind('u') + 1);
    refuse_unaligned(from, size_t(bits) / 8);
    Bits found = 0;
    std::memcpy(&found, from, size_t(bits) / 8);
    return found;
}
inline uint4 load_four(const void* from) {
    refuse_unaligned(from, 16);
    uint4 found;
    std::memcpy(&found, from, 16);
    return found;
}

}  // namespace emulated

template <class T>
void __stcs(T* to, const T& value) {
    emulated::refuse_unaligned(to, sizeof(T));
    *to = value;
}
template <class T>
T __ldg(const T* from) {
    return *from;
}
[[noreturn]] inline void __trap() { emulated::Machine::get().fail("ended by __trap()"); }
