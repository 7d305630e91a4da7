// Numbers, words of the exchange, barriers and clusters: what the persistent kernels are made of.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "persist.h"

namespace lltm::persist {

constexpr int warps = 8, gate_warps = 4, threads = (warps + gate_warps) * 32;
constexpr unsigned all_lanes = 0xffffffffu;
// Who asks so often for words that do not come has waited for ten seconds or more: better a fault than for ever.
constexpr uint32_t most_turns = 1u << 24;
// Whether this pass of the compiler has the instructions for so many blocks to a cluster; the host asks as well.
#ifdef __CUDA_ARCH__
constexpr bool runs(int cluster) { return __CUDA_ARCH__ >= (cluster > 1 ? 900 : 800); }
#else
constexpr bool runs(int) { return true; }
#endif

template <class T>
struct Half;
template <>
struct Half<__half> {
    static __device__ __forceinline__ float wide(uint16_t x) { return __half2float(__ushort_as_half(x)); }
    static __device__ __forceinline__ uint16_t narrow(float x) { return __half_as_ushort(__float2half_rn(x)); }
};
template <>
struct Half<__nv_bfloat16> {
    static __device__ __forceinline__ float wide(uint16_t x) { return __uint_as_float(uint32_t(x) << 16); }
    static __device__ __forceinline__ uint16_t narrow(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
};

// A tensor of floats where it is wide, and else of T's.
template <class T>
__device__ __forceinline__ float at(const void* from, bool wide, int64_t i) {
    return wide ? static_cast<const float*>(from)[i] : Half<T>::wide(static_cast<const uint16_t*>(from)[i]);
}
template <class T>
__device__ __forceinline__ void put_at(void* to, bool wide, int64_t i, float value) {
    if (wide) {
        static_cast<float*>(to)[i] = value;
    } else {
        static_cast<uint16_t*>(to)[i] = Half<T>::narrow(value);
    }
}

__device__ __forceinline__ uint32_t packed(uint16_t low, uint16_t high) { return low | uint32_t(high) << 16; }

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float one_over(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
constexpr float log2_e = 1.44269504088896f;

__device__ __forceinline__ float sigmoid(float x) { return one_over(1.0f + exp2_of(-log2_e * x)); }

// To some 1e-7 of its value: the quotient of exponentials loses digits near zero.
__device__ __forceinline__ float tanh_of(float x) {
    const float s = x * x;
    const float near =
        x * fmaf(s, fmaf(s, fmaf(s, fmaf(s, 62.f / 2835.f, -17.f / 315.f), 2.f / 15.f), -1.f / 3.f), 1.f);
    const float far = copysignf(fmaf(-2.0f, one_over(1.0f + exp2_of(2.0f * log2_e * fabsf(x))), 1.0f), x);
    return fabsf(x) < 0.35f ? near : far;
}

__device__ __forceinline__ float elu(float x) {
    const float near = x * fmaf(x, fmaf(x, fmaf(x, 1.f / 24.f, 1.f / 6.f), 0.5f), 1.f);
    const float far = exp2_of(log2_e * x) - 1.0f;
    return x > 0.0f ? x : x > -0.05f ? near : far;
}

__device__ __forceinline__ uint4 load_word(const uint4* from) {
    uint64_t low, high;
    asm volatile("{ .reg .b128 q; ld.relaxed.gpu.global.b128 q, [%2]; mov.b128 {%0, %1}, q; }"
                 : "=l"(low), "=l"(high)
                 : "l"(from));
    return {uint32_t(low), uint32_t(low >> 32), uint32_t(high), uint32_t(high >> 32)};
}

// Where `there`; else the word stays. Two ways that meet would cost a copy of each register.
__device__ __forceinline__ void load_word_where(bool there, const uint4* from, uint4& w) {
    uint64_t low = w.x | uint64_t(w.y) << 32, high = w.z | uint64_t(w.w) << 32;
    asm volatile(
        "{ .reg .b128 q; .reg .pred p; setp.ne.u32 p, %3, 0; mov.b128 q, {%0, %1};\n"
        "@p ld.relaxed.gpu.global.b128 q, [%2];\nmov.b128 {%0, %1}, q; }"
        : "+l"(low), "+l"(high)
        : "l"(from), "r"(uint32_t(there)));
    w = {uint32_t(low), uint32_t(low >> 32), uint32_t(high), uint32_t(high >> 32)};
}

__device__ __forceinline__ void store_word(uint4* to, uint4 w) {
    const uint64_t low = w.x | uint64_t(w.y) << 32, high = w.z | uint64_t(w.w) << 32;
    asm volatile("{ .reg .b128 q; mov.b128 q, {%1, %2}; st.relaxed.gpu.global.b128 [%0], q; }" ::"l"(to), "l"(low),
                 "l"(high)
                 : "memory");
}

// A value that the compiler must keep in a register: it would rather compute addresses again, each step, out of
// kernel arguments, on the path that all blocks wait for.
template <class V>
__device__ __forceinline__ V pinned(V x) {
    static_assert(sizeof(V) == 4 || sizeof(V) == 8);
    if constexpr (sizeof(V) == 8) {
        uint64_t y = (uint64_t)x;
        asm volatile("" : "+l"(y));
        return (V)y;
    } else {
        asm volatile("" : "+r"(x));
        return x;
    }
}

// Barriers of the block between the warps of the product and those of the gates: who arrives does not wait.
enum : int { summed = 1, published = 3 };  // summed: two, for the first part of the rows and the second
__device__ __forceinline__ void wait(int barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
}
__device__ __forceinline__ void arrive(int barrier) {
#ifdef OPWRIGHT_RACECHECK  // which does not follow who arrives and does not wait; both kinds meet in the same order
    wait(barrier);
#else
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
#endif
}

// Bytes further.
template <class V>
__device__ __forceinline__ V* beyond(V* p, int64_t bytes) {
    return reinterpret_cast<V*>(reinterpret_cast<uintptr_t>(p) + bytes);
}

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ float4 load_shared(uint32_t from) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}
__device__ __forceinline__ float2 load_shared_pair(uint32_t from) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
    return v;
}
__device__ __forceinline__ void store_shared(uint32_t to, uint4 w) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w) : "memory");
}

template <class T>
__device__ __forceinline__ void mma(float (&d)[4], uint4 a, uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma<__half>(float (&d)[4], uint4 a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&d)[4], uint4 a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// Clusters, for sm_90 and later; not used with one block to a cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t address_in(uint32_t address, uint32_t rank) {
    uint32_t r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
    return r;
}
__device__ __forceinline__ void mbarrier_init(uint32_t bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mbarrier_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }" ::"r"(bar), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void mbarrier_wait(uint32_t bar, uint32_t parity) {
    asm volatile(
        "{ .reg .pred p;\nagain: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n@!p bra again; "
        "}" ::"r"(bar),
        "r"(parity)
        : "memory");
}
__device__ __forceinline__ void send(uint32_t to, float value, uint32_t bar) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
                 "r"(__float_as_uint(value)), "r"(bar)
                 : "memory");
}

}  // namespace lltm::persist
