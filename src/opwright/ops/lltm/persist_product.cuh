// The product of a step: weights that stay on chip, times what the blocks exchange.
#pragma once

#include "persist_words.cuh"

namespace lltm::persist {

// What a thread of the product's warps has for weights and operands, of its 168 registers.
constexpr int registers = 128;

// Gates: rows per hidden unit (3 forward, 1 backward); HT: tiles of 16 hidden units to a block; KT: tiles of 16 of the
// sum to a warp; NT: tiles of 8 batch rows to a group; C: blocks to a cluster.
template <int Gates_, int HT_, int KT_, int NT_, int C_>
struct Plan {
    static constexpr int Gates = Gates_, HT = HT_, KT = KT_, NT = NT_, C = C_;
    static constexpr int MT = C * HT * Gates;  // tiles of rows, of all blocks of the cluster
    static constexpr int items = HT * NT;      // (hidden unit, batch row) to a lane of the gates' warps
    // The rows come in two parts, so that the gates' warps begin while the second is worked on: forward the first 16
    // hidden units, backward what the other blocks of the cluster wait for.
    static constexpr int early = C > 1 ? MT - HT * Gates : Gates == 3 && HT > 1 ? MT / HT : 0;
    __host__ __device__ static constexpr int at_once(
        int rows) {  // independent sums enough to fill the tensor cores' pipe
        return rows % 4 == 0 && NT == 1 ? 4 : rows % 3 == 0 ? 3 : rows % 2 == 0 ? 2 : 1;
    }
    static constexpr int MP = at_once(MT - early);
    // Tiles of weights in registers, of each row's KT; the others are in shared memory.
    static constexpr int spare = registers - 2 * KT * NT * (Gates == 1 ? 4 : 3) / 3 - 4 * MP * NT;
    static constexpr int RK = spare / (4 * MT) < KT ? spare / (4 * MT) : KT;
    static constexpr int SK = KT - RK;

    static constexpr int weight_bytes = warps * MT * SK * 512;
    static constexpr int partial_bytes = warps * MT * NT * 512;
    static constexpr int inbox_bytes = C > 1 ? C * Gates * items * 512 : 0;
    // h, and what is kept of 16 hidden units, on their way out of the gates' warps.
    static constexpr int stage_bytes = Gates == 3 ? gate_warps * (items * 64 + NT * 256) : 0;
    static constexpr int bias_bytes = Gates == 3 ? items * 3 * 512 : 0;
    static constexpr int shared_bytes = weight_bytes + partial_bytes + 2 * inbox_bytes + stage_bytes + bias_bytes + 16;
};

template <class P>
struct Block {
    int warp, lane, rank, group, slice;  // group: of this launch
    unsigned char* shared;

    __device__ __forceinline__ Block(unsigned char* shared, const Walk& p) : shared(shared) {
        warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        group = int(blockIdx.x) / p.slices, slice = int(blockIdx.x) % p.slices;
        rank = P::C > 1 ? slice % P::C : 0;
    }
    __device__ __forceinline__ float* partial() const { return reinterpret_cast<float*>(shared + P::weight_bytes); }
    __device__ __forceinline__ float* inbox() const {
        return reinterpret_cast<float*>(shared + P::weight_bytes + P::partial_bytes);
    }
    __device__ __forceinline__ unsigned char* rest() const {
        return shared + P::weight_bytes + P::partial_bytes + 2 * P::inbox_bytes;
    }
    __device__ __forceinline__ uint32_t arrived() const {  // two mbarriers
        return shared_address(rest() + P::stage_bytes + P::bias_bytes);
    }
    // The hidden unit that row r of a tile of rows belongs to. The next block's come first, this block's last.
    __device__ __forceinline__ int hidden_of(int m, int r) const {
        const int owner = (rank + 1 + m / (P::HT * P::Gates)) % P::C, ht = m / P::Gates % P::HT;
        return ((slice - rank + owner) * P::HT + ht) * 16 + r;
    }
    __device__ __forceinline__ void enter() const {
        if constexpr (P::C > 1) {
            if (threadIdx.x == 0) mbarrier_init(arrived()), mbarrier_init(arrived() + 8);
            cluster_sync();
        }
    }
    __device__ __forceinline__ void leave() const {
        if constexpr (P::C > 1) cluster_sync();  // others may still write here
    }
};

// A warp of the product: its part of the weights.
template <class T, class P>
struct Multiplier {
    uint4 kept[P::MT][P::RK > 0 ? P::RK : 1];
    const uint4* others;  // [MT][SK][32], in shared memory
    float* to;            // [MT][NT][4][32][warps]

