// Sums over neighbours, and the products of neighbours' features, on the GPU.
#pragma once

#include "gather.cuh"

namespace graphs {

// Of the second cache; all GPUs of a machine are taken to be alike.
inline int64_t cache_bytes() {
    static const int64_t bytes = [] {
        int found = 0, device = 0;
        ow_inner::cuda_check(cudaGetDevice(&device), "asking for the device");
        ow_inner::cuda_check(cudaDeviceGetAttribute(&found, cudaDevAttrL2CacheSize, device), "asking for the cache");
        return found;
    }();
    return bytes;
}

inline bool aligned(const Tensor& x, int64_t elements) {
    if (!x.defined()) return true;
    const bool rows = x.size(0) < 2 || x.stride(0) % elements == 0;
    return rows && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

// How many lanes share a row, for so many vectors of features: enough for all of them, or as few as it takes for a tile
// of x to stay in half of the second cache, where all of x would not.
inline int lanes_for(int64_t vectors, int64_t columns, int least) {
    const int lanes = std::max(vectors <= 4 ? 4 : vectors <= 8 ? 8 : vectors <= 16 ? 16 : 32, least);
    const int64_t bytes = columns * 16;
    if (bytes * std::min<int64_t>(lanes, vectors) <= cache_bytes() / 2) return lanes;
    for (const int64_t room : {cache_bytes() / 2, cache_bytes()}) {
        for (int fewer = lanes; fewer >= 8; fewer /= 2) {
            if (bytes * fewer <= room) return fewer;
        }
    }
    return lanes;
}

inline int64_t pieces_of(const Pattern& p, int64_t piece) { return given(p.split) && piece > 0 ? p.split->size(0) : 0; }

template <class T, class P>
void place_tasks(Gather<T, P>& q, const Pattern& p, int64_t piece) {
    q.pieces = pieces_of(p, piece), q.piece = piece;
    if (q.pieces > 0) q.split = data<const P>(*p.split);
    const bool ordered = given(p.order) && piece > 0;
    if (ordered) q.order = data<const int32_t>(*p.order);
    q.tasks = q.pieces + (ordered ? p.order->size(0) : p.rows);
}

template <class T, class P>
void walk_typed(Gather<T, P> q, bool vectors, bool dots) {
    constexpr int V = 16 / sizeof(T);
    const int64_t across = vectors ? ceil_div(q.features, V) : q.features;
    // Dots of one tile are written once; those of several would be read and written again for each.
    const int lanes =
        std::is_same_v<P, int64_t> ? 32 : lanes_for(across, vectors && !dots ? q.columns : 0, dots ? 8 : 4);
    const int64_t tiles = ceil_div(across, lanes);
    const auto with = [&](auto kernel) {
        const int64_t blocks = ceil_div(q.tasks, block_threads / lanes);
        // Dots of several tiles are added up from launch to launch.
        for (int64_t tile = 0; tile < (dots ? tiles : 1); ++tile) {
            q.first_tile = static_cast<int32_t>(tile);
            launch(kernel, {blocks, block_threads, 0, dots ? 1 : tiles}, q);
        }
    };
    if constexpr (std::is_same_v<P, int64_t>) {
        if (dots)
            with(vectors ? gather<T, V, 32, P, true> : gather<T, 1, 32, P, true>);
        else
            with(vectors ? gather<T, V, 32, P, false> : gather<T, 1, 32, P, false>);
    } else if (dots) {
        if (lanes == 8)
            with(vectors ? gather<T, V, 8, P, true> : gather<T, 1, 8, P, true>);
        else if (lanes == 16)
            with(vectors ? gather<T, V, 16, P, true> : gather<T, 1, 16, P, true>);
        else
            with(vectors ? gather<T, V, 32, P, true> : gather<T, 1, 32, P, true>);
    } else {
        if (lanes == 4)
            with(vectors ? gather<T, V, 4, P, false> : gather<T, 1, 4, P, false>);
        else if (lanes == 8)
            with(vectors ? gather<T, V, 8, P, false> : gather<T, 1, 8, P, false>);
        else if (lanes == 16)
            with(vectors ? gather<T, V, 16, P, false> : gather<T, 1, 16, P, false>);
        else
            with(vectors ? gather<T, V, 32, P, false> : gather<T, 1, 32, P, false>);
    }
    if (q.pieces > 0 && q.out) launch(join_pieces<T, P>, {q.pieces, block_threads, 0, ceil_div(q.features, 32)}, q);
}

// out[row] = Σ weight · x[col] over the edges of each row, in one walk with the dots. One file a dtype has it.
template <class T>
void walk_as(const Pattern& p, const Tensor& x, const Walk& w, const Tensor& out) {
    using C = Compute<T>;
    const int64_t f = x.size(1);
    const Tensor weight = given(w.weight) ? aten::contiguous(*w.weight) : Tensor();
    const Tensor bias = given(w.bias) ? aten::contiguous(*w.bias) : Tensor();
    const Tensor own = given(w.own) ? matrix(*w.own) : Tensor();
    const int64_t pieces = pieces_of(p, w.piece);
    const Tensor partial = pieces > 0 && w.sums ? empty({pieces, f}, dtype_of<C>) : Tensor();
    dispatch(Types<int32_t, int64_t>(), dtype(p.rowptr), [&](auto offset) {
        using P = decltype(offset);
        const Index degrees = laid(w.degrees, dtype_of<P>);
        Gather<T, P> q = {};
        q.rowptr = data<const P>(p.rowptr), q.col = data<const int32_t>(p.col);
        q.edge = given(p.edge) ? data<const P>(*p.edge) : nullptr;
        q.degrees = degrees ? data<const P>(*degrees) : nullptr;
        q.rows = p.rows, q.edges = p.edges, q.columns = static_cast<int32_t>(p.columns);
        q.features = static_cast<int32_t>(f);
        q.x = data<const T>(x), q.x_stride = x.size(0) > 1 ? x.stride(0) : f;
        if (weight.defined()) q.weight = weight.const_data_ptr(), q.weight_is_wide = dtype(weight) == dtype_of<C>;
        if (bias.defined()) q.bias = bias.const_data_ptr(), q.bias_is_wide = dtype(bias) == dtype_of<C>;
        q.mean = w.mean;
        q.out = w.sums ? data<T>(out) : nullptr;
        if (own.defined()) q.own = data<const T>(own), q.own_stride = own.size(0) > 1 ? own.stride(0) : f;
        q.dots = w.dots ? data<C>(*w.dots) : nullptr;
        place_tasks(q, p, w.piece);
        q.partial = partial.defined() ? data<C>(partial) : nullptr;
        constexpr int V = 16 / sizeof(T);
        walk_typed(q, f % V == 0 && aligned(x, V) && aligned(own, V), w.dots.has_value());
    });
}

// In a file each: compiled side by side.
void walk_float(const Pattern& p, const Tensor& x, const Walk& w, const Tensor& out);
void walk_double(const Pattern& p, const Tensor& x, const Walk& w, const Tensor& out);
void walk_half(const Pattern& p, const Tensor& x, const Walk& w, const Tensor& out);
void walk_bfloat16(const Pattern& p, const Tensor& x, const Walk& w, const Tensor& out);

inline Tensor walk(const Pattern& p, const Tensor& features, const Walk& w) {
    const Tensor x = matrix(features);
    check(x.size(1) < INT32_MAX - 1024, ow_inner::OnDevice::name(), ": x has too many features, ", x.size(1));
    const Tensor out = w.sums ? empty({p.rows, x.size(1)}, dtype(x)) : Tensor();
    if (x.size(1) == 0 || p.rows == 0) return out;
    switch (dtype(x)) {
        case DType::Float:
            walk_float(p, x, w, out);
            break;
        case DType::Double:
            walk_double(p, x, w, out);
            break;
        case DType::Half:
            walk_half(p, x, w, out);
            break;
        default:
            walk_bfloat16(p, x, w, out);
    }
    return out;
}

// Nobody waits for a GPU to look at indices: the walk leaves out those that it must not read.
inline Pattern taken(const char* op, const Tensor& rowptr, const Tensor& col, const Index& edge, const Schedule& s,
                     int64_t columns, bool = false) {
    return pattern(op, rowptr, col, edge, s, columns);
}

inline void refuse_offsets(const char*, const char*, const Tensor&, int64_t) {}

}  // namespace graphs
