// The gradient's passes on the GPU.
#pragma once

#include "passes.cuh"

#pragma GCC visibility push(hidden)

namespace conv_bn {

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
    // Without y where only dz is wanted and does not depend on it; with the incoming gradient if it is kept.
    template <class K>
    __device__ __forceinline__ Read read(const Gradient& q, const S& s, const K& kept, int number, int64_t at,
                                         bool with_y) const {
        Read r;
        bool is_kept = false;
        if constexpr (!std::is_same_v<K, Nothing>) {
            is_kept = s.turned && kept.has(s.own_number(number));
            if (is_kept) r.grad = kept[s.own_number(number)];
        }
        if (!is_kept) r.grad = load<T, V>(q.grad, at);
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
        widen<T>(r.grad, d);
        if constexpr (inverse) {
            C y[V];
            widen<T>(r.output, out);
            if (lost) widen<T>(r.y, y);
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
        widen<T>(r.y, centred);
        if (by_output) widen<T>(r.output, out);
        if (adds) widen<T>(r.residual, residual);
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
template <int Threads, class T, int V, bool Last, Derives D, class K>
__device__ __forceinline__ void reduce_of(const Steps<T, V, Last>& s, const Slope<T, V, Last, D>& slope, const K& kept,
                                          const Gradient& q, Compute<T>* parts) {
    using C = Compute<T>;
    using L = Slope<T, V, Last, D>;
    constexpr int own = L::own, warps = Threads / 32;
    const Walk& walk = s.w;
    C sum[own] = {}, product[own] = {};
    const auto take = [&](int number, const typename L::Read& r) {
        if constexpr (!std::is_same_v<K, Nothing>) {
            if (kept.has(number)) kept[number] = r.grad;
        }
        C d[V], centred[V];
        slope.take(q, r, d, centred);
#pragma unroll
        for (int v = 0; v < V; ++v) {
            sum[Last ? v : 0] += d[v];
            product[Last ? v : 0] += d[v] * centred[v];
        }
    };
    constexpr int unroll = packs_at_once<T, D>;
    int i = 0;
    for (; i + unroll <= s.count; i += unroll) {
        typename L::Read r[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) r[u] = slope.read(q, s, kept, i + u, s.offset(i + u), true);
#pragma unroll
        for (int u = 0; u < unroll; ++u) take(i + u, r[u]);
    }
    for (; i < s.count; ++i) take(i, slope.read(q, s, kept, i, s.offset(i), true));

    // The rows of a warp, then the warps.
    __shared__ C sums[own][warps * most_across<V>], products[own][warps * most_across<V>];
    const int me = threadIdx.x, lane = me % 32, place = me / 32 * walk.across + lane;
#pragma unroll
    for (int k = 0; k < own; ++k) {
        for (int by = 16; by >= walk.across; by /= 2) {
            sum[k] += __shfl_down_sync(~0u, sum[k], by);
            product[k] += __shfl_down_sync(~0u, product[k], by);
        }
        if (lane < walk.across) sums[k][place] = sum[k], products[k][place] = product[k];
    }
    for (int half = warps * walk.across / 2; half >= walk.across; half /= 2) {
        __syncthreads();
        if (me < half) {
#pragma unroll
            for (int k = 0; k < own; ++k) {
                sums[k][me] += sums[k][me + half];
                products[k][me] += products[k][me + half];
            }
        }
    }
    if (me >= walk.across || !s.inside) return;
    C* const part = parts + blockIdx.x * 2 * walk.channels;
#pragma unroll
    for (int k = 0; k < own; ++k) {
        part[s.channel + k] = sums[k][me];
        part[walk.channels + s.channel + k] = products[k][me];
    }
}

template <class T, int V, bool Last, Derives D>
__global__ void __launch_bounds__(threads) reduce_part(Walk walk, Gradient q, Compute<T>* parts) {
    const Steps<T, V, Last> s(walk);
    const Slope<T, V, Last, D> slope(q, s.inside ? s.channel : 0);
    reduce_of<threads>(s, slope, Nothing(), q, parts);
}

// dy = scale · dz + p · (y - mean) + shift, where the last two are what the statistics depend on y by: `shift` comes as
// Σ dz, and `p` as Σ dz · (y - mean).
template <class T, int V, bool Last, Derives D, class K>
__device__ __forceinline__ void back_of(const Steps<T, V, Last>& s, const Slope<T, V, Last, D>& slope, const K& kept,
                                        const Gradient& q, Compute<T> (&shift)[Slope<T, V, Last, D>::own],
                                        Compute<T> (&p)[Slope<T, V, Last, D>::own]) {
    using C = Compute<T>;
    using L = Slope<T, V, Last, D>;
    const C each = C(1) / (q.count ? *static_cast<const C*>(q.count) : static_cast<C>(q.values));
#pragma unroll
    for (int k = 0; k < L::own; ++k) {
        shift[k] = q.fixed ? C(0) : shift[k] * -slope.scale[k] * each;
        p[k] = q.fixed ? C(0) : p[k] * -slope.scale[k] * each * slope.root[k] * slope.root[k];
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
    int i = 0;
    for (; i + unroll <= s.count; i += unroll) {
        typename L::Read r[unroll];
        int64_t at[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            at[u] = s.offset(i + u), r[u] = slope.read(q, s, kept, i + u, at[u], q.out);
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) take(at[u], r[u]);
    }
    for (; i < s.count; ++i) {
        const int64_t at = s.offset(i);
        take(at, slope.read(q, s, kept, i, at, q.out));
    }
}

template <class T, int V, bool Last, Derives D>
__global__ void __launch_bounds__(threads) back_all(Walk walk, Gradient q) {
    using C = Compute<T>;
    using L = Slope<T, V, Last, D>;
    const Steps<T, V, Last> s(walk);
    if (!s.inside) return;
    const L slope(q, s.channel);
    C sum[L::own] = {}, product[L::own] = {};
    if (!q.fixed && q.out) {
        numbers_of<T>({q.sums, true}, s.channel, 0, sum);
        numbers_of<T>({static_cast<C*>(q.sums) + walk.channels, true}, s.channel, 0, product);
    }
    back_of(s, slope, Nothing(), q, sum, product);
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

}  // namespace conv_bn

#pragma GCC visibility pop
