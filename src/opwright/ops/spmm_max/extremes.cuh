// The greatest and the least of neighbours, on the GPU. A warp has 32 features of a row, or of a piece of one.
#pragma once

#include "../spmm/sums.cuh"
#include "../spmm/transposed.cuh"

namespace graphs {

constexpr int row_warps = block_threads / 32;

// What a walk finds: the extremes, and how many edges have each.
template <class C>
struct Best {
    C value = 0, among = 0;

    __device__ void meet(C v, C count, bool least) {
        const bool better = among == 0 || (least ? v < value : v > value) || v != v;
        among = better ? count : among + (v == value ? count : C(0));
        value = better ? v : value;
    }
};

template <class T, class P>
struct Extremes {
    using C = Compute<T>;
    Gather<T, P> q;  // its partial has the extremes of pieces, `counts` how many edges have them
    C* counts;
    bool least;
    const T* grad;  // nullptr: out is wanted; else best and share
    int64_t grad_stride;
    C *best, *share;

    __device__ const T* neighbour(int64_t node) const {
        return reinterpret_cast<const T*>(reinterpret_cast<const char*>(q.x) + node * q.x_stride);
    }

    __device__ void put(int64_t row, int32_t feature, const Best<C>& found) const {
        const int64_t at = row * q.features + feature;
        if (!grad) {
            q.out[at] = static_cast<T>(found.value);
            return;
        }
        best[at] = found.value;
        share[at] = static_cast<C>(grad[row * grad_stride + feature]) / max(found.among, C(1));
    }
};

// The column of an edge, or -1 where it is none; its weight.
template <class T, class P>
__device__ int32_t neighbour(const Gather<T, P>& q, int64_t k, P& e, Compute<T>& w) {
    int32_t c = q.col[k];
    e = q.edge ? q.edge[k] : static_cast<P>(k);
    if (static_cast<uint32_t>(c) >= static_cast<uint32_t>(q.columns) || e < 0 || e >= q.edges) c = -1;
    w = q.weight && c >= 0 ? number<T, Compute<T>>(q.weight, e, q.weight_is_wide) : Compute<T>(1);
    return c;
}

// Over the edges from `begin` to `end`.
template <class T, class P>
__device__ Best<Compute<T>> best_of(const Extremes<T, P>& s, P begin, P end, int32_t feature) {
    using C = Compute<T>;
    Best<C> found;
#pragma unroll 4
    for (int64_t k = begin; k < end; ++k) {
        P e;
        C w;
        const int32_t c = neighbour(s.q, k, e, w);
        if (c >= 0) found.meet(w * static_cast<C>(s.neighbour(c)[feature]), C(1), s.least);
    }
    return found;
}

// A warp has the rows of a bin one after another, or a piece of a row.
template <class T, class P, class Body>
__device__ void each_row(const Gather<T, P>& q, const Part<P>& part, const Body& body) {
    P begin = part.begin, end = part.end;
    bool passes = part.passes;
    for (int32_t row = part.row; row < part.last; ++row) {
        if (!passes) body(row, begin, end);
        begin = end, end = q.offset_of(*q.end_after(row));
        passes = row + 1 < part.last && q.is_split(row + 1, begin, end);
    }
}

template <class T, class P>
__global__ void __launch_bounds__(block_threads) find_extremes(__grid_constant__ const Extremes<T, P> s) {
    const Gather<T, P>& q = s.q;
    const int64_t task = blockIdx.x * int64_t(row_warps) + threadIdx.x / 32;
    const int32_t feature = blockIdx.y * 32 + threadIdx.x % 32;
    if (feature >= q.features) return;
    const Part<P> part(q, task);
    each_row(q, part, [&](int32_t row, P begin, P end) {
        const Best<Compute<T>> found = best_of(s, begin, end, feature);
        if (!part.piece) return s.put(row, feature, found);
        q.partial[task * q.features + feature] = found.value;
        s.counts[task * q.features + feature] = found.among;
    });
}

template <class T, class P>
__global__ void __launch_bounds__(block_threads) join_extremes(__grid_constant__ const Extremes<T, P> s) {
    const Gather<T, P>& q = s.q;
    each_joined(q, [&](const Joined<T, P>& joined) {
        for (int32_t feature = threadIdx.x; feature < q.features; feature += block_threads) {
            Best<Compute<T>> found;
            if (joined.is_whole) {
                for (int64_t k = joined.first; k < joined.first + joined.count; ++k) {
                    const int64_t at = k * q.features + feature;
                    if (s.counts[at] > 0) found.meet(q.partial[at], s.counts[at], s.least);
                }
            } else {
                found = best_of(s, joined.begin, joined.end, feature);
            }
            s.put(joined.row, feature, found);
        }
    });
}

// The gradient of x, by the transposed pattern: its columns are rows of best and share.
template <class T, class P>
__device__ Compute<T> shares_of(const Extremes<T, P>& s, int64_t row, P begin, P end, int32_t feature) {
    using C = Compute<T>;
    const int64_t features = s.q.features;
    const C own = static_cast<C>(s.neighbour(row)[feature]);
    C sum = 0;
#pragma unroll 4
    for (int64_t k = begin; k < end; ++k) {
        P e;
        C w;
        const int64_t c = neighbour(s.q, k, e, w);
        if (c >= 0 && w * own == s.best[c * features + feature]) sum += w * s.share[c * features + feature];
    }
    return sum;
}

template <class T, class P>
__global__ void __launch_bounds__(block_threads) share_columns(__grid_constant__ const Extremes<T, P> s) {
    const Gather<T, P>& q = s.q;
    const int64_t task = blockIdx.x * int64_t(row_warps) + threadIdx.x / 32;
    const int32_t feature = blockIdx.y * 32 + threadIdx.x % 32;
    if (feature >= q.features) return;
    const Part<P> part(q, task);
    each_row(q, part, [&](int32_t row, P begin, P end) {
        const Compute<T> sum = shares_of(s, row, begin, end, feature);
        if (part.piece)
            q.partial[task * q.features + feature] = sum;
        else
            q.out[int64_t(row) * q.features + feature] = static_cast<T>(sum);
    });
}

// The gradient of the weight of edge k of a row of the transposed pattern: a warp has all its features.
template <class T, class P>
__device__ void share_edge(const Extremes<T, P>& s, int64_t row, int64_t k) {
    using C = Compute<T>;
    P e;
    C w, sum = 0;
    const int64_t c = neighbour(s.q, k, e, w), features = s.q.features;
    if (c < 0) return;
    for (int32_t feature = threadIdx.x % 32; feature < features; feature += 32) {
        const C own = static_cast<C>(s.neighbour(row)[feature]);
        if (w * own == s.best[c * features + feature]) sum += own * s.share[c * features + feature];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) s.q.dots[e] = sum;
}

template <class T, class P>
__global__ void __launch_bounds__(block_threads) share_edges(__grid_constant__ const Extremes<T, P> s) {
    const Gather<T, P>& q = s.q;
    const Part<P> part(q, blockIdx.x * int64_t(row_warps) + threadIdx.x / 32);
    each_row(q, part, [&](int32_t row, P begin, P end) {
        for (int64_t k = begin; k < end; ++k) share_edge(s, row, k);
    });
}

template <class T, class P>
__global__ void __launch_bounds__(block_threads) join_shares(__grid_constant__ const Extremes<T, P> s) {
    const Gather<T, P>& q = s.q;
    each_joined(q, [&](const Joined<T, P>& joined) {
        if (q.dots && !joined.is_whole) {
            for (int64_t k = joined.begin + threadIdx.x / 32; k < joined.end; k += row_warps)
                share_edge(s, joined.row, k);
        }
        if (!q.out) return;
        for (int32_t feature = threadIdx.x; feature < q.features; feature += block_threads) {
            Compute<T> sum = 0;
            if (joined.is_whole) {
                for (int64_t k = joined.first; k < joined.first + joined.count; ++k)
                    sum += q.partial[k * q.features + feature];
            } else {
                sum = shares_of(s, joined.row, joined.begin, joined.end, feature);
            }
            q.out[joined.row * q.features + feature] = static_cast<T>(sum);
        }
    });
}

// Tensors of one call, kept until its launches are made.
template <class T, class P>
Extremes<T, P> asked(const Pattern& p, const Tensor& x, const Tensor& weight, bool least, int64_t piece, Tensor& room,
                     Tensor& counts) {
    using C = Compute<T>;
    Extremes<T, P> s = {};
    Gather<T, P>& q = s.q;
    q.rowptr = data<const P>(p.rowptr), q.col = data<const int32_t>(p.col);
    q.edge = given(p.edge) ? data<const P>(*p.edge) : nullptr;
    q.rows = static_cast<int32_t>(p.rows), q.edges = static_cast<P>(p.edges),
    q.columns = static_cast<int32_t>(p.columns);
    q.features = static_cast<int32_t>(x.size(1));
    q.x = data<const T>(x), q.x_stride = bytes_a_row(x);
    if (weight.defined()) q.weight = weight.const_data_ptr(), q.weight_is_wide = dtype(weight) == dtype_of<C>;
    place_tasks(q, p, piece);
    if (q.pieces > 0) {
        room = empty({q.pieces, x.size(1)}, dtype_of<C>), counts = empty({q.pieces, x.size(1)}, dtype_of<C>);
        q.partial = data<C>(room), s.counts = data<C>(counts);
    }
    s.least = least;
    return s;
}

template <class T, class P>
Grid grid_of(const Extremes<T, P>& s, bool tiles = true) {
    return {ceil_div(s.q.tasks, row_warps), block_threads, 0, tiles ? ceil_div(s.q.features, 32) : 1};
}

template <class T, class P>
void find(const Extremes<T, P>& s) {
    launch(find_extremes<T, P>, grid_of(s), s);
    if (s.q.pieces > 0) launch(join_extremes<T, P>, {ceil_div(s.q.pieces, pieces_a_block), block_threads}, s);
}

inline Tensor extremes(const Pattern& p, const Tensor& features, const std::optional<Tensor>& weight, bool least,
                       int64_t piece) {
    const Tensor x = near_rows(features), numbered = given(weight) ? aten::contiguous(*weight) : Tensor();
    const Tensor out = empty({p.rows, x.size(1)}, dtype(x));
    if (x.size(1) == 0 || p.rows == 0) return out;
    dispatch(floating, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        dispatch(Types<int32_t, int64_t>(), dtype(p.rowptr), [&](auto offset) {
            Tensor room, counts;
            auto s = asked<T, decltype(offset)>(p, x, numbered, least, piece, room, counts);
            s.q.out = data<T>(out);
            find(s);
        });
    });
    return out;
}

