// The passes on the GPU. A thread stays with its channels, whose numbers it holds in registers; sums are taken in the
// same order each time. What a pass has read last lies in the cache: the next one goes the other way.
#pragma once

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
    int steps;       // packs of a channel, or rows of all channels where they lie last
    int plane;       // packs of one plane
    int across;      // threads side by side that have channels of their own; 1 where places lie side by side
    bool backwards;
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
    __device__ int64_t offset(int i) const {
        if (w.backwards) i = w.steps - 1 - i;
        if constexpr (Last) return i * w.channels + channel;
        const int image = i / w.plane;
        return (image * w.channels + channel) * w.places + int64_t(i - image * w.plane) * V;
    }
};

template <class T, int V>
__device__ __forceinline__ Pack<T, V> load(const void* from, int64_t at) {
    return *reinterpret_cast<const Pack<T, V>*>(static_cast<const T*>(from) + at);
}
template <class T, int V>
__device__ __forceinline__ void store(void* to, int64_t at, const Pack<T, V>& pack) {
    *reinterpret_cast<Pack<T, V>*>(static_cast<T*>(to) + at) = pack;
}

template <class T>
__device__ __forceinline__ Compute<T> number(const Numbers& of, int64_t channel, Compute<T> otherwise) {
    if (!of.data) return otherwise;
    if (of.wide) return static_cast<const Compute<T>*>(of.data)[channel];
    return static_cast<Compute<T>>(static_cast<const T*>(of.data)[channel]);
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

__device__ __forceinline__ float inverse_root(float x) { return 1.0f / sqrtf(x); }
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
    if (s.at < walk.steps) {
        const auto first = load<T, V>(y, s.offset(s.at));
#pragma unroll
        for (int k = 0; k < S::own; ++k) pivot[k] = static_cast<C>(first.v[k]);
    } else {
#pragma unroll
        for (int k = 0; k < S::own; ++k) pivot[k] = C(0);
    }
    const auto take = [&](const Pack<T, V>& pack) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
            constexpr bool each = Last;
            const int k = each ? v : 0;
            const C d = static_cast<C>(pack.v[v]) - pivot[k];
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

template <class T, int V, bool Last>
__global__ void __launch_bounds__(threads) apply_all(Walk walk, Apply q) {
    using C = Compute<T>;
    using S = Steps<T, V, Last>;
    S s(walk);
    if (!s.inside) return;
    C centre[S::own], scale[S::own], beta[S::own];
#pragma unroll
    for (int k = 0; k < S::own; ++k) {
        const Channels& c = q.channels;
        centre[k] = number<T>(c.mean, s.channel + k, 0) - number<T>(c.bias, s.channel + k, 0);
        scale[k] = number<T>(c.gamma, s.channel + k, 1) *
                   inverse_root(number<T>(c.var, s.channel + k, 0) + static_cast<C>(c.eps));
        beta[k] = number<T>(c.beta, s.channel + k, 0);
    }
    const bool linear = is_linear(q.channels);
    const C below = below_zero<C>(q.channels);
    const auto take = [&](int64_t at, const Pack<T, V>& y, const Pack<T, V>& residual) {
        Pack<T, V> out;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const int k = Last ? v : 0;
            C z = (static_cast<C>(y.v[v]) - centre[k]) * scale[k] + beta[k];
            if (q.residual) z += static_cast<C>(residual.v[v]);
            if (linear) {
                z = z < C(0) ? (below == C(0) ? C(0) : below * z) : z;
            } else {
                z = smooth(q.channels, z);
            }
            out.v[v] = static_cast<T>(z);
        }
        store(q.out, at, out);
    };
    const Pack<T, V> none = {};
    int i = s.at;
    for (; i + 3 * int64_t(s.step) < walk.steps; i += 4 * s.step) {
        Pack<T, V> y[4], residual[4];
        int64_t at[4];
#pragma unroll
        for (int u = 0; u < 4; ++u) {
            at[u] = s.offset(i + u * s.step);
            y[u] = load<T, V>(q.y, at[u]);
            residual[u] = q.residual ? load<T, V>(q.residual, at[u]) : none;
        }
#pragma unroll
        for (int u = 0; u < 4; ++u) take(at[u], y[u], residual[u]);
    }
    for (; i < walk.steps; i += s.step) {
        const int64_t at = s.offset(i);
        take(at, load<T, V>(q.y, at), q.residual ? load<T, V>(q.residual, at) : none);
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

// Of an element: y - mean, and what the activation makes of the incoming gradient.
template <class T, int V, bool Last>
struct Slope {
    using C = Compute<T>;
    using S = Steps<T, V, Last>;
    C factor[S::own], offset[S::own];  // y - mean, from y or, in `inverse`, from the activation's argument
    C scale[S::own], beta[S::own];
    C below, above;  // below 0, linear: the slope, and its inverse
    bool linear;
    unsigned lost;

    __device__ Slope(const Gradient& q, int64_t channel) {
        const Channels& c = q.channels;
        below = below_zero<C>(c), above = C(1) / below, linear = is_linear(c), lost = 0;
#pragma unroll
        for (int k = 0; k < S::own; ++k) {
            const C mean = number<T>(c.mean, channel + k, 0) - number<T>(c.bias, channel + k, 0);
            scale[k] = number<T>(c.gamma, channel + k, 1) *
                       inverse_root(number<T>(c.var, channel + k, 0) + static_cast<C>(c.eps));
            beta[k] = number<T>(c.beta, channel + k, 0);
            factor[k] = C(1), offset[k] = -mean;
            if (q.inverse) {
                if (is_lost<T>(q, channel + k)) {
                    lost |= 1u << k;
                } else {
                    factor[k] = C(1) / scale[k], offset[k] = -beta[k] / scale[k];
                }
            }
        }
    }

    struct Read {
        Pack<T, V> grad, y, output, residual;
    };
    __device__ __forceinline__ Read read(const Gradient& q, int64_t at) const {
        Read r;
        r.grad = load<T, V>(q.grad, at);
        if (q.inverse) {
            r.output = load<T, V>(q.output, at);
            if (lost) r.y = load<T, V>(q.out, at);
            return r;
        }
        r.y = load<T, V>(q.y, at);
        if (q.output) r.output = load<T, V>(q.output, at);
        if (q.residual) r.residual = load<T, V>(q.residual, at);
        return r;
    }

    __device__ __forceinline__ void take(const Gradient& q, const Read& r, int v, C& d, C& centred) const {
        const int k = Last ? v : 0;
        const C grad = static_cast<C>(r.grad.v[v]);
        if (q.inverse) {
            const C out = static_cast<C>(r.output.v[v]);
            const C z = out > C(0) ? out : out * above;
            centred = fma(lost >> k & 1 ? static_cast<C>(r.y.v[v]) : z, factor[k], offset[k]);
            d = out > C(0) ? grad : below * grad;
            return;
        }
        centred = fma(static_cast<C>(r.y.v[v]), factor[k], offset[k]);
        if (q.output) {
            const C out = static_cast<C>(r.output.v[v]);
            const C slope = linear ? below : out + static_cast<C>(q.channels.slope);
            d = out <= C(0) ? (slope == C(0) ? C(0) : slope * grad) : grad;
            return;
        }
        C z = fma(centred, scale[k], beta[k]);
        if (q.residual) z += static_cast<C>(r.residual.v[v]);
        d = linear ? (z <= C(0) ? (below == C(0) ? C(0) : below * grad) : grad) : smooth_derivative(q.channels, z) * grad;
    }
};

// A block's part of Σ dz and Σ dz · (y - mean): at parts[blockIdx.x].
template <class T, int V, bool Last>
__global__ void __launch_bounds__(threads) reduce_part(Walk walk, Gradient q, Compute<T>* parts) {
    using C = Compute<T>;
    using S = Steps<T, V, Last>;
    S s(walk);
    C sum[S::own] = {}, product[S::own] = {};
    if (s.inside) {
        const Slope<T, V, Last> slope(q, s.channel);
        const auto take = [&](const typename Slope<T, V, Last>::Read& r) {
#pragma unroll
            for (int v = 0; v < V; ++v) {
                C d, centred;
                slope.take(q, r, v, d, centred);
                sum[Last ? v : 0] += d;
                product[Last ? v : 0] += d * centred;
            }
        };
        int i = s.at;
        for (; i + int64_t(s.step) < walk.steps; i += 2 * s.step) {
            const auto one = slope.read(q, s.offset(i)), two = slope.read(q, s.offset(i + s.step));
            take(one);
            take(two);
        }
        for (; i < walk.steps; i += s.step) take(slope.read(q, s.offset(i)));
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

// dy = a · dz + p · (y - mean) + q, where the last two are what the statistics depend on y by.
template <class T, int V, bool Last>
__global__ void __launch_bounds__(threads) back_all(Walk walk, Gradient q) {
    using C = Compute<T>;
    using S = Steps<T, V, Last>;
    S s(walk);
    if (!s.inside) return;
    const Slope<T, V, Last> slope(q, s.channel);
    C p[S::own], shift[S::own];
    const C values = q.count ? *static_cast<const C*>(q.count) : static_cast<C>(q.values);
#pragma unroll
    for (int k = 0; k < S::own; ++k) {
        p[k] = shift[k] = C(0);
        if (!q.fixed) {
            const C* sums = static_cast<const C*>(q.sums);
            const C var = number<T>(q.channels.var, s.channel + k, 0) + static_cast<C>(q.channels.eps);
            shift[k] = -slope.scale[k] * sums[s.channel + k] / values;
            p[k] = -slope.scale[k] * sums[walk.channels + s.channel + k] / (values * var);
        }
    }
    const auto take = [&](int64_t at, const typename Slope<T, V, Last>::Read& r) {
        Pack<T, V> out, d_residual;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const int k = Last ? v : 0;
            C d, centred;
            slope.take(q, r, v, d, centred);
            out.v[v] = static_cast<T>(q.fixed ? slope.scale[k] * d : fma(p[k], centred, fma(slope.scale[k], d, shift[k])));
            d_residual.v[v] = static_cast<T>(d);
        }
        if (q.out) store(q.out, at, out);
        if (q.d_residual) store(q.d_residual, at, d_residual);
    };
    int i = s.at;
    for (; i + int64_t(s.step) < walk.steps; i += 2 * s.step) {
        const int64_t first = s.offset(i), second = s.offset(i + s.step);
        const auto one = slope.read(q, first), two = slope.read(q, second);
        take(first, one);
        take(second, two);
    }
    for (; i < walk.steps; i += s.step) {
        const int64_t at = s.offset(i);
        take(at, slope.read(q, at));
    }
}

// The convolution in channels that cannot be computed back, one output a thread; mostly there are none.
template <class T>
__global__ void __launch_bounds__(threads) repair_lost(Gradient q, Convolution c) {
    using C = Compute<T>;
    const int64_t channels = q.planes.channels, places = q.planes.places, each = q.planes.images * places;
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

// A kernel for each way to lay out packs: as wide as memory is read, or one element.
template <class T>
constexpr int widest = std::is_same_v<T, double> ? 1 : 16 / int(sizeof(T));

}  // namespace conv_bn

#pragma GCC visibility pop
