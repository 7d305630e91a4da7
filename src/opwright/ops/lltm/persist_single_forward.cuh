// The forward recurrence in float32.
#pragma once

#include "persist_single.cuh"

namespace lltm::persist {

template <int LN, int NR>
struct Forward32Kernel {
    using P = Plan32<3, LN, NR, 1>;
    static constexpr int MR = P::MR, KK = P::KK, N = P::N, NQ = NR / 4;

    static __device__ __forceinline__ void run(const Forward<float>& p) {
        extern __shared__ __align__(16) unsigned char shared[];
        const int H = p.hidden, group = int(blockIdx.x) / p.slices, slice = int(blockIdx.x) % p.slices;
        const int groups = int(gridDim.x) / p.slices;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int ln = lane % LN, lm = lane / LN % P::LM, kk = lane / (P::LM * LN);
        const int per_warp = P::per_warp(H), K = per_warp * warps;
        float* const W = reinterpret_cast<float*>(shared);  // [K][M], rows hidden unit · 3 + gate
        float* const sums = W + K * P::M;                   // [warps][M][apart]
        for (int i = threadIdx.x; i < K * P::M; i += threads32) {
            const int m = i / K, k = i % K, j = slice * slice32 + m / 3;
            W[k * P::M + m] = k < H && j < H ? p.weights[(int64_t(m % 3) * H + j) * H + k] : 0.0f;
        }
        __syncthreads();

        // [2][groups][padded hidden][quads]
        const int made = p.slices * slice32;
        const int64_t slot = int64_t(groups) * made * P::quads;
        uint4* const words = p.exchange + int64_t(group) * made * P::quads;
        const int first = warp * per_warp;
        // This lane's weights of the first term.
        const uint32_t mine = pinned(shared_address(W + (first + kk) * P::M + lm * MR));
        Stream<P> stream;
        stream.stage = shared_address(sums + warps * P::M * P::apart) + warp * P::stage_bytes;
        const uint32_t theirs = pinned(stream.stage + (kk * P::quads + ln) * 16);  // what it multiplies with
        stream.there = min(per_warp, made - first) * P::quads;
        const Quad<P> at(p, group, slice);
        float c[4], h[4], x[4][3], bias[3];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            c[e] = at.has(e) && p.c_0 ? static_cast<const float*>(p.c_0)[int64_t(at.b + e) * H + at.j] : 0.0f;
            h[e] = at.has(e) && p.h_0 ? p.h_0[int64_t(at.b + e) * H + at.j] : 0.0f;
        }
#pragma unroll
        for (int g = 0; g < 3; ++g) {
            bias[g] = p.bias_ih && at.j < H ? p.bias_ih[g * H + at.j] : 0.0f;
            if (p.bias_hh && at.j < H) bias[g] += p.bias_hh[g * H + at.j];
        }
        load(p, at, 0, x);

        for (int s = 0; s < p.steps; ++s) {
            float acc[MR][NR] = {};
            if (s == 0) {
                for (int k = kk; k < per_warp; k += KK) {  // zeros too: times weights that are not finite
                    float b[NR];
#pragma unroll
                    for (int q = 0; q < NR; ++q) {
                        const int row = (p.first_group + group) * N + (q / 4 * LN + ln) * 4 + q % 4;
                        b[q] = p.h_0 && first + k < H && row < p.batch ? p.h_0[int64_t(row) * H + first + k] : 0.0f;
                    }
                    times(mine + (k - kk) * (P::M * 4), b, acc);
                }
                __syncwarp();
            } else {
                stream.from = words + (s & 1 ? slot : 0) + int64_t(first) * P::quads + lane;
                stream.run(Marked(s), [&](int turn, uint32_t at) {
#pragma unroll
                    for (int k = 0; k < P::terms; k += KK) {
                        float b[NR];
#pragma unroll
                        for (int q = 0; q < NQ; ++q) {
                            const float4 v = load_shared(theirs + at + (k * P::quads + q * LN) * 16);
                            b[q * 4] = v.x, b[q * 4 + 1] = v.y, b[q * 4 + 2] = v.z, b[q * 4 + 3] = v.w;
                        }
                        times(mine + turn * (P::terms * P::M * 4) + k * (P::M * 4), b, acc);
                    }
                });
            }
            across<P::LM * LN>(acc);
            if (kk < MR / P::summed) {
                float* const to = sums + (warp * P::M + lm * MR + kk * P::summed) * P::apart + ln * 4;
#pragma unroll
                for (int i = 0; i < P::summed; ++i)
#pragma unroll
                    for (int q = 0; q < NR; q += 4)
                        *reinterpret_cast<float4*>(to + i * P::apart + q * LN) = {acc[i][q], acc[i][q + 1],
                                                                                  acc[i][q + 2], acc[i][q + 3]};
            }
            __syncthreads();
            if (threadIdx.x < P::workers) gates(p, at, s, sums, words + (s & 1 ? 0 : slot), bias, x, c, h);
            __syncthreads();  // the sums have been read
        }
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (at.has(e)) {
                const int64_t mine = int64_t(at.b + e) * H + at.j;
                static_cast<float*>(p.c_n)[mine] = c[e], p.h_n[mine] = h[e];
            }
    }

