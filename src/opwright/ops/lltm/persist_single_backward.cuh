// The backward recurrence in float32.
#pragma once

#include "persist_single.cuh"

namespace lltm::persist {

template <int LN, int NR, int C>
struct Backward32Kernel {
    using P = Plan32<1, LN, NR, C>;
    static constexpr int MR = P::MR, KK = P::KK, N = P::N;

    static __device__ __forceinline__ void run(const Backward<float>& p) {
        extern __shared__ __align__(16) unsigned char shared[];
        const int H = p.hidden, group = int(blockIdx.x) / p.slices, slice = int(blockIdx.x) % p.slices;
        const int groups = int(gridDim.x) / p.slices;
        const int rank = slice % C, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int ln = lane % LN, lm = lane / LN % P::LM, kk = lane / (P::LM * LN);
        const int made = p.slices * slice32, per_rank = made / C, per_warp = P::per_warp(per_rank),
                  K = per_warp * warps;
        float* const W = reinterpret_cast<float*>(shared);  // [K][3][M]: rows are hidden units of the cluster's blocks
        float* const sums = W + K * 3 * P::M;               // [warps][M][apart]
        float* const inbox = sums + warps * P::M * P::apart;  // 2 × [C][slice][apart]
        Stream<P> stream;
        stream.stage = shared_address(inbox + (C > 1 ? 2 * C * slice32 * P::apart : 0)) + warp * P::stage_bytes;
        const uint32_t theirs = pinned(stream.stage + (kk * N + ln) * 16);  // what this lane multiplies with
        const uint32_t bell = shared_address(inbox + (C > 1 ? 2 * C * slice32 * P::apart : 0)) + warps * P::stage_bytes;
        for (int i = threadIdx.x; i < K * 3 * P::M; i += threads32) {
            const int m = i % P::M, g = i / P::M % 3, k = i / (3 * P::M), l = rank * per_rank + k;
            const int j = (slice - rank) * slice32 + m;
            W[i] = k < per_rank && l < H && j < H ? p.weights[(int64_t(g) * H + l) * H + j] : 0.0f;
        }
        if constexpr (C > 1) {
            if (threadIdx.x == 0) mbarrier_init(bell), mbarrier_init(bell + 8);
            cluster_sync();
        } else {
            __syncthreads();
        }
        // [2][groups][padded hidden][N]
        const int64_t slot = int64_t(groups) * made * N;
        uint4* const words = p.exchange + int64_t(group) * made * N;
        const int first = warp * per_warp;
        const uint32_t mine = pinned(shared_address(W + (first + kk) * 3 * P::M + lm * MR));  // its first weights
        stream.there = min(per_warp, per_rank - first) * N;
        const Quad<P> at(p, group, slice);
        float d_c[4], d_h[4];
        float4 kept[4];
        float d_out[4], d_cell[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
            d_c[e] =
                at.has(e) && p.grad_c_n ? static_cast<const float*>(p.grad_c_n)[int64_t(at.b + e) * H + at.j] : 0.0f;
        load(p, at, p.steps - 1, kept, d_out, d_cell);

        for (int done = 0; done <= p.steps; ++done) {
            const int s = p.steps - 1 - done;
#pragma unroll
            for (int e = 0; e < 4; ++e) d_h[e] = 0.0f;
            if (done > 0) {
                float acc[MR][NR] = {};
                stream.from = words + (done & 1 ? slot : 0) + int64_t(rank * per_rank + first) * N + lane;
                stream.run(Numbered{uint32_t(done)}, [&](int turn, uint32_t at) {
#pragma unroll
                    for (int k = 0; k < P::terms; k += KK) {
                        float4 v[NR];
#pragma unroll
                        for (int q = 0; q < NR; ++q) v[q] = load_shared(theirs + at + (k * N + q * LN) * 16);
                        times(mine + turn * (P::terms * 3 * P::M * 4) + k * (3 * P::M * 4), v, acc);
                    }
                });
                across<P::LM * LN>(acc);
                if (kk < MR / P::summed) {
                    float* const to = sums + (warp * P::M + lm * MR + kk * P::summed) * P::apart + ln;
#pragma unroll
                    for (int i = 0; i < P::summed; ++i)
#pragma unroll
                        for (int q = 0; q < NR; ++q) to[i * P::apart + q * LN] = acc[i][q];
                }
                __syncthreads();
                if (threadIdx.x < P::workers) collect(done - 1, rank, sums, inbox, bell, d_h);
            }
            if (s < 0) {
                finish(p, at, d_h, d_c);
                break;
            }
            if (threadIdx.x < P::workers)
                gates(p, at, s, done + 1, words + (done & 1 ? 0 : slot), kept, d_out, d_cell, d_h, d_c);
            __syncthreads();
        }
        if constexpr (C > 1) cluster_sync();
    }

    static __device__ __forceinline__ void times(uint32_t row, const float4 (&v)[NR], float (&acc)[MR][NR]) {
#pragma unroll
        for (int g = 0; g < 3; ++g) {
            float a[MR];
            take(row + g * (P::M * 4), a);
#pragma unroll
            for (int i = 0; i < MR; ++i)
#pragma unroll
                for (int q = 0; q < NR; ++q)
                    acc[i][q] = fmaf(a[i], g == 0 ? v[q].x : g == 1 ? v[q].y : v[q].z, acc[i][q]);
        }
    }

    static __device__ __forceinline__ float4 total(const float* sums, int m, int quad) {
        float4 t = {};
#pragma unroll
        for (int w = 0; w < warps; ++w)
            t = plus(t, *reinterpret_cast<const float4*>(sums + (w * P::M + m) * P::apart + quad * 4));
        return t;
    }
    static __device__ __forceinline__ void collect(int count, int rank, const float* sums, float* inbox, uint32_t bells,
                                                   float (&d_h)[4]) {
        const int m = threadIdx.x % slice32, quad = threadIdx.x / slice32;
        float4 out = total(sums, rank * slice32 + m, quad);
        if constexpr (C > 1) {
            const uint32_t bell = bells + 8 * (count & 1);
            float* const here = inbox + (count & 1) * C * slice32 * P::apart + m * P::apart + quad * 4;
            if (threadIdx.x == 0) mbarrier_expect(bell, (C - 1) * slice32 * N * 4);
            for (int d = 1; d < C; ++d) {
                const int owner = (rank + d) % C;
                const uint32_t there = address_in(shared_address(here + rank * slice32 * P::apart), owner),
                               ring = address_in(bell, owner);
                const float4 v = total(sums, owner * slice32 + m, quad);
                send(there, v.x, ring), send(there + 4, v.y, ring), send(there + 8, v.z, ring),
                    send(there + 12, v.w, ring);
            }
            mbarrier_wait(bell, count >> 1 & 1);
            float4 all = {};
            for (int r = 0; r < C; ++r)
                all = plus(all, r == rank ? out : *reinterpret_cast<const float4*>(here + r * slice32 * P::apart));
            out = all;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) d_h[e] = part(out, e);
    }

    static __device__ __forceinline__ void load(const Backward<float>& p, const Quad<P>& at, int s, float4 (&kept)[4],
                                                float (&d_out)[4], float (&d_cell)[4]) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const bool there = at.on(e, s);
            const int64_t here = at.row(e, s) * p.hidden + at.j;
            const float* const gates = p.gates + at.row(e, s) * 3 * p.hidden + at.j;
            kept[e] = there ? float4{__ldcs(gates), __ldcs(gates + p.hidden), __ldcs(gates + 2 * p.hidden),
                                     __ldg(p.kept_c + here)}
                            : float4{};
            d_out[e] = there && p.grad_output ? __ldg(p.grad_output + here) : 0.0f;
            d_cell[e] = there && p.grad_cells ? __ldg(static_cast<const float*>(p.grad_cells) + here) : 0.0f;
        }
    }

