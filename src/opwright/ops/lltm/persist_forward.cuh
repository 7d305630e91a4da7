// The forward recurrence in half precisions.
#pragma once

#include "persist_gates.cuh"

namespace lltm::persist {

// A word is 8 hidden units of a batch row. |h| ≤ 1, so that the top bit of a number's exponent is free, but for NaN:
// of the first two numbers it says the step (1 or 2 in turn; 0 before), of the third whether there are NaN, as 0x3fff.
constexpr uint32_t top = 0x40004000u, has_nan = 0x4000u;

__device__ __forceinline__ uint32_t step_mark(int step) { return step & 2 ? 0x40000000u : 0x00004000u; }

__device__ __forceinline__ uint32_t hide_nan(uint32_t x) {
    if (x & 0x4000u) x = (x & 0xffff0000u) | 0x3fffu;
    if (x & 0x40000000u) x = (x & 0xffffu) | 0x3fff0000u;
    return x;
}
__device__ __forceinline__ uint32_t show_nan(uint32_t x) {
    if ((x & 0x7fffu) == 0x3fffu) x |= 0x7fffu;
    if ((x & 0x7fff0000u) == 0x3fff0000u) x |= 0x7fff0000u;
    return x;
}
__device__ __forceinline__ uint4 marked(uint4 w, int step) {
    if ((w.x | w.y | w.z | w.w) & top) {
        w = {hide_nan(w.x), hide_nan(w.y), hide_nan(w.z), hide_nan(w.w)};
        w.y |= has_nan;
    }
    w.x |= step_mark(step);
    return w;
}
template <int N>
__device__ __forceinline__ void unmark(uint4 (&words)[N]) {
    uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) words[i].x &= ~top, any |= words[i].y;
    if (any & has_nan) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            uint4& w = words[i];
            if (!(w.y & has_nan)) continue;
            w.y &= ~has_nan;
            w = {show_nan(w.x), show_nan(w.y), show_nan(w.z), show_nan(w.w)};
        }
    }
}

template <class T, int HT, int KC, int NT>
struct ForwardKernel {
    static_assert(HT <= 2 && NT <= 2);
    using Call = Forward<uint16_t>;
    using P = Plan<3, HT, 2 * KC, NT, 1>;
    using N = Half<T>;
    static constexpr int items = P::items;

    // The exchange: [2][groups][chunks of 32 hidden units][NT][32]
    static __device__ __forceinline__ int chunks(const Call& p) { return p.slices * HT / 2; }
    static __device__ __forceinline__ int slot_bytes(const Call& p) {
        return int(gridDim.x) / p.slices * chunks(p) * (NT * 512);
    }
    static __device__ __forceinline__ uint4* words_of(const Call& p, int group) {
        return p.exchange + int64_t(group) * chunks(p) * (NT * 32);
    }
    // Of 32 words, that of a column of lanes' 8 hidden units and a batch row: in the order of the lanes that read them.
    static __device__ __forceinline__ int place(int column, int row) { return row * 4 + column; }

    static __device__ __forceinline__ void multiply(const Call& p, const Block<P>& block) {
        const int first_chunk = (block.rank * warps + block.warp) * KC, steps = pinned(p.steps);
        const int mine = pinned(min(KC, max(0, chunks(p) - first_chunk)) * NT), slot = pinned(slot_bytes(p));
        const uint4* const from =
            pinned(words_of(p, block.group) + int64_t(first_chunk) * (NT * 32) + place(block.lane % 4, block.lane / 4));
        const Multiplier<T, P> times(block, [&](int m, int k) { return left(p, block, m, first_chunk, k); });
        uint4 words[KC * NT];
#pragma unroll
        for (int i = 0; i < KC * NT; ++i) words[i] = initial(p, block, first_chunk + i / NT, i % NT);
        Patience patience;
        for (int s = 0; s < steps; ++s) {
            if (s > 0) {
                wait(published);
                const uint32_t mark = step_mark(s);
                patience.await(words, mine, beyond(from, s & 1 ? slot : 0),
                               [&](const uint4& w) { return (w.x & top) == mark; });
                unmark(words);
            }
            times([&](int k, int n) {
                const uint4& w = words[k / 2 * NT + n];
                return k % 2 ? uint2{w.z, w.w} : uint2{w.x, w.y};
            });
        }
    }

