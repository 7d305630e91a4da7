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

// A matrix that the walk reads by 32 bits for the bytes of a row: one whose rows are further apart is copied.
inline Tensor near_rows(const Tensor& given) {
    const Tensor x = matrix(given);
    const bool far = x.size(0) > 1 && x.stride(0) * x.element_size() > UINT32_MAX;
    return far ? aten::contiguous(x) : x;
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
    if (given(p.bins) && p.bins->size(0) > 1) {
        q.bins = data<const int32_t>(*p.bins), q.tasks = q.pieces + p.bins->size(0) - 1;
    } else {
        q.each = std::max<int64_t>(64 * p.rows / (p.rows + p.edges + 1), 1);
        q.tasks = q.pieces + ceil_div(p.rows, q.each);
    }
}

// The features of a row that a group of lanes reads at once, and how often the edges are walked for all of them.
struct Tiles {
    bool vectors;
    int lanes;
    int64_t count;
};

template <class T, class P>
Tiles tiles_of(const Pattern& p, const Tensor& x, const Tensor& own, bool dots) {
    constexpr int V = 16 / sizeof(T);
    const bool vectors = x.size(1) % V == 0 && aligned(x, V) && aligned(own, V);
    const int64_t across = vectors ? x.size(1) / V : x.size(1);
    // Where many edges come from few columns, those stay in the caches by themselves; and dots of several tiles would
    // be read and written again for each.
    const bool apart = vectors && !dots && p.hot * 4 < p.edges;
    const int lanes = std::is_same_v<P, int64_t> ? 32 : lanes_for(across, apart ? p.columns : 0, dots ? 8 : 4);
    return {vectors, lanes, ceil_div(across, lanes)};
}

template <class T, class P>
void walk_typed(Gather<T, P> q, const Tiles& tiles, bool dots) {
    constexpr int V = 16 / sizeof(T);
    const auto with = [&](auto kernel) {
        const int64_t blocks = ceil_div(q.tasks, block_threads / tiles.lanes);
        // Dots of several tiles are added up from launch to launch.
        for (int64_t tile = 0; tile < (dots ? tiles.count : 1); ++tile) {
            q.first_tile = static_cast<int32_t>(tile);
            launch(kernel, {blocks, block_threads, 0, dots ? 1 : tiles.count}, q);
        }
    };
    if constexpr (std::is_same_v<P, int64_t>) {
        if (dots)
            with(tiles.vectors ? gather<T, V, 32, P, true> : gather<T, 1, 32, P, true>);
        else
            with(tiles.vectors ? gather<T, V, 32, P, false> : gather<T, 1, 32, P, false>);
    } else if (dots) {
        if (tiles.lanes == 8)
            with(tiles.vectors ? gather<T, V, 8, P, true> : gather<T, 1, 8, P, true>);
        else if (tiles.lanes == 16)
            with(tiles.vectors ? gather<T, V, 16, P, true> : gather<T, 1, 16, P, true>);
        else
            with(tiles.vectors ? gather<T, V, 32, P, true> : gather<T, 1, 32, P, true>);
    } else if (q.is_plain() && tiles.vectors && tiles.lanes > 4) {
        with(tiles.lanes == 8    ? gather<T, V, 8, P, false, true>
             : tiles.lanes == 16 ? gather<T, V, 16, P, false, true>
                                 : gather<T, V, 32, P, false, true>);
    } else {
        if (tiles.lanes == 4)
            with(tiles.vectors ? gather<T, V, 4, P, false> : gather<T, 1, 4, P, false>);
        else if (tiles.lanes == 8)
            with(tiles.vectors ? gather<T, V, 8, P, false> : gather<T, 1, 8, P, false>);
        else if (tiles.lanes == 16)
            with(tiles.vectors ? gather<T, V, 16, P, false> : gather<T, 1, 16, P, false>);
        else
            with(tiles.vectors ? gather<T, V, 32, P, false> : gather<T, 1, 32, P, false>);
    }
    if (q.pieces == 0) return;
    const Grid grid = {ceil_div(q.pieces, pieces_a_block), join_threads, 0, q.out ? ceil_div(q.features, 32) : 1};
    launch(dots ? join_pieces<T, P, true> : join_pieces<T, P, false>, grid, q);
}