    static __device__ __forceinline__ void gates(const Backward<float>& p, const Quad<P>& at, int s, int mark,
                                                 uint4* words, float4 (&kept)[4], float (&d_out)[4], float (&d_cell)[4],
                                                 const float (&sum)[4], float (&d_c)[4]) {
        float4 d[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const bool last = s + 1 == at.length[e];
            float d_h = d_out[e] + (last ? 0.0f : sum[e]);
            if (last && p.grad_h_n && at.has(e)) d_h += p.grad_h_n[int64_t(at.b + e) * p.hidden + at.j];
            const float i = kept[e].x, o = kept[e].y, g = kept[e].z, t = tanhf(kept[e].w);
            const float next = d_c[e] + d_cell[e] + d_h * o * (1.0f - t * t);
            d[e] = {next * exact_elu(g) * i * (1.0f - i), d_h * t * o * (1.0f - o),
                    next * i * (g > 0.0f ? 1.0f : expf(g)), 0.0f};
            if (at.on(e, s))
                d_c[e] = next;
            else
                d[e] = {};
            store_word(words + int64_t(at.j) * N + threadIdx.x / slice32 * 4 + e,
                       {__float_as_uint(d[e].x), __float_as_uint(d[e].y), __float_as_uint(d[e].z), uint32_t(mark)});
        }
        load(p, at, s - 1, kept, d_out, d_cell);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (!at.has(e)) continue;
            float* const to = p.grad_gates + at.row(e, s) * 3 * p.hidden + at.j;
            to[0] = d[e].x, to[p.hidden] = d[e].y, to[2 * int64_t(p.hidden)] = d[e].z;
        }
    }

    static __device__ __forceinline__ void finish(const Backward<float>& p, const Quad<P>& at, const float (&d_h)[4],
                                                  const float (&d_c)[4]) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (!at.has(e)) continue;
            const int64_t here = int64_t(at.b + e) * p.hidden + at.j;
            if (p.grad_c_0) static_cast<float*>(p.grad_c_0)[here] = d_c[e];
            if (p.grad_h_0) p.grad_h_0[here] = at.length[e] > 0 ? d_h[e] : p.grad_h_n ? p.grad_h_n[here] : 0.0f;
        }
    }
};

template <int LN, int NR, int C>
__global__ void __launch_bounds__(threads32, 1) backward32(const __grid_constant__ Backward<float> call) {
    if constexpr (runs(C)) Backward32Kernel<LN, NR, C>::run(call);
}

}  // namespace lltm::persist
