// What a thread of the gates' warps knows of its place, and how it comes to its sums.
#pragma once

#include "persist_product.cuh"

namespace lltm::persist {

// A thread of the gates' warps. Its items are hidden units j + 16 ht of batch rows b + 8 n, item ht NT + n: in the
// products' tiles warp q has number q of the four that a lane holds.
// Zero, known when all of v are loaded: the compiler would else load them one by one, and wait for each.
template <int N>
__device__ __forceinline__ float after(const float4 (&v)[N][3][2], uint32_t zero) {
    uint32_t any = 0;
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
        for (int g = 0; g < 3; ++g) any ^= __float_as_uint(v[n][g][0].x) ^ __float_as_uint(v[n][g][1].x);
    return __uint_as_float(any & zero);
}

template <class P>
struct Place {
    int q, lane, rank, j, b, hidden, batch, sign;
    int length[P::NT], first[P::NT];
    int limit[P::items];  // steps of an item: none where it is padding
    uint32_t sums;        // [MT][NT][4][32][warps], in shared memory
    float* box;           // 2 × [C][Gates][items][4][32]
    uint32_t arrived;

    __device__ __forceinline__ Place(const Block<P>& block, const Walk& p) {
        q = block.warp - warps, lane = block.lane, rank = block.rank;
        hidden = pinned(p.hidden), batch = p.batch, sign = pinned(p.reverse ? -1 : 1);
        j = pinned(block.slice * P::HT * 16 + q / 2 * 8 + lane / 4);
        b = pinned((p.first_group + block.group) * P::NT * 8 + 2 * (lane % 4) + q % 2);
#pragma unroll
        for (int n = 0; n < P::NT; ++n) {
            const int64_t given = p.lengths && b + 8 * n < batch ? p.lengths[b + 8 * n] : p.steps;
            length[n] = pinned(given < 0 ? 0 : given > p.steps ? p.steps : int(given));
            first[n] = pinned(p.reverse ? length[n] - 1 : 0);
        }
#pragma unroll
        for (int i = 0; i < P::items; ++i) limit[i] = pinned(has(i) ? length[i % P::NT] : 0);
        // Lanes four apart begin with different halves of their eight: their banks are the same.
        sums = pinned(shared_address(block.partial() + (q * 32 + lane) * 8 + lane / 4 % 2 * 4));
        box = block.inbox() + q * 32 + lane;
        arrived = block.arrived();
    }
    __device__ __forceinline__ bool has(int i) const {
        return j + i / P::NT * 16 < hidden && b + i % P::NT * 8 < batch;
    }
    __device__ __forceinline__ bool on(int i, int s) const { return s >= 0 && s < limit[i]; }
    // Where step s of the item's row is in the sequence.
    __device__ __forceinline__ int when(int i, int s) const {
        return s < length[i % P::NT] ? first[i % P::NT] + sign * s : s;
    }
    // How many elements an item is after the first, in a matrix of rows `width` wide.
    __device__ __forceinline__ int64_t apart(int i, int width) const {
        return i % P::NT * 8 * int64_t(width) + i / P::NT * 16;
    }

    // The sum over the block's warps, for the block `d` + 1 after this one in the cluster: the last is this one.
    __device__ __forceinline__ float sum(int d, int i, int g) const {
        float4 v[2];
        parts(d, i, g, v);
        return total(v);
    }
    static __device__ __forceinline__ float total(const float4 (&v)[2]) {
        return ((v[0].x + v[0].y) + (v[0].z + v[0].w)) + ((v[1].x + v[1].y) + (v[1].z + v[1].w));
    }
    __device__ __forceinline__ void parts(int d, int i, int g, float4 (&v)[2]) const {
        const uint32_t at = sums + ((d * P::HT + i / P::NT) * P::Gates + g) * (P::NT * 4096) + i % P::NT * 4096;
        v[0] = load_shared(at), v[1] = load_shared(at ^ 16);
    }

    // After the block's `count`-th product: what it comes to for the thread's items, over all of K.
    __device__ __forceinline__ void collect(int count, float (&out)[P::items][P::Gates]) const {
        if constexpr (P::C > 1) {
            const uint32_t bell = arrived + 8 * (count & 1);
            float* const here = box + (count & 1) * (P::inbox_bytes / 4);
            if (threadIdx.x == warps * 32) mbarrier_expect(bell, (P::C - 1) * P::Gates * P::items * 512);
            __syncwarp();
            wait(summed + 1);
#pragma unroll
            for (int d = 0; d < P::C - 1; ++d) {
                const int owner = rank + d + 1 < P::C ? rank + d + 1 : rank + d + 1 - P::C;
                const uint32_t there = address_in(shared_address(here + rank * P::Gates * P::items * 128), owner),
                               their_bell = address_in(bell, owner);
#pragma unroll
                for (int i = 0; i < P::items; ++i)
#pragma unroll
                    for (int g = 0; g < P::Gates; ++g) send(there + (g * P::items + i) * 512, sum(d, i, g), their_bell);
            }
        }
        wait(summed);
#pragma unroll
        for (int i = 0; i < P::items; ++i)
#pragma unroll
            for (int g = 0; g < P::Gates; ++g) out[i][g] = sum(P::C - 1, i, g);
        if constexpr (P::C > 1) {
            const float* const here = box + (count & 1) * (P::inbox_bytes / 4);
            mbarrier_wait(arrived + 8 * (count & 1), count >> 1 & 1);
#pragma unroll
            for (int i = 0; i < P::items; ++i)
#pragma unroll
                for (int g = 0; g < P::Gates; ++g) {
                    float total = 0.0f;
#pragma unroll
                    for (int r = 0; r < P::C; ++r) {  // in the same order whoever adds
                        const float theirs = here[((r * P::Gates + g) * P::items + i) * 128];
                        total += r == rank ? out[i][g] : theirs;
                    }
                    out[i][g] = total;
                }
        }
    }
};

}  // namespace lltm::persist
