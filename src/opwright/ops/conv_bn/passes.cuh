// The passes on the GPU. A thread stays with its channels, whose numbers it holds in registers; sums are taken in the
// same order each time. What a pass has read last lies in the cache: the next one goes the other way.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <opwright/kernel.h>

#include "passes.h"

#pragma GCC visibility push(hidden)

namespace conv_bn {

constexpr int threads = 256;

template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
    T v[V];
};

// How a grid walks over the planes, `V` elements at a time: blockIdx.x and the rows of a block share what there is of a
// channel, blockIdx.y with blockIdx.z and the columns of a block are channels.
struct Walk {
    int64_t channels, places;
    int steps;   // packs of a channel, or rows of all channels where they lie last
    int plane;   // packs of one plane
    int across;  // threads side by side that have channels of their own; 1 where places lie side by side
    bool backwards;
    unsigned magic, shift;  // i / plane = (i + the high half of i · magic) >> shift
};

template <class T, int V, bool Last>
struct Steps {
    static constexpr int own = Last ? V : 1;  // channels of a thread
    const Walk& w;
    int64_t channel;
    int at, step;
    bool inside;

    __device__ explicit Steps(const Walk& w) : w(w) {
        const int rows = threads / w.across, column = threadIdx.x % w.across, row = threadIdx.x / w.across;
        const int64_t sheet = blockIdx.z * int64_t(gridDim.y) + blockIdx.y;
        channel = (sheet * w.across + column) * own;
        inside = channel < w.channels;
        at = inside ? blockIdx.x * rows + row : w.steps;
        step = gridDim.x * rows;
    }
    __device__ __forceinline__ int64_t offset(int i) const {
        if (w.backwards) i = w.steps - 1 - i;
        if constexpr (Last) return i * w.channels + channel;
        const int image = static_cast<int>((__umulhi(unsigned(i), w.magic) + unsigned(i)) >> w.shift);
        return (image * w.channels + channel) * w.places + int64_t(i - image * w.plane) * V;
    }
};

template <class T, int V>
__device__ __forceinline__ Pack<T, V> load(const void* from, int64_t at) {
    return *reinterpret_cast<const Pack<T, V>*>(static_cast<const T*>(from) + at);
}