    static __device__ __forceinline__ void times(uint32_t w, const float (&b)[NR], float (&acc)[MR][NR]) {
        float a[MR];
        take(w, a);
#pragma unroll
        for (int i = 0; i < MR; ++i)
#pragma unroll
            for (int q = 0; q < NR; ++q) acc[i][q] = fmaf(a[i], b[q], acc[i][q]);
    }

    static __device__ __forceinline__ void load(const Forward<float>& p, const Quad<P>& at, int s, float (&x)[4][3]) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
#pragma unroll
            for (int g = 0; g < 3; ++g)
                x[e][g] = at.on(e, s) ? __ldcs(p.gates + (at.row(e, s) * 3 + g) * p.hidden + at.j) : 0.0f;
    }

    static __device__ __forceinline__ void gates(const Forward<float>& p, const Quad<P>& at, int s, const float* sums,
                                                 uint4* words, const float (&bias)[3], float (&x)[4][3], float (&c)[4],
                                                 float (&h)[4]) {
        const int m = threadIdx.x % slice32, quad = threadIdx.x / slice32;
        float4 total[3] = {};
#pragma unroll
        for (int w = 0; w < warps; ++w)
#pragma unroll
            for (int g = 0; g < 3; ++g)
                total[g] = plus(total[g],
                                *reinterpret_cast<const float4*>(sums + (w * P::M + m * 3 + g) * P::apart + quad * 4));
        float z[4][3];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            z[e][0] = exact_sigmoid(x[e][0] + bias[0] + part(total[0], e));
            z[e][1] = exact_sigmoid(x[e][1] + bias[1] + part(total[1], e));
            z[e][2] = x[e][2] + bias[2] + part(total[2], e);
            const float next = fmaf(exact_elu(z[e][2]), z[e][0], c[e]);
            if (at.on(e, s)) c[e] = next, h[e] = tanhf(next) * z[e][1];
        }
        if (s + 1 < p.steps) store_word(words + int64_t(at.j) * P::quads + quad, marked32(h, s + 1));
        load(p, at, s + 1, x);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (!at.has(e)) continue;
            const bool on = at.on(e, s);
            const int64_t row = at.row(e, s), here = row * p.hidden + at.j;
            p.output[here] = on ? h[e] : 0.0f;
            if (p.keep_gates) {
                float* const to = p.gates + row * 3 * p.hidden + at.j;
#pragma unroll
                for (int g = 0; g < 3; ++g) to[g * p.hidden] = on ? z[e][g] : 0.0f;
            }
            if (p.kept_c) p.kept_c[here] = on ? c[e] : 0.0f;
            if (p.cells) static_cast<float*>(p.cells)[here] = on ? c[e] : 0.0f;
        }
    }
};

template <int LN, int NR>
__global__ void __launch_bounds__(threads32, 1) forward32(const __grid_constant__ Forward<float> call) {
    if constexpr (runs(1)) Forward32Kernel<LN, NR>::run(call);
}

}  // namespace lltm::persist
