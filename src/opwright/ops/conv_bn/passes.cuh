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
// channel, blockIdx.y and the columns of a block are channels.
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
        channel = (blockIdx.y * int64_t(w.across) + column) * own;
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

// Count, mean and squared deviations of two parts together.
template <class C>
__device__ __forceinline__ void join(C& n, C& mean, C& m2, C other_n, C other_mean, C other_m2) {
    const C both = n + other_n;
    if (other_n == C(0)) return;
    const C delta = other_mean - mean, share = other_n / both;
    mean += delta * share;
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
    for (int k = 0; k < S::own; ++k) pivot[k] = first[k];
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
        means[k][me] = pivot[k] + shift;
        deviations[k][me] = seen ? max(squares[k] - sum[k] * shift, C(0)) : C(0);
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
    C centre[S::own], scale[S::own], beta[S::own], more[S::own];
    const Channels& c = q.channels;
    numbers_of<T>(c.mean, s.channel, 0, centre);
    numbers_of<T>(c.bias, s.channel, 0, beta);
    numbers_of<T>(c.var, s.channel, 0, scale);
    numbers_of<T>(c.gamma, s.channel, 1, more);
#pragma unroll
    for (int k = 0; k < S::own; ++k) {
        centre[k] -= beta[k];
        scale[k] = more[k] * inverse_root(scale[k] + static_cast<C>(c.eps));
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
            C z = fma(y[v] - centre[k], scale[k], beta[k]);
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

// --- backward --------------------------------------------------------------------------------------------------------

// Whether a channel's convolution must not be computed back from the output.
template <class T>
__device__ __forceinline__ bool is_lost(const Gradient& q, int64_t channel) {
    using C = Compute<T>;
    const C gamma = abs(number<T>(q.channels.gamma, channel, 1)), beta = abs(number<T>(q.channels.beta, channel, 0));
    return !(gamma >= static_cast<C>(q.least) && beta <= static_cast<C>(q.most) * gamma);
}

// Likewise: a linear activation whose side of 0 follows from y, from the output, or with y from the output.
enum class Derives { from_y, from_output, inverse, any };

// Of an element: y - mean, and what the activation makes of the incoming gradient.
template <class T, int V, bool Last, Derives D>
struct Slope {
    using C = Compute<T>;
    using S = Steps<T, V, Last>;
    static constexpr int own = S::own;
    static constexpr bool inverse = D == Derives::inverse;
    C factor[own], offset[own];  // y - mean: y - offset, or of the activation's argument in `inverse`
    C scale[own], beta[own], root[own];
    C below, above;  // below 0, linear: the slope, and its inverse
    bool linear, flat, by_output, adds;
    unsigned lost;

    __device__ Slope(const Gradient& q, int64_t channel) {
        const Channels& c = q.channels;
        below = below_zero<C>(c), above = C(1) / below, flat = below == C(0), lost = 0;
        linear = D != Derives::any || is_linear(c);
        by_output = D == Derives::from_output || (D == Derives::any && q.output);
        adds = D == Derives::any && q.residual;
        numbers_of<T>(c.mean, channel, 0, offset);
        numbers_of<T>(c.bias, channel, 0, beta);
        numbers_of<T>(c.var, channel, 0, root);
        numbers_of<T>(c.gamma, channel, 1, scale);
#pragma unroll
        for (int k = 0; k < own; ++k) {
            offset[k] -= beta[k];
            root[k] = inverse_root(root[k] + static_cast<C>(c.eps));
            scale[k] *= root[k];
        }
        numbers_of<T>(c.beta, channel, 0, beta);
        if constexpr (inverse) {
#pragma unroll
            for (int k = 0; k < own; ++k) {
                factor[k] = C(1);
                if (is_lost<T>(q, channel + k)) {
                    lost |= 1u << k;
                } else {
                    factor[k] = C(1) / scale[k], offset[k] = beta[k] * factor[k];
                }
            }
        }
    }

    struct Read {
        Pack<T, V> grad, y, output, residual;
    };
    // Without y where only dz is wanted and does not depend on it.
    __device__ __forceinline__ Read read(const Gradient& q, int64_t at, bool with_y) const {
        Read r;
        r.grad = load<T, V>(q.grad, at);
        if constexpr (inverse) {
            r.output = load<T, V>(q.output, at);
            if (lost) r.y = load<T, V>(q.out, at);
        } else {
            if (with_y || !by_output) r.y = load<T, V>(q.y, at);
            if (by_output) r.output = load<T, V>(q.output, at);
            if (adds) r.residual = load<T, V>(q.residual, at);
        }
        return r;
    }

    // dz and y - mean of a pack.
    __device__ __forceinline__ void take(const Gradient& q, const Read& r, C (&d)[V], C (&centred)[V]) const {
        C out[V], residual[V];
        widen(r.grad, d);
        if constexpr (inverse) {
            C y[V];
            widen(r.output, out);
            if (lost) widen(r.y, y);
#pragma unroll
            for (int v = 0; v < V; ++v) {
                const int k = Last ? v : 0;
                C z = out[v] > C(0) ? out[v] : out[v] * above;
                if (lost && (lost >> k & 1)) z = y[v];
                centred[v] = fma(z, factor[k], -offset[k]);
                d[v] = out[v] > C(0) ? d[v] : below * d[v];
            }
            return;
        }
        widen(r.y, centred);
        if (by_output) widen(r.output, out);
        if (adds) widen(r.residual, residual);
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const int k = Last ? v : 0;
            centred[v] -= offset[k];
            C z;
            if (by_output) {
                z = out[v];
            } else {
                z = fma(centred[v], scale[k], beta[k]);
                if (adds) z += residual[v];
            }
            if (linear) {
                d[v] = z <= C(0) ? (flat ? C(0) : below * d[v]) : d[v];
            } else if (by_output) {
                d[v] = z <= C(0) ? (z + static_cast<C>(q.channels.slope)) * d[v] : d[v];
            } else {
                d[v] *= smooth_derivative(q.channels, z);
            }
        }
    }
};

template <class T, Derives D>
constexpr int packs_at_once = D == Derives::from_y ? 4 : 2;

// A block's part of Σ dz and Σ dz · (y - mean): at parts[blockIdx.x].
template <class T, int V, bool Last, Derives D>
__global__ void __launch_bounds__(threads) reduce_part(Walk walk, Gradient q, Compute<T>* parts) {
    using C = Compute<T>;
    using S = Steps<T, V, Last>;
    using L = Slope<T, V, Last, D>;
    S s(walk);
    C sum[S::own] = {}, product[S::own] = {};
    if (s.inside) {
        const L slope(q, s.channel);
        const auto take = [&](const typename L::Read& r) {
            C d[V], centred[V];
            slope.take(q, r, d, centred);
#pragma unroll
            for (int v = 0; v < V; ++v) {
                sum[Last ? v : 0] += d[v];
                product[Last ? v : 0] += d[v] * centred[v];
            }
        };
        constexpr int unroll = packs_at_once<T, D>;
        int i = s.at;
        for (; i + (unroll - 1) * int64_t(s.step) < walk.steps; i += unroll * s.step) {
            typename L::Read r[unroll];
#pragma unroll
            for (int u = 0; u < unroll; ++u) r[u] = slope.read(q, s.offset(i + u * s.step), true);
#pragma unroll
            for (int u = 0; u < unroll; ++u) take(r[u]);
        }
        for (; i < walk.steps; i += s.step) take(slope.read(q, s.offset(i), true));
    }
    __shared__ C sums[S::own][threads], products[S::own][threads];
    const int me = threadIdx.x;
#pragma unroll
    for (int k = 0; k < S::own; ++k) sums[k][me] = sum[k], products[k][me] = product[k];
    for (int half = threads / 2; half >= walk.across; half /= 2) {
        __syncthreads();
        if (me < half) {
#pragma unroll
            for (int k = 0; k < S::own; ++k) {
                sums[k][me] += sums[k][me + half];
                products[k][me] += products[k][me + half];
            }
        }
    }
    if (me >= walk.across || !s.inside) return;
    C* const part = parts + blockIdx.x * 2 * walk.channels;
#pragma unroll
    for (int k = 0; k < S::own; ++k) {
        part[s.channel + k] = sums[k][me];
        part[walk.channels + s.channel + k] = products[k][me];
    }
}

// dy = scale · dz + p · (y - mean) + shift, where the last two are what the statistics depend on y by.
template <class T, int V, bool Last, Derives D>
__global__ void __launch_bounds__(threads) back_all(Walk walk, Gradient q) {
    using C = Compute<T>;
    using S = Steps<T, V, Last>;
    using L = Slope<T, V, Last, D>;
    S s(walk);
    if (!s.inside) return;
    const L slope(q, s.channel);
    C p[S::own] = {}, shift[S::own] = {};
    if (!q.fixed) {
        const C each = C(1) / (q.count ? *static_cast<const C*>(q.count) : static_cast<C>(q.values));
        const Numbers sums{q.sums, true}, products{static_cast<C*>(q.sums) + walk.channels, true};
        numbers_of<T>(sums, s.channel, 0, shift);
        numbers_of<T>(products, s.channel, 0, p);
#pragma unroll
        for (int k = 0; k < S::own; ++k) {
            shift[k] *= -slope.scale[k] * each;
            p[k] *= -slope.scale[k] * each * slope.root[k] * slope.root[k];
        }
    }
    const auto take = [&](int64_t at, const typename L::Read& r) {
        C d[V], centred[V];
        slope.take(q, r, d, centred);
        if (q.d_residual) store<T, V>(q.d_residual, at, d);
        if (!q.out) return;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const int k = Last ? v : 0;
            d[v] = fma(slope.scale[k], d[v], shift[k]);
            if (!q.fixed) d[v] = fma(p[k], centred[v], d[v]);
        }
        store<T, V>(q.out, at, d);
    };
    constexpr int unroll = packs_at_once<T, D>;
    int i = s.at;
    for (; i + (unroll - 1) * int64_t(s.step) < walk.steps; i += unroll * s.step) {
        typename L::Read r[unroll];
        int64_t at[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) at[u] = s.offset(i + u * s.step), r[u] = slope.read(q, at[u], q.out);
#pragma unroll
        for (int u = 0; u < unroll; ++u) take(at[u], r[u]);
    }
    for (; i < walk.steps; i += s.step) {
        const int64_t at = s.offset(i);
        take(at, slope.read(q, at, q.out));
    }
}

