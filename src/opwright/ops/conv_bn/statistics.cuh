// Mean and variance of each channel, of the parts of it that blocks read.
#pragma once

#include "passes.cuh"

#pragma GCC visibility push(hidden)

namespace conv_bn {

__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }  // never part of an fma
__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }

// The sum of two numbers: one, and what it is rounded by. A mean far from 0 keeps its digits so.
template <class C>
struct Pair {
    C high, low;
    __device__ static Pair sum(C a, C b) {
        const C high = a + b, more = high - a, low = (a - (high - more)) + (b - more);
        return {high, isfinite(high) ? low : C(0)};
    }
};

// The mean of n values whose deviations from `pivot` add up to `sum`.
template <class C>
__device__ __forceinline__ Pair<C> mean_of(C pivot, C sum, C n) {
    const C all = times(n, pivot), rest = fma(n, pivot, -all);
    const Pair<C> total = Pair<C>::sum(all, sum);
    const C high = total.high / n, low = (fma(-high, n, total.high) + (total.low + rest)) / n;
    return isfinite(low) ? Pair<C>::sum(high, low) : Pair<C>{pivot + sum / n, C(0)};  // n · pivot may overflow
}

// Mean and squared deviations of n values and of others together, which are a `share` of both.
template <class C>
__device__ __forceinline__ void join(Pair<C>& mean, C& m2, C n, Pair<C> other, C other_m2, C others, C share) {
    if (others == C(0)) return;
    if (n == C(0)) {
        mean = other, m2 = other_m2;
        return;
    }
    const C delta = (other.high - mean.high) + (other.low - mean.low);
    // Infinities add up as they do in sums.
    const Pair<C> sum = Pair<C>::sum(mean.high, isfinite(delta) ? delta * share : other.high);
    mean = {sum.high, isfinite(sum.high) ? mean.low + sum.low : C(0)};
    m2 += other_m2 + delta * delta * n * share;
}

// What a part of the values leaves for others to join, for each channel its mean, its squared deviations and what the
// mean is rounded by: [high…, squared…, count, low…]. What a process leaves ends with the count.
inline __host__ __device__ int64_t size_of_part(int64_t channels, bool lows) { return (lows ? 3 : 2) * channels + 1; }

// The moments of a block's part, at parts[blockIdx.x]. A thread sums what differs from its first value, so that a mean
// far from 0 costs no digits.
template <int Threads, class T, int V, bool Last, class K>
__device__ __forceinline__ void statistics_of(const Steps<T, V, Last>& s, const K& kept, const T* y,
                                              Compute<T>* parts) {
    using C = Compute<T>;
    constexpr int own = Steps<T, V, Last>::own, warps = Threads / 32;
    const Walk& walk = s.w;
    C pivot[own], sum[own] = {}, squares[own] = {};
    int seen = 0;
    C first[V] = {};
    if (s.count > 0) widen<T>(load<T, V>(y, s.offset(0)), first);
#pragma unroll
    for (int k = 0; k < own; ++k) pivot[k] = isfinite(first[k]) ? first[k] : C(0);
    const auto take = [&](const Pack<T, V>& pack) {
        C x[V];
        widen<T>(pack, x);
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const int k = Last ? v : 0;
            const C d = x[v] - pivot[k];
            sum[k] += d;
            squares[k] += d * d;
        }
        seen += Last ? 1 : V;
    };
    int i = 0;
    for (; i + 4 <= s.count; i += 4) {
        Pack<T, V> pack[4];
#pragma unroll
        for (int u = 0; u < 4; ++u) pack[u] = load<T, V>(y, s.offset(i + u));
#pragma unroll
        for (int u = 0; u < 4; ++u) {
            if constexpr (!std::is_same_v<K, Nothing>) {
                if (kept.has(i + u)) kept[i + u] = pack[u];
            }
            take(pack[u]);
        }
    }
    for (; i < s.count; ++i) {
        const Pack<T, V> pack = load<T, V>(y, s.offset(i));
        if constexpr (!std::is_same_v<K, Nothing>) {
            if (kept.has(i)) kept[i] = pack;
        }
        take(pack);
    }

    // The rows of a warp, then the warps.
    __shared__ C highs[own][warps * most_across<V>], lows[own][warps * most_across<V>],
        squared[own][warps * most_across<V>];
    __shared__ C counts[warps * most_across<V>];
    const int me = threadIdx.x, lane = me % 32, place = me / 32 * walk.across + lane;
    C n = static_cast<C>(seen), m2[own];
    Pair<C> mean[own];
#pragma unroll
    for (int k = 0; k < own; ++k) {
        const C deviations = squares[k] - sum[k] * (seen ? sum[k] / n : C(0));
        m2[k] = seen && !(deviations < C(0)) ? deviations : C(0);  // NaN stays
        mean[k] = seen ? mean_of(pivot[k], sum[k], n) : Pair<C>{C(0), C(0)};
    }
    for (int by = 16; by >= walk.across; by /= 2) {
        const C others = __shfl_down_sync(~0u, n, by), both = n + others, share = others / both;
#pragma unroll
        for (int k = 0; k < own; ++k) {
            const C high = __shfl_down_sync(~0u, mean[k].high, by), low = __shfl_down_sync(~0u, mean[k].low, by);
            join(mean[k], m2[k], n, {high, low}, __shfl_down_sync(~0u, m2[k], by), others, share);
        }
        n = both;
    }
    if (lane < walk.across) {
        counts[place] = n;
#pragma unroll
        for (int k = 0; k < own; ++k) {
            highs[k][place] = mean[k].high, lows[k][place] = mean[k].low, squared[k][place] = m2[k];
        }
    }
    for (int half = warps * walk.across / 2; half >= walk.across; half /= 2) {
        __syncthreads();
        if (me < half) {
            const C here = counts[me], there = counts[me + half], share = there / (here + there);
#pragma unroll
            for (int k = 0; k < own; ++k) {
                Pair<C> found{highs[k][me], lows[k][me]};
                join(found, squared[k][me], here, {highs[k][me + half], lows[k][me + half]}, squared[k][me + half],
                     there, share);
                highs[k][me] = found.high, lows[k][me] = found.low;
            }
            counts[me] = here + there;
        }
    }
    if (me >= walk.across || !s.inside) return;
    C* const part = parts + blockIdx.x * size_of_part(walk.channels, true);
#pragma unroll
    for (int k = 0; k < own; ++k) {
        part[s.channel + k] = highs[k][me];
        part[walk.channels + s.channel + k] = squared[k][me];
        part[2 * walk.channels + 1 + s.channel + k] = lows[k][me];
    }
    if (s.channel == 0) part[2 * walk.channels] = counts[me];
}

template <class T, int V, bool Last>
__global__ void __launch_bounds__(threads) statistics_part(Walk walk, const T* y, Compute<T>* parts) {
    statistics_of<threads>(Steps<T, V, Last>(walk), Nothing(), y, parts);
}

}  // namespace conv_bn

#pragma GCC visibility pop