// Two halves are one word, and one instruction each way.
template <class T, int V>
__device__ __forceinline__ void widen(const Pack<T, V>& pack, Compute<T> (&numbers)[V]) {
    if constexpr (std::is_same_v<T, BFloat16> && V % 2 == 0) {
        const uint32_t* words = reinterpret_cast<const uint32_t*>(&pack);
#pragma unroll
        for (int i = 0; i < V / 2; ++i) {
            numbers[2 * i] = __uint_as_float(words[i] << 16);
            numbers[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    } else if constexpr (std::is_same_v<T, Half> && V % 2 == 0) {
        const __half2* words = reinterpret_cast<const __half2*>(&pack);
#pragma unroll
        for (int i = 0; i < V / 2; ++i) {
            const float2 both = __half22float2(words[i]);
            numbers[2 * i] = both.x, numbers[2 * i + 1] = both.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < V; ++i) numbers[i] = static_cast<Compute<T>>(pack.v[i]);
    }
}
template <class T, int V>
__device__ __forceinline__ void store(void* to, int64_t at, const Compute<T> (&numbers)[V]) {
    Pack<T, V> pack;
    if constexpr (std::is_same_v<T, BFloat16> && V % 2 == 0) {
        __nv_bfloat162* words = reinterpret_cast<__nv_bfloat162*>(&pack);
#pragma unroll
        for (int i = 0; i < V / 2; ++i) words[i] = __floats2bfloat162_rn(numbers[2 * i], numbers[2 * i + 1]);
    } else if constexpr (std::is_same_v<T, Half> && V % 2 == 0) {
        __half2* words = reinterpret_cast<__half2*>(&pack);
#pragma unroll
        for (int i = 0; i < V / 2; ++i) words[i] = __floats2half2_rn(numbers[2 * i], numbers[2 * i + 1]);
    } else {
#pragma unroll
        for (int i = 0; i < V; ++i) pack.v[i] = static_cast<T>(numbers[i]);
    }
    *reinterpret_cast<Pack<T, V>*>(static_cast<T*>(to) + at) = pack;
}

template <class T>
__device__ __forceinline__ Compute<T> number(const Numbers& of, int64_t channel, Compute<T> otherwise) {
    if (!of.data) return otherwise;
    if (of.wide) return static_cast<const Compute<T>*>(of.data)[channel];
    return static_cast<Compute<T>>(static_cast<const T*>(of.data)[channel]);
}
// The numbers of several channels side by side.
template <class T, int K>
__device__ __forceinline__ void numbers_of(const Numbers& of, int64_t channel, Compute<T> otherwise,
                                           Compute<T> (&out)[K]) {
    using C = Compute<T>;
    if constexpr (K % 4 == 0 && sizeof(C) == 4) {
        const C* from = static_cast<const C*>(of.data) + channel;
        if (of.data && of.wide && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
#pragma unroll
            for (int k = 0; k < K; k += 4) {
                const float4 four = *reinterpret_cast<const float4*>(from + k);
                out[k] = four.x, out[k + 1] = four.y, out[k + 2] = four.z, out[k + 3] = four.w;
            }
            return;
        }
    }
#pragma unroll
    for (int k = 0; k < K; ++k) out[k] = number<T>(of, channel + k, otherwise);
}
template <class T>
__device__ __forceinline__ void put(const Numbers& of, int64_t channel, Compute<T> value) {
    if (!of.data) return;
    if (of.wide) {
        static_cast<Compute<T>*>(of.data)[channel] = value;
    } else {
        static_cast<T*>(of.data)[channel] = static_cast<T>(value);
    }
}

__device__ __forceinline__ float inverse_root(float x) { return rsqrtf(x); }
__device__ __forceinline__ double inverse_root(double x) { return 1.0 / sqrt(x); }
__device__ __forceinline__ float error_function(float x) { return erff(x); }
__device__ __forceinline__ double error_function(double x) { return erf(x); }
__device__ __forceinline__ float exp_minus_one(float x) { return expm1f(x); }
__device__ __forceinline__ double exp_minus_one(double x) { return expm1(x); }

// None, relu and leaky_relu are one: so much of what is below 0.
template <class C>
__device__ __forceinline__ C below_zero(const Channels& c) {
    return c.activation == Activation::none ? C(1) : c.activation == Activation::relu ? C(0) : static_cast<C>(c.slope);
}
__device__ __forceinline__ bool is_linear(const Channels& c) { return c.activation <= Activation::leaky_relu; }

template <class C>
__device__ __forceinline__ C smooth(const Channels& c, C z) {
    if (c.activation == Activation::elu) return z > C(0) ? z : static_cast<C>(c.slope) * exp_minus_one(z);
    if (c.activation == Activation::silu) return z * simd::sigmoid(z);
    return C(0.5) * z * (C(1) + error_function(z * C(0.70710678118654752440)));
}
template <class C>
__device__ __forceinline__ C smooth_derivative(const Channels& c, C z) {
    if (c.activation == Activation::elu) return z > C(0) ? C(1) : static_cast<C>(c.slope) * simd::exp(z);
    if (c.activation == Activation::silu) {
        const C s = simd::sigmoid(z);
        return s * (C(1) + z * (C(1) - s));
    }
    return C(0.5) * (C(1) + error_function(z * C(0.70710678118654752440))) +
           z * C(0.39894228040143267794) * simd::exp(C(-0.5) * z * z);
}

// --- statistics ------------------------------------------------------------------------------------------------------

// The mean of n values whose deviations from `pivot` add up to `sum`: rounded as a sum of the values would be. What
// overflows there is rounded as the pivot is.
template <class C>
__device__ __forceinline__ C about(C pivot, C sum, C n) {
    const C mean = fma(n, pivot, sum) / n;
    return isfinite(mean) ? mean : pivot + sum / n;
}

// Count, mean and squared deviations of two parts together.
template <class C>
__device__ __forceinline__ void join(C& n, C& mean, C& m2, C other_n, C other_mean, C other_m2) {
    const C both = n + other_n;
    if (other_n == C(0)) return;
    const C delta = other_mean - mean, share = other_n / both;
    mean = isfinite(delta) ? mean + delta * share : mean + other_mean;  // infinities add up as they do in sums
    m2 += other_m2 + delta * delta * n * share;
    n = both;
}

// The moments of a block's part: [mean…, squared deviations…, count] at parts[blockIdx.x]. A thread sums what differs
// from its first value, so that a mean far from 0 costs no digits.
template <class T, int V, bool Last>
__global__ void __launch_bounds__(threads) statistics_part(Walk walk, const T* y, Compute<T>* parts) {
    using C = Compute<T>;
    using S = Steps<T, V, Last>;
    S s(walk);
    C pivot[S::own], sum[S::own] = {}, squares[S::own] = {};
    int seen = 0;
    C first[V] = {};
    if (s.at < walk.steps) widen(load<T, V>(y, s.offset(s.at)), first);
#pragma unroll
    for (int k = 0; k < S::own; ++k) pivot[k] = isfinite(first[k]) ? first[k] : C(0);
    const auto take = [&](const Pack<T, V>& pack) {
        C x[V];
        widen(pack, x);
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const int k = Last ? v : 0;
            const C d = x[v] - pivot[k];
            sum[k] += d;
            squares[k] += d * d;
        }
        seen += Last ? 1 : V;
    };
    int i = s.at;
    for (; i + 3 * int64_t(s.step) < walk.steps; i += 4 * s.step) {
        Pack<T, V> pack[4];
#pragma unroll
        for (int u = 0; u < 4; ++u) pack[u] = load<T, V>(y, s.offset(i + u * s.step));
#pragma unroll
        for (int u = 0; u < 4; ++u) take(pack[u]);
    }
    for (; i < walk.steps; i += s.step) take(load<T, V>(y, s.offset(i)));

    __shared__ C means[S::own][threads], deviations[S::own][threads];
    __shared__ C counts[threads];
    const int me = threadIdx.x;
    const C n = static_cast<C>(seen);
    counts[me] = n;
#pragma unroll
    for (int k = 0; k < S::own; ++k) {
        const C shift = seen ? sum[k] / n : C(0);
        means[k][me] = seen ? about(pivot[k], sum[k], n) : pivot[k];
        const C own = squares[k] - sum[k] * shift;
        deviations[k][me] = seen && !(own < C(0)) ? own : C(0);  // NaN stays
    }
    for (int half = threads / 2; half >= walk.across; half /= 2) {
        __syncthreads();
        if (me < half) {
            const C mine = counts[me], others = counts[me + half];
#pragma unroll
            for (int k = 0; k < S::own; ++k) {
                C count = mine;
                join(count, means[k][me], deviations[k][me], others, means[k][me + half], deviations[k][me + half]);
            }
            counts[me] = mine + others;
        }
    }
    if (me >= walk.across || !s.inside) return;
    C* const part = parts + blockIdx.x * (2 * walk.channels + 1);
#pragma unroll
    for (int k = 0; k < S::own; ++k) {
        part[s.channel + k] = means[k][me];
        part[walk.channels + s.channel + k] = deviations[k][me];
    }
    if (s.channel == 0) part[2 * walk.channels] = counts[me];
}

// --- normalise, add, activate ----------------------------------------------------------------------------------------

// What differs between calls that are common, so that each is compiled by itself: an activation that is `linear` on
// either side of 0, and whether something is added. `any` asks as it goes.
enum class Applies { linear, linear_added, any };

template <class T, int V, bool Last, Applies A>
__global__ void __launch_bounds__(threads) apply_all(Walk walk, Apply q) {
    using C = Compute<T>;
    using S = Steps<T, V, Last>;
    S s(walk);
    if (!s.inside) return;
    C centre[S::own], root[S::own], gamma[S::own], beta[S::own];
    const Channels& c = q.channels;
    numbers_of<T>(c.mean, s.channel, 0, centre);
    numbers_of<T>(c.bias, s.channel, 0, beta);
    numbers_of<T>(c.var, s.channel, 0, root);
    numbers_of<T>(c.gamma, s.channel, 1, gamma);
#pragma unroll
    for (int k = 0; k < S::own; ++k) {
        centre[k] -= beta[k];
        root[k] = inverse_root(root[k] + static_cast<C>(c.eps));
    }
    numbers_of<T>(c.beta, s.channel, 0, beta);
    const bool linear = A != Applies::any || is_linear(c);
    const bool adds = A == Applies::linear_added || (A == Applies::any && q.residual);
    const C below = below_zero<C>(c);
    const bool flat = below == C(0);
    const auto take = [&](int64_t at, const Pack<T, V>& from, const Pack<T, V>& added) {
        C y[V], residual[V];
        widen(from, y);
        if (adds) widen(added, residual);
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const int k = Last ? v : 0;
            C z = fma((y[v] - centre[k]) * root[k], gamma[k], beta[k]);  // γ / √var alone may be too small for C
            if (adds) z += residual[v];
            if (linear) {
                y[v] = z < C(0) ? (flat ? C(0) : below * z) : z;
            } else {
                y[v] = smooth(c, z);
            }
        }
        store<T, V>(q.out, at, y);
    };
    constexpr int unroll = A == Applies::linear ? 4 : 2;
    const Pack<T, V> none = {};
    int i = s.at;
    for (; i + (unroll - 1) * int64_t(s.step) < walk.steps; i += unroll * s.step) {
        Pack<T, V> y[unroll], residual[unroll];
        int64_t at[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            at[u] = s.offset(i + u * s.step);
            y[u] = load<T, V>(q.y, at[u]);
            residual[u] = adds ? load<T, V>(q.residual, at[u]) : none;
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) take(at[u], y[u], residual[u]);
    }
    for (; i < walk.steps; i += s.step) {
        const int64_t at = s.offset(i);
        take(at, load<T, V>(q.y, at), adds ? load<T, V>(q.residual, at) : none);
    }
}

// --- which of them ---------------------------------------------------------------------------------------------------

// Packs are as wide as memory is read, or one element.
template <class T>
constexpr int widest = std::is_same_v<T, double> ? 1 : 16 / int(sizeof(T));

}  // namespace conv_bn

#pragma GCC visibility pop