// The convolution in channels that cannot be computed back, one output a thread; mostly there are none.
template <class T>
__global__ void __launch_bounds__(threads) repair_lost(Gradient q, Convolution c) {
    using C = Compute<T>;
    const int64_t channels = q.planes.channels, places = q.planes.places, each = q.planes.images * places;
    bool any = false;
    for (int64_t o = threadIdx.x; o < channels; o += threads) any = any || is_lost<T>(q, o);
    if (!__syncthreads_or(any)) return;
    for (int64_t o = blockIdx.y; o < channels; o += gridDim.y) {
        if (!is_lost<T>(q, o)) continue;
        const int64_t first = o / (channels / c.groups) * c.inputs;
        for (int64_t i = blockIdx.x * int64_t(threads) + threadIdx.x; i < each; i += gridDim.x * int64_t(threads)) {
            const int64_t image = i / places, place = i - image * places;
            const int64_t top = place / c.out_width * c.stride[0] - c.padding[0];
            const int64_t left = place % c.out_width * c.stride[1] - c.padding[1];
            C sum = 0;
            for (int64_t ky = 0; ky < c.kernel_height; ++ky) {
                const int64_t iy = top + ky * c.dilation[0];
                if (iy < 0 || iy >= c.height) continue;
                for (int64_t kx = 0; kx < c.kernel_width; ++kx) {
                    const int64_t ix = left + kx * c.dilation[1];
                    if (ix < 0 || ix >= c.width) continue;
                    const T* x = static_cast<const T*>(c.x) + image * c.x_strides[0] + first * c.x_strides[1] +
                                 iy * c.x_strides[2] + ix * c.x_strides[3];
                    const T* w = static_cast<const T*>(c.weight) + o * c.weight_strides[0] + ky * c.weight_strides[2] +
                                 kx * c.weight_strides[3];
                    for (int64_t ci = 0; ci < c.inputs; ++ci) {
                        sum += static_cast<C>(x[ci * c.x_strides[1]]) * static_cast<C>(w[ci * c.weight_strides[1]]);
                    }
                }
            }
            const int64_t at = q.planes.last ? i * channels + o : (image * channels + o) * places + place;
            static_cast<T*>(q.out)[at] = static_cast<T>(sum);
        }
    }
}

// --- which of them ---------------------------------------------------------------------------------------------------

// Packs are as wide as memory is read, or one element.
template <class T>
constexpr int widest = std::is_same_v<T, double> ? 1 : 16 / int(sizeof(T));

}  // namespace conv_bn

#pragma GCC visibility pop
