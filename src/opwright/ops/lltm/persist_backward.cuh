// The backward recurrence in half precisions.
#pragma once

#include "persist_gates.cuh"

namespace lltm::persist {

// A word is two hidden units' gradients of i, o and g of a batch row, and the number of the step: three registers of
// four are what mma.sync wants, in its order. 16 hidden units are 3 tiles of the sum (K = 3 hidden), two words a lane.
template <class T, int HT, int SC, int NT, int C>
struct BackwardKernel {
    using Call = Backward<uint16_t>;
    using P = Plan<1, HT, 3 * SC, NT, C>;
    using N = Half<T>;
    static constexpr int items = P::items;

    struct Raw {
        uint16_t gates[4], d_output;  // gates: and c
        uint32_t d_cell;              // as many bits as it has
    };
    // What a step takes of what was kept: the factors of the gradients of h and c.
    struct Factors {
        float c_of_h, i_of_c, o_of_h, g_of_c, d_output, d_cell;
    };

    // The exchange: [2][groups][chunks of 16 hidden units][NT][2][32]
    static __device__ __forceinline__ int chunks(const Call& p) { return p.slices * HT; }
    static __device__ __forceinline__ int slot_bytes(const Call& p) {
        return int(gridDim.x) / p.slices * chunks(p) * (NT * 1024);
    }
    static __device__ __forceinline__ uint4* words_of(const Call& p, int group) {
        return p.exchange + int64_t(group) * chunks(p) * (NT * 64);
    }
    // Of 64 words, that of hidden units j and j + 1 and a batch row: in the order of the lanes that read them.
    static __device__ __forceinline__ int place(int j, int row) { return j % 4 / 2 * 32 + row * 4 + j / 4; }

    static __device__ __forceinline__ void multiply(const Call& p, const Block<P>& block) {
        const int first_chunk = (block.rank * warps + block.warp) * SC, steps = pinned(p.steps);
        const int mine = pinned(min(SC, max(0, chunks(p) - first_chunk)) * NT * 2), slot = pinned(slot_bytes(p));
        const uint4* const from = pinned(words_of(p, block.group) + int64_t(first_chunk) * (NT * 64) +
                                         place(block.lane % 4 * 4, block.lane / 4));
        const Multiplier<T, P> times(block, [&](int m, int k) { return left(p, block, m, first_chunk, k); });
        Patience patience;
        for (int done = 1; done <= steps; ++done) {
            wait(published);
            uint4 words[SC * NT * 2];
            patience.await(words, mine, beyond(from, done & 1 ? slot : 0),
                           [&](const uint4& w) { return w.w == uint32_t(done); });
            times([&](int k, int n) {
                const uint4 &a = words[(k / 3 * NT + n) * 2], &b = words[(k / 3 * NT + n) * 2 + 1];
                return k % 3 == 0 ? uint2{a.x, a.y} : k % 3 == 1 ? uint2{a.z, b.x} : uint2{b.y, b.z};
            });
        }
    }

    static __device__ __forceinline__ void gates(const Call& p, const Block<P>& block) {
        const Place<P> at(block, p);
        const int H = at.hidden, lane = at.lane, steps = pinned(p.steps);
        const int64_t here = int64_t(at.b) * H + at.j;
        const int width = pinned(3 * H), gates_step = pinned(at.batch * H * 6);
        const uint16_t* const gates = pinned(p.gates + int64_t(at.b) * width + at.j);
        const uint16_t* const kept_c = pinned(p.kept_c + here);
        const void* const d_cells = pinned(p.grad_cells);
        const bool wide = p.cells_are_wide;
        const uint16_t* const d_output = pinned(p.grad_output ? p.grad_output + here : nullptr);
        uint16_t* const d_gates = pinned(p.grad_gates + int64_t(at.b) * 3 * H + at.j);
        const uint16_t* const d_h_n = pinned(p.grad_h_n ? p.grad_h_n + here : nullptr);
        const int row_step = pinned(at.batch * H * 2);
        const int slot = pinned(slot_bytes(p));
        uint4* const to = pinned(words_of(p, block.group) + at.j / 16 * (NT * 64) + place(at.j % 16, at.b % 8));
        const bool writes = lane / 4 % 2 == 0;

        float d_c[items];
        Factors f[items];
        Raw raw[items];
#pragma unroll
        for (int i = 0; i < items; ++i)
            d_c[i] = at.has(i) && p.grad_c_n ? persist::at<T>(p.grad_c_n, p.c_n_is_wide, here + at.apart(i, H)) : 0.0f;
        const auto load = [&](int s) {
#pragma unroll
            for (int i = 0; i < items; ++i) {
                const int64_t when = at.when(i, s);
                const bool there = at.on(i, s) && at.has(i);
#pragma unroll
                for (int g = 0; g < 3; ++g)
                    raw[i].gates[g] = there ? __ldcs(beyond(gates, when * gates_step) + at.apart(i, width) + g * H) : 0;
                raw[i].gates[3] = there ? __ldg(beyond(kept_c, when * row_step) + at.apart(i, H)) : 0;
                raw[i].d_output = there && d_output ? __ldg(beyond(d_output, when * row_step) + at.apart(i, H)) : 0;
                raw[i].d_cell = 0;
                if (there && d_cells) {
                    const int64_t from = when * at.batch * H + here + at.apart(i, H);
                    raw[i].d_cell = wide ? __ldg(static_cast<const uint32_t*>(d_cells) + from)
                                         : __ldg(static_cast<const uint16_t*>(d_cells) + from);
                }
            }
        };
        load(steps - 1);
        factors(raw, wide, f);
        load(steps - 2);

        for (int done = 0; done <= steps; ++done) {
            const int s = steps - 1 - done;
            float sum[items][1] = {};
            if (done > 0) at.collect(done - 1, sum);
            if (s < 0) {
                finish(p, at, here, sum, d_c);
                break;
            }
            uint4 w[items];
#pragma unroll
            for (int i = 0; i < items; ++i) {
                const bool on = at.on(i, s), last = s + 1 == at.length[i % NT];
                // At its last step a row has no later one: zeros times weights that are not finite would not be zero.
                float d_h = f[i].d_output + (last ? 0.0f : sum[i][0]);
                if (last && d_h_n && at.has(i)) d_h += N::wide(d_h_n[at.apart(i, H)]);
                const float next = fmaf(d_h, f[i].c_of_h, d_c[i] + f[i].d_cell);
                uint32_t io = packed(N::narrow(next * f[i].i_of_c), N::narrow(d_h * f[i].o_of_h)),
                         g = N::narrow(next * f[i].g_of_c);
                d_c[i] = on ? next : d_c[i], io = on ? io : 0, g = on ? g : 0;
                // Lanes of two neighbours put theirs together: the one with the even unit has the word.
                const uint32_t next_io = __shfl_down_sync(all_lanes, io, 4), next_g = __shfl_down_sync(all_lanes, g, 4);
                w[i] = {__byte_perm(io, next_io, 0x5410), __byte_perm(io, next_io, 0x7632),
                        __byte_perm(g, next_g, 0x5410), uint32_t(done + 1)};
                if (writes) store_word(beyond(to, done & 1 ? 0 : slot) + i * 64, w[i]);
            }
            __syncwarp();
            arrive(published);
#pragma unroll
            for (int i = 0; i < items; ++i)
                if (writes && at.has(i))
                    put(beyond(d_gates, int64_t(at.when(i, s)) * row_step * 3) + at.apart(i, 3 * H), w[i], H,
                        at.j + i / NT * 16);
            factors(raw, wide, f);
            load(s - 2);
        }
    }