    template <class Left>
    __device__ __forceinline__ Multiplier(const Block<P>& block, const Left& left) {
        uint4* const weights = reinterpret_cast<uint4*>(block.shared) + block.warp * P::MT * P::SK * 32 + block.lane;
        others = weights;
        // The eight sums of a number are side by side, in an order by lane that spreads a warp's over all banks.
        to = block.partial() + block.lane * 8 + (block.warp ^ block.lane / 4);
#pragma unroll
        for (int m = 0; m < P::MT; ++m)
#pragma unroll
            for (int k = 0; k < P::KT; ++k) {
                const uint4 a = left(m, k);
                if (k < P::RK)
                    kept[m][k < P::RK ? k : 0] = a;
                else
                    weights[(m * P::SK + k - P::RK) * 32] = a;
            }
    }

    // `right(k, n)` gives the two registers of a tile of the vector.
    template <class Right>
    __device__ __forceinline__ void operator()(const Right& right) const {
        if constexpr (P::early > 0) {
            rows<0, P::early>(right);
            arrive(summed + 1);
        }
        rows<P::early, P::MT>(right);
        arrive(summed);
    }

    template <int First, int Last, class Right>
    __device__ __forceinline__ void rows(const Right& right) const {
        constexpr int MP = P::at_once(Last - First);
#pragma unroll
        for (int m = First; m < Last; m += MP) {
            float sum[MP][P::NT][4] = {};
#pragma unroll
            for (int k = 0; k < P::KT; ++k)
#pragma unroll
                for (int i = 0; i < MP; ++i) {
                    const uint4 a =
                        k < P::RK ? kept[m + i][k < P::RK ? k : 0] : others[((m + i) * P::SK + k - P::RK) * 32];
#pragma unroll
                    for (int n = 0; n < P::NT; ++n) {
                        const uint2 b = right(k, n);
                        mma<T>(sum[i][n], a, b.x, b.y);
                    }
                }
#pragma unroll
            for (int i = 0; i < MP; ++i)
#pragma unroll
                for (int n = 0; n < P::NT; ++n)
#pragma unroll
                    for (int q = 0; q < 4; ++q) to[(((m + i) * P::NT + n) * 4 + q) * 256] = sum[i][n][q];
        }
    }
};

__device__ __forceinline__ uint32_t cycles() {
    uint32_t now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
    return now;
}

// Waits until all words are the step's. Those that are not are asked for again. Who asks too early asks twice, and the
// second answer is late by what is left of a round trip; all asking twice is also twice the traffic, which bounds large
// groups. So a warp learns how long after its own block's words the others' come: it waits that long before it asks.
struct Patience {
    static constexpr uint32_t nudge = 4;  // cycles
    uint32_t delay = 0;

    template <int N, class Ready>
    __device__ __forceinline__ void await(uint4 (&words)[N], int wanted, const uint4* from, const Ready& ready) {
        const uint32_t start = cycles();
        while (cycles() - start < delay) {
        }
#pragma unroll
        for (int i = 0; i < N; ++i) words[i] = i < wanted ? load_word(from + i * 32) : uint4{};
        bool again = false;
#pragma unroll
        for (int i = 0; i < N; ++i) again |= i < wanted && !ready(words[i]);
        again = __any_sync(all_lanes, again);
        delay = again ? min(delay + 4 * nudge, 4000u) : max(delay, nudge) - nudge;
        for (uint32_t turns = 0; again; ++turns) {
            if (turns > most_turns) __trap();
            again = false;
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (i < wanted && !ready(words[i])) words[i] = load_word(from + i * 32);
#pragma unroll
            for (int i = 0; i < N; ++i) again |= i < wanted && !ready(words[i]);
        }
        __syncwarp();
    }
};

__device__ __forceinline__ uint16_t at_or_zero(const uint16_t* x, int64_t i, bool there) { return there ? x[i] : 0; }

template <class Kernel, class Call>
__device__ __forceinline__ void run(const Call& p) {
    extern __shared__ __align__(16) unsigned char shared[];
    const Block<typename Kernel::P> block(shared, p);
    block.enter();
    if (threadIdx.x < warps * 32) {
        Kernel::multiply(p, block);
    } else {
        Kernel::gates(p, block);
    }
    block.leave();
}

}  // namespace lltm::persist