constexpr int64_t many_edges = 1 << 20;

// Numbers of edges in the order of the edges, from that of the weights, and back.
template <class P, class N>
struct Take {
    const P* at;
    const N* from;
    N* to;
    int64_t edges;
    __device__ void operator()(int64_t k) const {
        const P e = at[k];
        to[k] = e >= 0 && e < edges ? from[e] : N(0);
    }
};

template <class P, class N>
struct Give {
    const P* at;
    const N* from;
    N* to;
    int64_t edges;
    __device__ void operator()(int64_t k) const {
        const P e = at[k];
        if (e >= 0 && e < edges) to[e] = from[k];
    }
};

template <class P>
Tensor taken_in_order(const Tensor& weight, const Tensor& edge) {
    const Tensor to = empty({edge.size(0)}, dtype(weight));
    dispatch(floating, dtype(weight), [&](auto zero) {
        using N = decltype(zero);
        for_each(edge.size(0), Take<P, N>{data<const P>(edge), data<const N>(weight), data<N>(to), weight.size(0)});
    });
    return to;
}

inline uint32_t bytes_a_row(const Tensor& x) {
    const int64_t bytes = (x.size(0) > 1 ? x.stride(0) : x.size(1)) * x.element_size();
    check(bytes <= UINT32_MAX, ow_inner::OnDevice::name(), ": a row takes at most 4294967295 bytes, got ", bytes);
    return static_cast<uint32_t>(bytes);
}

// out[row] = Σ weight · x[col] over the edges of each row, in one walk with the dots. One file a dtype has it.
template <class T>
void walk_as(const Pattern& p, const Tensor& x, const Walk& w, const Tensor& out) {
    using C = Compute<T>;
    const int64_t f = x.size(1);
    Tensor weight = given(w.weight) ? aten::contiguous(*w.weight) : Tensor();
    const Tensor bias = given(w.bias) ? aten::contiguous(*w.bias) : Tensor();
    const Tensor own = given(w.own) ? near_rows(*w.own) : Tensor();
    const int64_t pieces = pieces_of(p, w.piece);
    const Tensor partial = pieces > 0 && w.sums ? empty({pieces, f}, dtype_of<C>) : Tensor();
    dispatch(Types<int32_t, int64_t>(), dtype(p.rowptr), [&](auto offset) {
        using P = decltype(offset);
        const Index degrees = laid(w.degrees, dtype_of<P>);
        const Tiles tiles = tiles_of<T, P>(p, x, own, w.dots.has_value());
        // What many edges would read and write all over memory, for every tile, is put in order once.
        const bool ahead = given(p.edge) && p.edges > many_edges && (tiles.count > 1 || w.dots);
        if (ahead && weight.defined()) weight = taken_in_order<P>(weight, *p.edge);
        const Tensor dots = !w.dots ? Tensor() : ahead ? dots_for(p.col, x) : *w.dots;
        Gather<T, P> q = {};
        q.rowptr = data<const P>(p.rowptr), q.col = data<const int32_t>(p.col);
        q.edge = given(p.edge) && !ahead ? data<const P>(*p.edge) : nullptr;
        q.degrees = degrees ? data<const P>(*degrees) : nullptr;
        q.rows = static_cast<int32_t>(p.rows), q.edges = static_cast<P>(p.edges),
        q.columns = static_cast<int32_t>(p.columns);
        q.features = static_cast<int32_t>(f);
        q.x = data<const T>(x), q.x_stride = bytes_a_row(x);
        if (weight.defined()) q.weight = weight.const_data_ptr(), q.weight_is_wide = dtype(weight) == dtype_of<C>;
        if (bias.defined()) q.bias = bias.const_data_ptr(), q.bias_is_wide = dtype(bias) == dtype_of<C>;
        q.mean = w.mean, q.relu = w.relu;
        q.out = w.sums ? data<T>(out) : nullptr;
        if (own.defined()) q.own = data<const T>(own), q.own_stride = bytes_a_row(own);
        q.dots = dots.defined() ? data<C>(dots) : nullptr;
        place_tasks(q, p, w.piece);
        q.partial = partial.defined() ? data<C>(partial) : nullptr;
        walk_typed(q, tiles, w.dots.has_value());
        if (ahead && w.dots)
            for_each(p.edges, Give<P, C>{data<const P>(*p.edge), data<const C>(dots), data<C>(*w.dots), p.edges});
    });
}