    static __device__ __forceinline__ uint4 left(const Call& p, const Block<P>& block, int m, int first_chunk, int k) {
        const int chunk = first_chunk + k / 3, H = p.hidden;
        uint32_t part[2][2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int at = k % 3 * 2 + e, gate = at % 3, from = chunk * 16 + block.lane % 4 * 4 + at / 3 * 2;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int j = block.hidden_of(m, block.lane / 4 + 8 * r);
                const int64_t index = (int64_t(gate) * H + from) * H + j;
                part[r][e] = packed(at_or_zero(p.weights, index, j < H && from < H),
                                    at_or_zero(p.weights, index + H, j < H && from + 1 < H));
            }
        }
        return {part[0][0], part[1][0], part[0][1], part[1][1]};
    }

    static __device__ __forceinline__ void factors(const Raw (&raw)[items], bool wide, Factors (&f)[items]) {
#pragma unroll
        for (int i = 0; i < items; ++i) {
            const float in = N::wide(raw[i].gates[0]), out = N::wide(raw[i].gates[1]), g = N::wide(raw[i].gates[2]),
                        t = tanh_of(N::wide(raw[i].gates[3]));
            f[i] = {out * (1.0f - t * t),     elu(g) * in * (1.0f - in),
                    t * out * (1.0f - out),   in * (g > 0.0f ? 1.0f : exp2_of(log2_e * g)),
                    N::wide(raw[i].d_output), wide ? __uint_as_float(raw[i].d_cell) : N::wide(uint16_t(raw[i].d_cell))};
        }
    }

    static __device__ __forceinline__ void put(uint16_t* to, uint4 w, int hidden, int j) {
        const uint32_t part[3] = {w.x, w.y, w.z};
#pragma unroll
        for (int e = 0; e < 3; ++e, to += hidden) {
            if (hidden % 2 == 0) {
                *reinterpret_cast<uint32_t*>(to) = part[e];
            } else {
                to[0] = uint16_t(part[e]);
                if (j + 1 < hidden) to[1] = uint16_t(part[e] >> 16);
            }
        }
    }

    static __device__ __forceinline__ void finish(const Call& p, const Place<P>& at, int64_t here,
                                                  const float (&sum)[items][1], const float (&d_c)[items]) {
#pragma unroll
        for (int i = 0; i < items; ++i) {
            if (!at.has(i)) continue;
            const int64_t mine = here + at.apart(i, at.hidden);
            if (p.grad_c_0) put_at<T>(p.grad_c_0, p.c_0_is_wide, mine, d_c[i]);
            if (p.grad_h_0)
                p.grad_h_0[mine] = at.length[i % NT] > 0 ? N::narrow(sum[i][0]) : p.grad_h_n ? p.grad_h_n[mine] : 0;
        }
    }
};

template <class T, int HT, int SC, int NT, int C>
__global__ void __launch_bounds__(threads, 1) backward(const __grid_constant__ Backward<uint16_t> call) {
    if constexpr (runs(C)) run<BackwardKernel<T, HT, SC, NT, C>>(call);
}

}  // namespace lltm::persist
