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

// To some two units in the last place: a quotient that is rounded right takes three times as long as all else.
// Where 1 would vanish beside e⁻ˣ it is eˣ, which may be too small for a quotient to hold.
__device__ __forceinline__ float exact_sigmoid(float x) { return x < -80.0f ? expf(x) : one_over(1.0f + expf(-x)); }
__device__ __forceinline__ float exact_elu(float x) { return x > 0.0f ? x : expm1f(x); }

template <int Rows, int LN_, int NR_, int C_>
struct Plan32 {
    static constexpr int LN = LN_, NR = NR_, C = C_, N = LN * NR, M = Rows * slice32 * C;
    // Groups of lanes by rows: few, so that a lane has many rows: what bounds the product is shared memory's speed.
    static constexpr int LM = LN == 8 ? 2 : 4, KK = 32 / (LM * LN), MR = M / LM;
    // Rows that a lane has after the lanes that split the sum have added up: half of them where two do.
    static constexpr int summed = KK == 2 ? MR / 2 : MR;
    // Numbers from a row of sums to the next: with N itself eight rows would lie in the same four banks.
    static constexpr int apart = N + 4;
    static constexpr int quads = N / 4;                  // four batch rows each
    static constexpr int workers = slice32 * quads;      // threads that do the gates, of four batch rows each
    static constexpr int words = Rows == 3 ? quads : N;  // of the exchange, to a hidden unit
    // What a warp takes from the exchange at a time: `turn` words a lane, `terms` hidden units; `ahead` turns on their
    // way, with 64 batch rows as many as fit the registers backward.
    static constexpr int turn = N == 64 ? 4 : 2, terms = turn * 32 / words, ahead = N == 64 ? 2 : 3;
    static __host__ __device__ constexpr int per_warp(int sum) {  // hidden units of the sum, in whole turns
        return (sum + warps * terms - 1) / (warps * terms) * terms;
    }
    static constexpr int stage_bytes = 2 * turn * 512;
    static __host__ __device__ constexpr int shared_bytes(int hidden) {
        const int sum = ((hidden + 8 * C - 1) / (8 * C)) * 8;
        return per_warp(sum) * warps * (Rows == 3 ? 1 : 3) * M * 4 + warps * M * apart * 4 +
               (C > 1 ? 2 * C * slice32 * apart * 4 : 0) + warps * stage_bytes + 16;
    }
};

// A warp's way through its part of the exchange: words from L2 to registers, some turns ahead, then to shared memory.
// What is done for each word costs as much as the products do: so a turn's words are looked at together, whole turns
// have no lane without a word, and addresses are steps of one pointer.
template <class P>
struct Stream {
    static constexpr int size = P::turn * 32;  // words to a turn
    const uint4* from;                         // of this lane
    int there;                                 // words to come for this lane's warp, counted from its lane 0's
    uint32_t stage;                            // of this warp, in shared memory

    using Turn = uint4[P::turn];

