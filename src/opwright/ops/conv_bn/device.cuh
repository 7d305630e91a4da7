// The passes of one dtype on the GPU: their launches, and what joins the parts of blocks.
#pragma once

#include "backward.cuh"
#include "device.h"

#pragma GCC visibility push(hidden)

namespace conv_bn {

// A block joins so many channels, side by side; its rows share what there is of them.
constexpr int joined = 8, joining = 1024;

// The sums over the rows of a block, for the threads of the first row.
template <class C, int N>
__device__ void sum_rows(C (&values)[N]) {
    __shared__ C all[N][joining];
    const int me = threadIdx.x;
#pragma unroll
    for (int n = 0; n < N; ++n) all[n][me] = values[n];
    for (int half = joining / 2; half >= joined; half /= 2) {
        __syncthreads();
        if (me >= half) continue;
#pragma unroll
        for (int n = 0; n < N; ++n) all[n][me] += all[n][me + half];
    }
#pragma unroll
    for (int n = 0; n < N; ++n) values[n] = all[n][me];
}

// Mean and variance of each channel from the moments of parts; or, `raw`, the moments of all parts.
template <class T>
__global__ void __launch_bounds__(joining)
    join_moments(const Compute<T>* parts, int count, int64_t channels, Compute<T>* mean, Compute<T>* var,
                 Compute<T>* values, bool raw) {
    using C = Compute<T>;
    const int64_t channel = blockIdx.x * int64_t(joined) + threadIdx.x % joined, size = 2 * channels + 1;
    const int row = threadIdx.x / joined;
    const bool inside = channel < channels;
    // Parts differ little in their means: what is taken away at the end is small beside their own deviations. A process
    // without images has none.
    int head = 0;
    if (values) {
        while (head + 1 < count && parts[head * size + 2 * channels] == C(0)) ++head;
    }
    const C near = inside ? parts[head * size + channel] : C(0), pivot = isfinite(near) ? near : C(0);
    C sums[3] = {};  // of values, of what they differ by from the pivot, of the squares of that
    if (inside) {
#pragma unroll 8
        for (int p = row; p < count; p += joining / joined) {
            const C here = parts[p * size + 2 * channels], d = parts[p * size + channel] - pivot;
            sums[0] += here;
            sums[1] += here * d;
            sums[2] += parts[p * size + channels + channel] + here * d * d;
        }
    }
    sum_rows(sums);
    if (row != 0 || !inside) return;
    const C n = sums[0], shift = sums[1] / n, centre = about(pivot, sums[1], n);
    C deviations = sums[2] - sums[1] * shift;
    if (deviations < C(0)) deviations = C(0);  // NaN stays
    const bool empty = raw && n == C(0);       // a rank without images has no say
    mean[channel] = empty ? C(0) : centre;
    var[channel] = raw ? deviations : deviations / n;
    if (channel == 0 && values) *values = n;
}

// Σ dz and Σ dz · (y - mean) of all parts, and the gradients that these are.
template <class T>
__global__ void __launch_bounds__(joining) join_sums(const Compute<T>* parts, int count, Gradient q) {
    using C = Compute<T>;
    const int64_t channels = q.planes.channels, channel = blockIdx.x * int64_t(joined) + threadIdx.x % joined;
    const int row = threadIdx.x / joined;
    C sums[2] = {};
    if (channel < channels) {
#pragma unroll 8
        for (int p = row; p < count; p += joining / joined) {
            sums[0] += parts[p * 2 * channels + channel];
            sums[1] += parts[p * 2 * channels + channels + channel];
        }
    }
    sum_rows(sums);
    if (row != 0 || channel >= channels) return;
    const C sum = sums[0], product = sums[1];
    const Channels& c = q.channels;
    const C root = inverse_root(number<T>(c.var, channel, 0) + static_cast<C>(c.eps));
    static_cast<C*>(q.sums)[channel] = sum;
    static_cast<C*>(q.sums)[channels + channel] = product;
    put<T>(q.d_gamma, channel, q.planes.images ? product * root : C(0));  // of no values nothing comes
    put<T>(q.d_beta, channel, sum);
    put<T>(q.d_bias, channel, q.fixed ? sum * root * number<T>(c.gamma, channel, 1) : C(0));
}

// --- launches --------------------------------------------------------------------------------------------------------

struct Shape {
    Walk walk;
    int pack;
    int64_t sheets;  // blockIdx.y and blockIdx.z
};

inline bool is_aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

template <class T>
Shape shape_of(const Planes& planes, std::initializer_list<const void*> pointers, bool backwards) {
    const int64_t side_by_side = planes.last ? planes.channels : planes.places;
    int pack = side_by_side % widest<T> == 0 ? widest<T> : 1;
    for (const void* p : pointers) {
        if (!is_aligned(p, sizeof(T) * size_t(pack))) pack = 1;
    }
    const int64_t packs = side_by_side / pack;
    const int64_t steps = planes.last ? planes.images * planes.places : planes.images * packs;
    check(steps < int64_t(1) << 30 && packs < int64_t(1) << 30, ow_inner::OnDevice::name(),
          ": a channel has too many values for this kernel");
    int across = 1;
    while (planes.last && across < threads && across < packs) across *= 2;
    const int64_t sheets = planes.last ? ceil_div(packs, across) : planes.channels;
    const auto plane = static_cast<uint64_t>(planes.last ? 1 : std::max<int64_t>(packs, 1));
    unsigned shift = 0;
    while (uint64_t(1) << shift < plane) ++shift;
    const uint64_t magic = ((uint64_t(1) << 32) * ((uint64_t(1) << shift) - plane)) / plane + 1;
    const Walk walk{planes.channels, planes.places, int(steps), int(plane), across, backwards, unsigned(magic), shift};
    return {walk, pack, sheets};
}

// So many blocks as the GPU holds at once, and no more than have work: each has numbers to fetch before it begins, and
// what it leaves has to be joined.
inline Grid grid_of(const void* kernel, const Shape& s) {
    const int64_t rows = threads / s.walk.across, all = int64_t(multiprocessors()) * held_at_once(kernel);
    const int64_t wanted = std::max<int64_t>(1, all / std::max<int64_t>(s.sheets, 1));
    const int64_t blocks = std::max<int64_t>(1, std::min(wanted, ceil_div(s.walk.steps, rows * 4)));
    const int64_t side = std::min(s.sheets, ow_inner::most_rows);
    return {blocks, dim3(threads), 0, side, side ? ceil_div(s.sheets, side) : 0};
}
template <class... P>
Grid grid_of(void (*kernel)(P...), const Shape& s) {
    return grid_of(reinterpret_cast<const void*>(kernel), s);
}

template <class T, class Run>
void with_pack(const Planes& planes, int pack, const Run& run) {
    constexpr int wide = widest<T>;
    using One = std::integral_constant<int, 1>;
    using Wide = std::integral_constant<int, wide>;
    if (wide == 1 || pack == 1) return planes.last ? run(One(), std::true_type()) : run(One(), std::false_type());
    return planes.last ? run(Wide(), std::true_type()) : run(Wide(), std::false_type());
}

// The kernel for a gradient; single elements take their time.
template <class T, class Run>
void with_slope(const Gradient& q, int pack, const Run& run) {
    with_pack<T>(q.planes, pack, [&](auto width, auto last) {
        if (q.inverse) return run(width, last, std::integral_constant<Derives, Derives::inverse>());
        if constexpr (width.value > 1) {
            const bool linear = q.channels.activation <= Activation::leaky_relu;
            if (linear && q.output) return run(width, last, std::integral_constant<Derives, Derives::from_output>());
            if (linear && !q.residual) return run(width, last, std::integral_constant<Derives, Derives::from_y>());
        }
        run(width, last, std::integral_constant<Derives, Derives::any>());
    });
}

template <class T>
Tensor statistics(const Planes& planes, const void* y, int& count) {
    using C = Compute<T>;
    const Shape s = shape_of<T>(planes, {y}, true);
    Tensor parts;
    with_pack<T>(planes, s.pack, [&](auto pack, auto last) {
        const auto kernel = &statistics_part<T, pack.value, last.value>;
        const Grid grid = grid_of(kernel, s);
        count = int(grid.blocks);
        parts = empty({grid.blocks, 2 * planes.channels + 1}, dtype_of<C>);
        launch(kernel, grid, s.walk, static_cast<const T*>(y), data<C>(parts));
    });
    return parts;
}

template <class T>
void moments(const Tensor& parts, int count, int64_t channels, void* mean, void* var, void* values, bool raw) {
    using C = Compute<T>;
    launch(join_moments<T>, {ceil_div(channels, joined), joining}, data<const C>(parts), count, channels,
           static_cast<C*>(mean), static_cast<C*>(var), static_cast<C*>(values), raw);
}

inline void apply_with(void (*kernel)(Walk, Apply), const Shape& s, const Apply& q) {
    launch(kernel, grid_of(kernel, s), s.walk, q);
}

template <class T>
void apply(const Apply& q) {
    const Shape s = shape_of<T>(q.planes, {q.y, q.residual, q.out}, false);
    const bool linear = q.channels.activation <= Activation::leaky_relu;
    with_pack<T>(q.planes, s.pack, [&](auto pack, auto last) {
        constexpr int V = pack.value;
        constexpr bool L = last.value;
        if constexpr (V > 1) {
            if (linear && q.residual) return apply_with(apply_all<T, V, L, Applies::linear_added>, s, q);
            if (linear) return apply_with(apply_all<T, V, L, Applies::linear>, s, q);
        }
        apply_with(apply_all<T, V, L, Applies::any>, s, q);
    });
}

template <class T>
void reduce(const Gradient& q) {
    using C = Compute<T>;
    const Shape s = shape_of<T>(q.planes, {q.grad, q.y, q.output, q.residual, q.out}, true);
    with_slope<T>(q, s.pack, [&](auto pack, auto last, auto derives) {
        const auto kernel = &reduce_part<T, pack.value, last.value, derives.value>;
        const Grid grid = grid_of(kernel, s);
        const Tensor parts = empty({grid.blocks, 2 * q.planes.channels}, dtype_of<C>);
        launch(kernel, grid, s.walk, q, data<C>(parts));
        launch(join_sums<T>, {ceil_div(q.planes.channels, joined), joining}, data<const C>(parts), int(grid.blocks), q);
    });
}

template <class T>
void back(const Gradient& q) {
    const Shape s = shape_of<T>(q.planes, {q.grad, q.y, q.output, q.residual, q.out, q.d_residual}, false);
    with_slope<T>(q, s.pack, [&](auto pack, auto last, auto derives) {
        const auto kernel = &back_all<T, pack.value, last.value, derives.value>;
        launch(kernel, grid_of(kernel, s), s.walk, q);
    });
}

template <class T>
void repair(const Gradient& q, const Convolution& c) {
    launch(repair_lost<T>, {multiprocessors(), threads, 0, std::min<int64_t>(q.planes.channels, 4)}, q, c);
}

template <class T>
Passes passes() {
    return {statistics<T>, moments<T>, apply<T>, reduce<T>, back<T>, repair<T>};
}

}  // namespace conv_bn

#pragma GCC visibility pop