// The gradient of what was above 0, or NaN; elsewhere 0.
template <class T, int V>
struct Through {
    const Pack<T, V>*grad, *result;
    Pack<T, V>* to;
    __device__ void operator()(int64_t i) const {
        const Pack<T, V> by = result[i];
        Pack<T, V> from = grad[i];
#pragma unroll
        for (int v = 0; v < V; ++v) from.at[v] = static_cast<Compute<T>>(by.at[v]) <= 0 ? T(0) : from.at[v];
        to[i] = from;
    }
};

inline Tensor let_through(const Tensor& grad, const Tensor& result) {
    const Tensor from = aten::contiguous(grad), by = aten::contiguous(result);
    const Tensor out = empty({grad.size(0), grad.size(1)}, dtype(grad));
    const int64_t n = out.numel();
    dispatch(floating, dtype(grad), [&](auto zero) {
        using T = decltype(zero);
        const auto over = [&](auto pack) {
            using Packed = decltype(pack);
            constexpr int V = sizeof(Packed) / sizeof(T);
            for_each(n / V, Through<T, V>{reinterpret_cast<const Packed*>(data<const T>(from)),
                                          reinterpret_cast<const Packed*>(data<const T>(by)),
                                          reinterpret_cast<Packed*>(data<T>(out))});
        };
        constexpr int V = 16 / sizeof(T);
        if (n % V == 0 && aligned(from, 1) && aligned(by, 1))
            over(Pack<T, V>());
        else
            over(Pack<T, 1>());
    });
    return out;
}

// In a file each: compiled side by side.
void walk_float(const Pattern& p, const Tensor& x, const Walk& w, const Tensor& out);
void walk_double(const Pattern& p, const Tensor& x, const Walk& w, const Tensor& out);
void walk_half(const Pattern& p, const Tensor& x, const Walk& w, const Tensor& out);
void walk_bfloat16(const Pattern& p, const Tensor& x, const Walk& w, const Tensor& out);

inline Tensor walk(const Pattern& p, const Tensor& features, const Walk& w) {
    const Tensor x = near_rows(features);
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

// Where 32 bits would make another index of it, it stays out of range.
struct Narrow {
    const int64_t* from;
    int32_t* to;
    __device__ void operator()(int64_t i) const {
        const int64_t v = from[i];
        to[i] = v < 0 ? -1 : v > INT32_MAX ? INT32_MAX : static_cast<int32_t>(v);
    }
};

inline Tensor narrowed(const Tensor& index) {
    const Tensor to = empty(Layout(index), DType::Int);
    for_each(index.numel(), Narrow{data<const int64_t>(index), data<int32_t>(to)});
    return to;
}

// Nobody waits for a GPU to look at indices: the walk leaves out those that it must not read.
inline Pattern taken(const char* op, const Tensor& rowptr, const Tensor& col, const Index& edge, const Schedule& s,
                     int64_t columns, bool = false) {
    return pattern(op, rowptr, col, edge, s, columns);
}

inline void refuse_offsets(const char*, const char*, const Tensor&, int64_t) {}

}  // namespace graphs