    // Asks again for a turn's words that are not there, of the first `there`.
    template <class Words>
    static __device__ __forceinline__ void await(const Words& words, const uint4* from, int there, Turn& w) {
#pragma unroll
        for (int i = 0; i < P::turn; ++i)
            for (uint32_t tries = 0; i * 32 < there && words.missing(w[i]); w[i] = load_word(from + i * 32))
                if (++tries > most_turns) __trap();
    }
    // Calls use(turn, at) with the words of each turn in `stage`, `at` bytes from its beginning. That has room for two
    // turns: the words of one are put there while those before are worked on.
    template <class Words, class Use>
    __device__ __forceinline__ void run(const Words& words, const Use& use) const {
        const int lane = int(threadIdx.x % 32), whole = max(there, 0) / size;
        const uint32_t to = pinned(stage + lane * 16);
        const uint4* next = pinned(from);
        Turn w[P::ahead] = {};
        const auto fetch = [&](Turn& w, bool more) {
#pragma unroll
            for (int i = 0; i < P::turn; ++i) load_word_where(more, next + i * 32, w[i]);
            next += size;
        };
        const auto put = [&](Turn& w, const uint4* from, int there, uint32_t at) {
            if (!words.take(w)) await(words, from, there, w), words.make_plain(w);
#pragma unroll
            for (int i = 0; i < P::turn; ++i) store_shared(to + at + i * 512, w[i]);
        };
#pragma unroll
        for (int u = 0; u < P::ahead; ++u) fetch(w[u], u < whole);
        if (whole > 0) {
            put(w[0], next - P::ahead * size, size, 0);
            fetch(w[0], P::ahead < whole);
            __syncwarp();
        }
        for (int t = 0; t < whole; t += P::ahead)
#pragma unroll
            for (int u = 0; u < P::ahead; ++u) {
                const int turn = t + u;
                const uint32_t at = turn % 2 * (size * 16);
                if (turn >= whole) break;
                if (turn + 1 < whole) {
                    Turn& later = w[(u + 1) % P::ahead];
                    put(later, next - P::ahead * size, size, size * 16 - at);
                    fetch(later, turn + 1 + P::ahead < whole);
                }
                use(turn, at);
                __syncwarp();  // the next are there, and these are done with
            }
        if (const int rest = there - whole * size; rest > 0) {
            const uint4* const last = from + whole * size;
            Turn w = {};
#pragma unroll
            for (int i = 0; i < P::turn; ++i) load_word_where(i * 32 + lane < rest, last + i * 32, w[i]);
            put(w, last, rest - lane, 0);
            __syncwarp();
            use(whole, 0);
            __syncwarp();
        }
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

// Adds up what lanes have that split the sum: those `Group` apart. Where two do, each adds up one half of the rows, and
// the first MR / 2 of `acc` are its.
template <int Group, int MR, int NR>
__device__ __forceinline__ void across(float (&acc)[MR][NR]) {
    if constexpr (Group == 16) {
        const bool second = threadIdx.x % 32 >= 16;
#pragma unroll
        for (int i = 0; i < MR / 2; ++i)
#pragma unroll
            for (int q = 0; q < NR; ++q) {
                const float theirs = second ? acc[i][q] : acc[i + MR / 2][q];
                const float mine = second ? acc[i + MR / 2][q] : acc[i][q];
                acc[i][q] = mine + __shfl_xor_sync(all_lanes, theirs, 16);
            }
    } else {
#pragma unroll
        for (int apart = 16; apart >= Group; apart /= 2)
#pragma unroll
            for (int i = 0; i < MR; ++i)
#pragma unroll
                for (int q = 0; q < NR; ++q) acc[i][q] += __shfl_xor_sync(all_lanes, acc[i][q], apart);
    }
}

template <int MR>
__device__ __forceinline__ void take(uint32_t from, float (&a)[MR]) {
    if constexpr (MR % 4 == 0) {
#pragma unroll
        for (int i = 0; i < MR; i += 4) {
            const float4 v = load_shared(from + i * 4);
            a[i] = v.x, a[i + 1] = v.y, a[i + 2] = v.z, a[i + 3] = v.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < MR; i += 2) {
            const float2 v = load_shared_pair(from + i * 4);
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

// The words of a step, forward: which of two bits is set says it, and a third that there is NaN inside. Taken from a
// word that is there the bits are gone, and of one that is not one of them stays: so a look at all words of a turn and
// their plain numbers are one operation.
struct Marked {
    uint32_t x, y;

    explicit __device__ __forceinline__ Marked(int step) : x(step & 2 ? 0 : top32), y(step & 2 ? top32 : 0) {}
    __device__ __forceinline__ bool missing(const uint4& w) const { return ((w.x ^ x) | (w.y ^ y)) & top32; }
    // Plain numbers; true where that was all, false where a word is missing or has NaN: then they stay as they are.
    template <int N>
    __device__ __forceinline__ bool take(uint4 (&w)[N]) const {
        uint32_t off = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            w[i].x ^= x, w[i].y ^= y;
            off |= w[i].x | w[i].y, off |= w[i].z;
        }
        if (!(off & top32)) return true;
#pragma unroll
        for (int i = 0; i < N; ++i) w[i].x ^= x, w[i].y ^= y;
        return false;
    }
    // The same for words that are all there.
    template <int N>
    __device__ __forceinline__ void make_plain(uint4 (&w)[N]) const {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            w[i].x &= ~top32, w[i].y &= ~top32;
            if (!(w[i].z & top32)) continue;
            w[i].z &= ~top32;
            w[i] = {shown(w[i].x), shown(w[i].y), shown(w[i].z), shown(w[i].w)};
        }
    }
    static __device__ __forceinline__ uint32_t shown(uint32_t v) {
        return (v & 0x7fffffffu) == 0x3fffffffu ? 0x7fffffffu : v;
    }
};

// Backward: they have its number.
struct Numbered {
    uint32_t step;

    __device__ __forceinline__ bool missing(const uint4& w) const { return w.w != step; }
    template <int N>
    __device__ __forceinline__ bool take(uint4 (&w)[N]) const {
        uint32_t off = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) off |= w[i].w ^ step;
        return !off;
    }
    template <int N>
    __device__ __forceinline__ void make_plain(uint4 (&)[N]) const {}
};

}  // namespace lltm::persist
