// The passes of one dtype on the GPU: their launches, and what joins the parts of blocks.
#pragma once

#include "backward.cuh"
#include "device.h"

#pragma GCC visibility push(hidden)

namespace conv_bn {

// The sum over the 32 rows of a block, for each of its 32 columns; all threads get it.
template <class C>
__device__ C column_sum(C value) {
    __shared__ C all[32][33];
    const int row = threadIdx.x / 32, column = threadIdx.x % 32;
    __syncthreads();
    all[row][column] = value;
    __syncthreads();
    return warp_sum(all[column][row]);
}

// As above, but for the thread's own column.
template <class C>
__device__ C own_column_sum(C value) {
    __shared__ C sums[32];
    const C total = column_sum(value);  // of the column with the number of this thread's row
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = total;
    __syncthreads();
    return sums[threadIdx.x % 32];
}

// Mean and variance of each channel from the moments of parts; or, `raw`, the moments of all parts.
template <class T>
__global__ void __launch_bounds__(1024) join_moments(const Compute<T>* parts, int count, int64_t channels, Numbers bias,
                                                     Compute<T>* mean, Compute<T>* var, Compute<T>* values, bool raw) {
    using C = Compute<T>;
    const int64_t channel = blockIdx.x * int64_t(32) + threadIdx.x % 32, size = 2 * channels + 1;
    const int row = threadIdx.x / 32;
    const bool inside = channel < channels;
    // Parts differ little in their means: what is taken away at the end is small beside their own deviations.
    const C pivot = inside && isfinite(parts[channel]) ? parts[channel] : C(0);
    C n = 0, sum = 0, deviations = 0;
    if (inside) {
#pragma unroll 8
        for (int p = row; p < count; p += 32) {
            const C here = parts[p * size + 2 * channels], d = parts[p * size + channel] - pivot;
            n += here;
            sum += here * d;
            deviations += parts[p * size + channels + channel] + here * d * d;
        }
    }
    n = own_column_sum(n);
    sum = own_column_sum(sum);
    deviations = own_column_sum(deviations);
    const C centre = pivot + sum / n;
    deviations -= sum * (sum / n);
    if (deviations < C(0)) deviations = C(0);  // NaN stays
    if (row != 0 || !inside) return;
    const bool empty = raw && n == C(0);  // a rank without images has no say
    mean[channel] = empty ? C(0) : raw ? centre : centre + number<T>(bias, channel, 0);
    var[channel] = raw ? deviations : deviations / n;
    if (channel == 0 && values) *values = n;
}

// Σ dz and Σ dz · (y - mean) of all parts, and the gradients that these are.
template <class T>
__global__ void __launch_bounds__(1024) join_sums(const Compute<T>* parts, int count, Gradient q) {
    using C = Compute<T>;
    const int64_t channels = q.planes.channels, channel = blockIdx.x * int64_t(32) + threadIdx.x % 32;
    const int row = threadIdx.x / 32;
    C sum = 0, product = 0;
    if (channel < channels) {
#pragma unroll 8
        for (int p = row; p < count; p += 32) {
            sum += parts[p * 2 * channels + channel];
            product += parts[p * 2 * channels + channels + channel];
        }
    }
    sum = own_column_sum(sum);
    product = own_column_sum(product);
    if (row != 0 || channel >= channels) return;
    const Channels& c = q.channels;
    const C root = inverse_root(number<T>(c.var, channel, 0) + static_cast<C>(c.eps));
    static_cast<C*>(q.sums)[channel] = sum;
    static_cast<C*>(q.sums)[channels + channel] = product;
    put<T>(q.d_gamma, channel, product * root);
    put<T>(q.d_beta, channel, sum);
    put<T>(q.d_bias, channel, q.fixed ? sum * root * number<T>(c.gamma, channel, 1) : C(0));
}

// --- launches --------------------------------------------------------------------------------------------------------

struct Shape {
    Walk walk;
    int pack;
    int64_t sheets;  // blockIdx.y
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
    check(sheets <= 65535, ow_inner::OnDevice::name(), ": there are too many channels for this kernel");
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
    return {blocks, dim3(threads), 0, s.sheets};
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
void moments(const Tensor& parts, int count, int64_t channels, const Numbers& bias, void* mean, void* var, void* values,
             bool raw) {
    using C = Compute<T>;
    launch(join_moments<T>, {ceil_div(channels, 32), 1024}, data<const C>(parts), count, channels, bias,
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
        launch(join_sums<T>, {ceil_div(q.planes.channels, 32), 1024}, data<const C>(parts), int(grid.blocks), q);
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