    static __device__ __forceinline__ void gates(const Call& p, const Block<P>& block) {
        const Place<P> at(block, p);
        const int H = at.hidden, lane = at.lane, steps = pinned(p.steps);
        // Where the first item's numbers are at step 0, and how many bytes on at the next.
        const int64_t here = int64_t(at.b) * H + at.j;
        const int width = pinned(3 * H), gates_step = pinned(at.batch * H * 6);
        const uint16_t* const gates = pinned(p.gates + int64_t(at.b) * width + at.j);
        const int row_step = pinned(at.batch * H * 2);
        // Of each 16 hidden units lanes 0 to 3 write the words of the first batch rows, the next four those of the
        // second.
        uint16_t* const stage = reinterpret_cast<uint16_t*>(block.rest()) + at.q * (items + 4 * NT) * 32;
        const int n = lane / 4 % NT, j = at.j - lane / 4, b = at.b + n * 8;
        const bool writes = lane < 4 * NT, outputs = writes && b < at.batch;
        const int length = pinned(n ? at.length[NT - 1] : at.length[0]);
        const int first = pinned(n ? at.first[NT - 1] : at.first[0]);
        uint4* const to = pinned(words_of(p, block.group) + (j / 32 * NT + n) * 32 + place(j % 32 / 8, b % 8));
        uint16_t* const output = pinned(p.output + int64_t(b) * H + j);
        const int slot = pinned(slot_bytes(p));
        // What is kept goes the same way, four lanes to a kind and 8 batch rows: i, o, g, c.
        uint16_t* const kept_stage = stage + items * 32;
        const int kind = lane / (4 * NT);
        const bool keeps = p.keep_gates || p.kept_c;
        uint16_t* const kept = pinned(b >= at.batch              ? nullptr
                                      : kind < 3 && p.keep_gates ? p.gates + int64_t(b) * width + kind * H + j
                                      : kind == 3 && p.kept_c    ? p.kept_c + int64_t(b) * H + j
                                                                 : nullptr);
        const int kept_step = pinned(kind < 3 ? gates_step : row_step);
        void* const cells = pinned(p.cells);
        float* const bias = reinterpret_cast<float*>(block.rest() + P::stage_bytes) + at.q * 32 + lane;

        const uint32_t zero = pinned(uint32_t(p.steps) >> 31);  // which ptxas does not know
        float c[items], pre[items][3];
        uint16_t h[items], raw[items][3];
#pragma unroll
        for (int i = 0; i < items; ++i) {
            const int64_t mine = here + at.apart(i, H);
            c[i] = at.has(i) && p.c_0 ? persist::at<T>(p.c_0, p.is_wide, mine) : 0.0f;
            h[i] = at.has(i) && p.h_0 ? p.h_0[mine] : 0;
#pragma unroll
            for (int g = 0; g < 3; ++g)
                bias[(i * 3 + g) * 128] =
                    at.has(i) && p.bias_hh ? N::wide(p.bias_hh[g * H + at.j + i / NT * 16]) : 0.0f;
        }
        // Gates are loaded two steps ahead, and made numbers one ahead.
        load(at, gates, width, gates_step, 0, raw);
        add(raw, bias, pre);
        load(at, gates, width, gates_step, 1, raw);

        for (int s = 0; s < steps; ++s) {
            float in[items], out[items], candidate[items];
            uint4 word[HT];
#pragma unroll
            for (int ht = 0; ht < HT; ++ht) {
                wait(ht < HT - 1 ? summed + 1 : summed);
                float4 v[NT][3][2];
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int g = 0; g < 3; ++g) at.parts(0, ht * NT + n, g, v[n][g]);
                const float nothing = after(v, zero);
#pragma unroll
                for (int i = ht * NT; i < (ht + 1) * NT; ++i) {
                    in[i] = sigmoid((pre[i][0] + nothing) + at.total(v[i % NT][0]));
                    out[i] = sigmoid((pre[i][1] + nothing) + at.total(v[i % NT][1]));
                    candidate[i] = (pre[i][2] + nothing) + at.total(v[i % NT][2]);
                    const float next = fmaf(elu(candidate[i]), in[i], c[i]);
                    const uint16_t rounded = N::narrow(tanh_of(next) * out[i]);
                    c[i] = at.on(i, s) ? next : c[i];
                    h[i] = at.on(i, s) ? rounded : h[i];
                    stage[i * 32 + lane % 4 * 8 + lane / 4] = h[i];
                }
                __syncwarp();
                if (writes) {
                    word[ht] = *reinterpret_cast<const uint4*>(stage + ht * NT * 32 + lane * 8);
                    store_word(beyond(to, s & 1 ? 0 : slot) + ht * 2, marked(word[ht], s + 1));
                }
                __syncwarp();
            }
            if (s + 1 < steps) arrive(published);
            const bool on = s < length;
            const int64_t row = on ? first + at.sign * s : s;
            if (outputs) {
                uint16_t* const to = beyond(output, row * row_step);
#pragma unroll
                for (int ht = 0; ht < HT; ++ht)
                    if (j + ht * 16 < H) put(to + ht * 16, on ? word[ht] : uint4{}, H, j + ht * 16);
            }
            if (keeps) {
#pragma unroll
                for (int ht = 0; ht < HT; ++ht) {
#pragma unroll
                    for (int i = ht * NT; i < (ht + 1) * NT; ++i) {
                        uint16_t* const to = kept_stage + i % NT * 32 + lane % 4 * 8 + lane / 4;
                        to[0] = N::narrow(in[i]), to[NT * 32] = N::narrow(out[i]);
                        to[2 * NT * 32] = N::narrow(candidate[i]), to[3 * NT * 32] = N::narrow(c[i]);
                    }
                    __syncwarp();
                    if (kept && j + ht * 16 < H) {
                        const uint4 w = *reinterpret_cast<const uint4*>(kept_stage + lane * 8);
                        put(beyond(kept, row * kept_step) + ht * 16, on ? w : uint4{}, H, j + ht * 16);
                    }
                    __syncwarp();
                }
            }
            if (cells) {
#pragma unroll
                for (int i = 0; i < items; ++i) {
                    if (!at.has(i)) continue;
                    const int64_t to = int64_t(at.when(i, s)) * at.batch * H + here + at.apart(i, H);
                    put_at<T>(cells, p.is_wide, to, at.on(i, s) ? c[i] : 0.0f);
                }
            }
            add(raw, bias, pre);
            load(at, gates, width, gates_step, s + 2, raw);
        }
#pragma unroll
        for (int i = 0; i < items; ++i) {
            if (!at.has(i)) continue;
            const int64_t mine = here + at.apart(i, H);
            put_at<T>(p.c_n, p.is_wide, mine, c[i]);
            p.h_n[mine] = h[i];
        }
    }

    // A lane's part of a tile of weights. The four columns of lanes have 8 hidden units each of a chunk of 32, so that
    // a word of the exchange is 8 neighbours.
    static __device__ __forceinline__ uint4 left(const Call& p, const Block<P>& block, int m, int first_chunk, int k) {
        const int column = (first_chunk + k / 2) * 32 + block.lane % 4 * 8 + k % 2 * 4, gate = m % 3;
        uint32_t part[2][2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int j = block.hidden_of(m, block.lane / 4 + 8 * r);
            const int64_t row = (int64_t(gate) * p.hidden + j) * p.hidden;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int at = column + 2 * e;
                part[r][e] = packed(at_or_zero(p.weights, row + at, j < p.hidden && at < p.hidden),
                                    at_or_zero(p.weights, row + at + 1, j < p.hidden && at + 1 < p.hidden));
            }
        }
        return {part[0][0], part[1][0], part[0][1], part[1][1]};
    }

    static __device__ __forceinline__ uint4 initial(const Call& p, const Block<P>& block, int chunk, int n) {
        if (!p.h_0) return {};
        const int b = ((p.first_group + block.group) * NT + n) * 8 + block.lane / 4,
                  j = chunk * 32 + block.lane % 4 * 8;
        uint32_t part[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int64_t at = int64_t(b) * p.hidden + j + 2 * e;
            part[e] = packed(at_or_zero(p.h_0, at, b < p.batch && j + 2 * e < p.hidden),
                             at_or_zero(p.h_0, at + 1, b < p.batch && j + 2 * e + 1 < p.hidden));
        }
        return {part[0], part[1], part[2], part[3]};
    }

    static __device__ __forceinline__ void load(const Place<P>& at, const uint16_t* gates, int width, int step, int s,
                                                uint16_t (&raw)[items][3]) {
#pragma unroll
        for (int i = 0; i < items; ++i) {
            const uint16_t* here = beyond(gates, int64_t(at.when(i, s)) * step) + at.apart(i, width);
#pragma unroll
            for (int g = 0; g < 3; ++g) raw[i][g] = at.on(i, s) && at.has(i) ? __ldcs(here + g * at.hidden) : 0;
        }
    }
    static __device__ __forceinline__ void add(const uint16_t (&raw)[items][3], const float* bias,
                                               float (&pre)[items][3]) {
#pragma unroll
        for (int i = 0; i < items; ++i)
#pragma unroll
            for (int g = 0; g < 3; ++g) pre[i][g] = N::wide(raw[i][g]) + bias[(i * 3 + g) * 128];
    }

    static __device__ __forceinline__ void put(uint16_t* to, uint4 w, int hidden, int j) {
        if (hidden % 8 == 0) {
            *reinterpret_cast<uint4*>(to) = w;
            return;
        }
        const uint32_t part[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int e = 0; e < 8; ++e)
            if (j + e < hidden) to[e] = uint16_t(part[e / 2] >> (e % 2 * 16));
    }
};

template <class T, int HT, int KC, int NT>
__global__ void __launch_bounds__(threads, 1) forward(const __grid_constant__ Forward<uint16_t> call) {
    if constexpr (runs(1)) run<ForwardKernel<T, HT, KC, NT>>(call);
}

}  // namespace lltm::persist
