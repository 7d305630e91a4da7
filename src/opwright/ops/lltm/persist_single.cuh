// The recurrence in float32, with the plain multipliers: the weights in shared memory, the exchanged vector from L2.
// Words of the exchange: forward four batch rows' h of one hidden unit, marked as in half precision in the top bits of
// their exponents (|h| ≤ 1); backward one hidden unit's gradients of i, o, g of one batch row and the step.
//
// Eight warps split the sum. A block has 8 hidden units. Of a warp's lanes LM groups take the rows of the weights, LN
// groups the batch rows, NR each, and KK groups split the sum once more.
#pragma once

#include "persist_words.cuh"

namespace lltm::persist {

constexpr int threads32 = warps * 32, slice32 = 8;

__device__ __forceinline__ float exact_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float exact_elu(float x) { return x > 0.0f ? x : expm1f(x); }

template <int Rows, int LN_, int NR_, int C_>
struct Plan32 {
    static constexpr int LN = LN_, NR = NR_, C = C_, N = LN * NR, M = Rows * slice32 * C;
    // Groups of lanes by rows: few, so that a lane has many rows: what bounds the product is shared memory's speed.
    static constexpr int LM = LN == 8 ? 2 : 4, KK = 32 / (LM * LN), MR = M / LM;
    static constexpr int quads = N / 4;                  // four batch rows each
    static constexpr int workers = slice32 * quads;      // threads that do the gates, of four batch rows each
    static constexpr int words = Rows == 3 ? quads : N;  // of the exchange, to a hidden unit
    // What a warp takes from the exchange at a time: `turn` words a lane, `terms` hidden units; `ahead` turns on their
    // way (with 64 batch rows a third does not fit the registers: 26.5 for 19.7 µs a step).
    static constexpr int turn = N == 64 ? 4 : 2, terms = turn * 32 / words, ahead = N == 64 ? 2 : 3;
    static __host__ __device__ constexpr int per_warp(int sum) {  // hidden units of the sum, in whole turns
        return (sum + warps * terms - 1) / (warps * terms) * terms;
    }
    static constexpr int stage_bytes = turn * 512;
    static __host__ __device__ constexpr int shared_bytes(int hidden) {
        const int sum = ((hidden + 8 * C - 1) / (8 * C)) * 8;
        return per_warp(sum) * warps * (Rows == 3 ? 1 : 3) * M * 4 + warps * M * N * 4 +
               (C > 1 ? 2 * C * slice32 * N * 4 : 0) + warps * stage_bytes + 16;
    }
};

// A warp's way through its part of the exchange: words from L2 to registers, some turns ahead, then to shared memory.
template <class P>
struct Stream {
    const uint4* from;  // of this lane
    int there;          // words to come for this lane's warp, counted from its lane 0's
    uint4 w[P::ahead][P::turn];
    uint4* stage;  // of this warp

    __device__ __forceinline__ void fetch(int turn, uint4 (&to)[P::turn]) const {
#pragma unroll
        for (int i = 0; i < P::turn; ++i) {
            const int at = (turn * P::turn + i) * 32;
            to[i] = at + int(threadIdx.x % 32) < there ? load_word(from + at) : uint4{};
        }
    }
    // Calls use(turn) with the words of each turn in `stage`.
    template <class Ready, class Plain, class Use>
    __device__ __forceinline__ void run(int turns, const Ready& ready, const Plain& plain, const Use& use) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int u = 0; u < P::ahead; ++u)
            if (u < turns) fetch(u, w[u]);
        for (int t = 0; t < turns; t += P::ahead)
#pragma unroll
            for (int u = 0; u < P::ahead; ++u) {
                if (t + u >= turns) break;
#pragma unroll
                for (int i = 0; i < P::turn; ++i) {
                    const int at = ((t + u) * P::turn + i) * 32;
                    if (at + lane < there)
                        for (uint32_t tries = 0; !ready(w[u][i]); w[u][i] = load_word(from + at))
                            if (++tries > most_turns) __trap();
                }
                __syncwarp();  // all have used what was there
#pragma unroll
                for (int i = 0; i < P::turn; ++i) stage[i * 32 + lane] = plain(w[u][i]);
                __syncwarp();
                if (t + u + P::ahead < turns) fetch(t + u + P::ahead, w[u]);
                use(t + u);
            }
        __syncwarp();
    }
};

