// The passes of one dtype on the GPU: their launches.
#pragma once

#include "device.h"
#include "whole.cuh"

#pragma GCC visibility push(hidden)

namespace conv_bn {

// --- launches --------------------------------------------------------------------------------------------------------

struct Shape {
    Walk walk;
    int pack;
    int64_t sheets;  // blockIdx.y and blockIdx.z
};

inline bool is_aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

template <class T>
Shape shape_of(const Planes& planes, std::initializer_list<const void*> pointers, bool backwards, int block = threads) {
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
    const int most = pack == 1 ? most_across<1> : most_across<widest<T>>;
    while (planes.last && across < most && across < packs) across *= 2;
    const int64_t sheets = planes.last ? ceil_div(packs, across) : planes.channels;
    const auto plane = static_cast<uint64_t>(planes.last ? 1 : std::max<int64_t>(packs, 1));
    unsigned shift = 0;
    while (uint64_t(1) << shift < plane) ++shift;
    const uint64_t magic = ((uint64_t(1) << 32) * ((uint64_t(1) << shift) - plane)) / plane + 1;
    const Walk walk{planes.channels, planes.places, int(steps),      int(plane), across,
                    block / across,  backwards,     unsigned(magic), shift};
    return {walk, pack, sheets};
}

// So many blocks as the GPU holds at once, `each` of them a multiprocessor, and no more than have work: each has
// numbers to fetch before it begins, and what it leaves has to be joined.
inline Grid grid_of(const Shape& s, int block, int each) {
    const int64_t all = int64_t(multiprocessors()) * each;
    const int64_t wanted = std::max<int64_t>(1, all / std::max<int64_t>(s.sheets, 1));
    const int64_t blocks = std::max<int64_t>(1, std::min(wanted, ceil_div(s.walk.steps, int64_t(s.walk.rows) * 4)));
    const int64_t side = std::min(s.sheets, ow_inner::most_rows);
    return {blocks, dim3(block), 0, side, side ? ceil_div(s.sheets, side) : 0};
}
inline Grid grid_of(const void* kernel, const Shape& s) { return grid_of(s, threads, room_of(kernel, threads).blocks); }
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
        parts = empty({grid.blocks, size_of_part(planes.channels, true)}, dtype_of<C>);
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

// Runs `kernel` in one launch whose blocks wait for each other, with memory for so many numbers of each block in front
// of the arguments; false where it did not run. One block a multiprocessor leaves few parts to join, and has all its
// shared memory to keep packs in; where such blocks would leave too many of them idle, there are more.
template <class C, class... P, class... A>
bool run_whole(void (*kernel)(Walk, int, C*, P...), const Shape& s, int64_t numbers, const A&... arguments) {
    const Room has = room_of(reinterpret_cast<const void*>(kernel), whole_threads);
    const int64_t all = multiprocessors(), sheets = std::max<int64_t>(s.sheets, 1);
    const bool single = all / sheets * sheets * 8 >= all * 7;
    Grid grid = grid_of(s, whole_threads, single ? 1 : has.blocks);
    if (grid.blocks * grid.rows * grid.sheets > all * has.blocks) return false;
    constexpr int64_t layer = whole_threads * sizeof(uint4);  // a pack of each thread
    const int64_t turns = ceil_div(s.walk.steps, s.walk.rows * grid.blocks);
    const int64_t room = single ? std::min(turns, has.shared / layer) : 0;
    grid.shared = size_t(room * layer);
    const Tensor parts = empty({grid.blocks, numbers}, dtype_of<C>);
    return ow_inner::launch_at_once(kernel, grid, s.walk, room, data<C>(parts), arguments...);
}

template <class T>
bool normalise(const Apply& q, void* mean, void* var) {
    using C = Compute<T>;
    if constexpr (widest<T> > 1) {
        const Shape s = shape_of<T>(q.planes, {q.y, q.residual, q.out}, true, whole_threads);
        if (s.pack == 1 || q.channels.activation > Activation::leaky_relu) return false;
        const auto run = [&](auto last, auto applies) {
            return run_whole(normalise_whole<T, widest<T>, last.value, applies.value>, s,
                             size_of_part(q.planes.channels, true), q, static_cast<C*>(mean), static_cast<C*>(var));
        };
        const auto with = [&](auto last) {
            using Added = std::integral_constant<Applies, Applies::linear_added>;
            using Plain = std::integral_constant<Applies, Applies::linear>;
            return q.residual ? run(last, Added()) : run(last, Plain());
        };
        return q.planes.last ? with(std::true_type()) : with(std::false_type());
    }
    return false;
}

template <class T>
bool differentiate(const Gradient& q) {
    if constexpr (widest<T> > 1) {
        const Shape s =
            shape_of<T>(q.planes, {q.grad, q.y, q.output, q.residual, q.out, q.d_residual}, true, whole_threads);
        const bool linear = q.channels.activation <= Activation::leaky_relu;
        if (s.pack == 1 || !linear || q.inverse || (q.residual && !q.output)) return false;
        const auto run = [&](auto last, auto derives) {
            return run_whole(differentiate_whole<T, widest<T>, last.value, derives.value>, s, 2 * q.planes.channels, q);
        };
        const auto with = [&](auto last) {
            using Output = std::integral_constant<Derives, Derives::from_output>;
            using Y = std::integral_constant<Derives, Derives::from_y>;
            return q.output ? run(last, Output()) : run(last, Y());
        };
        return q.planes.last ? with(std::true_type()) : with(std::false_type());
    }
    return false;
}

template <class T>
Passes passes() {
    return {statistics<T>, moments<T>, apply<T>, reduce<T>, back<T>, repair<T>, normalise<T>, differentiate<T>};
}

}  // namespace conv_bn

#pragma GCC visibility pop
