// What joins the parts that blocks leave.
#pragma once

#include "backward.cuh"
#include "statistics.cuh"

#pragma GCC visibility push(hidden)

namespace conv_bn {

// A block joins so many channels, side by side; its rows share what there is of them.
constexpr int joined = 8, joining = 1024;

// The sums over the rows of a block, for the threads of the first row, of which there are `side`.
template <int Threads, class C, int N>
__device__ __forceinline__ void sum_rows(C (&values)[N], int side) {
    __shared__ C all[N][Threads];
    const int me = threadIdx.x;
#pragma unroll
    for (int n = 0; n < N; ++n) all[n][me] = values[n];
    for (int half = Threads / 2; half >= side; half /= 2) {
        __syncthreads();
        if (me >= half) continue;
#pragma unroll
        for (int n = 0; n < N; ++n) all[n][me] += all[n][me + half];
    }
#pragma unroll
    for (int n = 0; n < N; ++n) values[n] = all[n][me];
}

template <class C>
struct Moments {
    C n, mean, deviations;
};

// The moments of all parts together, for the first `side` threads, each of a channel; others help. `lows`: whether
// parts say what their means are rounded by.
template <int Threads, class C>
__device__ __forceinline__ Moments<C> join_parts(const C* parts, int count, int64_t channels, int64_t channel, int side,
                                                 bool lows) {
    const int64_t size = size_of_part(channels, lows);
    const bool inside = channel < channels;
    // Parts differ little in their means: what is taken away at the end is small beside their own deviations. A process
    // without images has none; a block has.
    int head = 0;
    if (!lows) {
        while (head + 1 < count && parts[head * size + 2 * channels] == C(0)) ++head;
    }
    const C near = inside ? parts[head * size + channel] : C(0), pivot = isfinite(near) ? near : C(0);
    C sums[3] = {};  // of counts, of what values differ by from the pivot, of the squares of that
    if (inside) {
#pragma unroll 8
        for (int p = threadIdx.x / side; p < count; p += Threads / side) {
            const C* const part = parts + p * size;
            const C here = part[2 * channels], low = lows ? part[2 * channels + 1 + channel] : C(0);
            const C d = (part[channel] - pivot) + low;
            sums[0] += here;
            sums[1] += here * d;
            sums[2] += part[channels + channel] + here * d * d;
        }
    }
    sum_rows<Threads>(sums, side);
    const C n = sums[0];
    C deviations = sums[2] - sums[1] * (sums[1] / n);
    if (deviations < C(0)) deviations = C(0);  // NaN stays
    return {n, mean_of(pivot, sums[1], n).high, deviations};
}

// Mean and variance of each channel from the moments of parts; or, `raw`, the moments of all parts.
template <class T>
__global__ void __launch_bounds__(joining)
    join_moments(const Compute<T>* parts, int count, int64_t channels, Compute<T>* mean, Compute<T>* var,
                 Compute<T>* values, bool raw) {
    using C = Compute<T>;
    const int64_t channel = blockIdx.x * int64_t(joined) + threadIdx.x % joined;
    const Moments<C> all = join_parts<joining>(parts, count, channels, channel, joined, values == nullptr || raw);
    if (threadIdx.x >= joined || channel >= channels) return;
    const bool empty = raw && all.n == C(0);  // a rank without images has no say
    mean[channel] = empty ? C(0) : all.mean;
    var[channel] = raw ? all.deviations : all.deviations / all.n;
    if (channel == 0 && values) *values = all.n;
}

// Σ dz and Σ dz · (y - mean) of all parts for the first `side` threads, each of a channel; others help.
template <int Threads, class C>
__device__ __forceinline__ void join_sums_of(const C* parts, int count, int64_t channels, int64_t channel, int side,
                                             C (&sums)[2]) {
    sums[0] = sums[1] = C(0);
    if (channel < channels) {
#pragma unroll 8
        for (int p = threadIdx.x / side; p < count; p += Threads / side) {
            sums[0] += parts[p * 2 * channels + channel];
            sums[1] += parts[p * 2 * channels + channels + channel];
        }
    }
    sum_rows<Threads>(sums, side);
}

// The gradients that a channel's sums are.
template <class T>
__device__ __forceinline__ void put_gradients(const Gradient& q, int64_t channel, const Compute<T> (&sums)[2]) {
    using C = Compute<T>;
    const Channels& c = q.channels;
    const C root = inverse_root(number<T>(c.var, channel, 0) + static_cast<C>(c.eps));
    put<T>(q.d_gamma, channel, q.planes.images ? sums[1] * root : C(0));  // of no values nothing comes
    put<T>(q.d_beta, channel, sums[0]);
    put<T>(q.d_bias, channel, q.fixed ? sums[0] * root * number<T>(c.gamma, channel, 1) : C(0));
}

template <class T>
__global__ void __launch_bounds__(joining) join_sums(const Compute<T>* parts, int count, Gradient q) {
    using C = Compute<T>;
    const int64_t channels = q.planes.channels, channel = blockIdx.x * int64_t(joined) + threadIdx.x % joined;
    C sums[2];
    join_sums_of<joining>(parts, count, channels, channel, joined, sums);
    if (threadIdx.x >= joined || channel >= channels) return;
    static_cast<C*>(q.sums)[channel] = sums[0];
    static_cast<C*>(q.sums)[channels + channel] = sums[1];
    put_gradients<T>(q, channel, sums);
}

}  // namespace conv_bn

#pragma GCC visibility pop