// A thread's four batch rows of a hidden unit.
template <class P>
struct Quad {
    int j, b, hidden, batch, steps;
    int length[4];  // none where there is padding
    bool reverse;

    __device__ __forceinline__ Quad(const Walk& p, int group, int slice) {
        hidden = p.hidden, batch = p.batch, steps = p.steps, reverse = p.reverse;
        j = slice * slice32 + int(threadIdx.x) % slice32;
        b = (p.first_group + group) * P::N + int(threadIdx.x) / slice32 * 4;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int64_t n = p.lengths && b + e < batch ? p.lengths[b + e] : steps;
            length[e] = n < 0 || !has(e) ? 0 : n > steps ? steps : int(n);
        }
    }
    __device__ __forceinline__ bool has(int e) const { return threadIdx.x < P::workers && j < hidden && b + e < batch; }
    __device__ __forceinline__ bool on(int e, int s) const { return s >= 0 && s < length[e]; }
    __device__ __forceinline__ int64_t row(int e, int s) const {
        return int64_t(reverse && s < length[e] ? length[e] - 1 - s : s) * batch + b + e;
    }
};

// Adds up what lanes have that split the sum: those `Group` apart.
template <int Group, int MR, int NR>
__device__ __forceinline__ void across(float (&acc)[MR][NR]) {
#pragma unroll
    for (int apart = 16; apart >= Group; apart /= 2)
#pragma unroll
        for (int i = 0; i < MR; ++i)
#pragma unroll
            for (int q = 0; q < NR; ++q) acc[i][q] += __shfl_xor_sync(all_lanes, acc[i][q], apart);
}

template <int MR>
__device__ __forceinline__ void take(const float* from, float (&a)[MR]) {
    if constexpr (MR % 4 == 0) {
#pragma unroll
        for (int i = 0; i < MR; i += 4) {
            const float4 v = *reinterpret_cast<const float4*>(from + i);
            a[i] = v.x, a[i + 1] = v.y, a[i + 2] = v.z, a[i + 3] = v.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < MR; i += 2) {
            const float2 v = *reinterpret_cast<const float2*>(from + i);
            a[i] = v.x, a[i + 1] = v.y;
        }
    }
}

__device__ __forceinline__ float4 plus(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
__device__ __forceinline__ float part(const float4& v, int e) {
    return e == 0 ? v.x : e == 1 ? v.y : e == 2 ? v.z : v.w;
}

constexpr uint32_t top32 = 0x40000000u;

// h of four batch rows, marked.
__device__ __forceinline__ uint4 marked32(const float (&h)[4], int step) {
    uint32_t w[4];
    bool nan = false;
#pragma unroll
    for (int e = 0; e < 4; ++e) w[e] = __float_as_uint(h[e]), nan |= w[e] & top32;
    if (nan) {
#pragma unroll
        for (int e = 0; e < 4; ++e) w[e] = w[e] & top32 ? 0x3fffffffu : w[e];
        w[2] |= top32;
    }
    w[0] |= step & 2 ? 0 : top32, w[1] |= step & 2 ? top32 : 0;
    return {w[0], w[1], w[2], w[3]};
}
__device__ __forceinline__ bool is_step(const uint4& w, int step) {
    return ((w.x & top32) | (w.y & top32) >> 1) == (step & 2 ? top32 >> 1 : top32);
}
__device__ __forceinline__ uint4 unmarked32(uint4 w) {
    w.x &= ~top32, w.y &= ~top32;
    if (w.z & top32) {
        uint32_t v[4] = {w.x, w.y, w.z & ~top32, w.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = (v[e] & 0x7fffffffu) == 0x3fffffffu ? 0x7fffffffu : v[e];
        w = {v[0], v[1], v[2], v[3]};
    }
    return w;
}

}  // namespace lltm::persist