inline std::tuple<Tensor, Tensor> extremes_backward(const Pattern& p, const Pattern& t, const Tensor& given_grad,
                                                    const Tensor& features, const std::optional<Tensor>& weight,
                                                    bool least, bool sums, bool dots, int64_t piece) {
    const Tensor x = near_rows(features), grad = matrix(given_grad);
    const Tensor numbered = given(weight) ? aten::contiguous(*weight) : Tensor();
    const int64_t f = x.size(1);
    const Tensor best = empty({p.rows, f}, computed(x)), share = empty({p.rows, f}, computed(x));
    const Tensor grad_x = sums ? empty({p.columns, f}, dtype(x)) : Tensor();
    const Tensor grad_weight = dots ? dots_for(p.col, x) : Tensor();
    if (f == 0) return {grad_x, grad_weight};
    dispatch(floating, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        using C = Compute<T>;
        dispatch(Types<int32_t, int64_t>(), dtype(p.rowptr), [&](auto offset) {
            using P = decltype(offset);
            Tensor room, counts, t_room, t_counts;
            auto s = asked<T, P>(p, x, numbered, least, piece, room, counts);
            s.grad = data<const T>(grad), s.grad_stride = grad.size(0) > 1 ? grad.stride(0) : f;
            s.best = data<C>(best), s.share = data<C>(share);
            find(s);
            auto back = asked<T, P>(t, x, numbered, least, piece, t_room, t_counts);
            back.best = s.best, back.share = s.share;
            if (sums) {
                back.q.out = data<T>(grad_x);
                launch(share_columns<T, P>, grid_of(back), back);
            }
            if (dots) {
                back.q.dots = data<C>(grad_weight);
                launch(share_edges<T, P>, grid_of(back, false), back);
            }
            if (back.q.pieces > 0)
                launch(join_shares<T, P>, {ceil_div(back.q.pieces, pieces_a_block), block_threads}, back);
        });
    });
    return {grad_x, grad_weight};
}

}  // namespace graphs
