// One walk over compressed rows on the GPU: a group of lanes gathers the neighbours of the rows of a bin, one row after
// another, or of a piece of a long row, and adds them up. No atomics: the order of a sum is that of the edges, so that
// a result is the same each time. The schedule says who adds up, and never what: bins share their borders, so that
// every row lies in one whatever they say, and the pieces of a long row are compared with what they must be where they
// are joined.
#pragma once

#include "loads.cuh"

namespace graphs {

constexpr int block_threads = 256;
constexpr int join_threads = 512;
constexpr int pieces_a_block = 8;  // of which a block joins the rows that begin among them
constexpr unsigned all_lanes = ~0u;

template <class T, class P>
struct Gather {
    using C = Compute<T>;
    const P *rowptr, *edge, *degrees;  // degrees: offsets of the rows that columns stand for, whose mean was taken
    const int32_t* col;
    P edges;
    int32_t rows, columns, features, first_tile;
    const T* x;
    uint32_t x_stride, own_stride;  // in bytes
    const void *weight, *bias;
    bool weight_is_wide, bias_is_wide;  // of C, which differs from T for half and bfloat16
    bool mean, relu;
    T* out;  // nullptr: dots alone
    const T* own;
    C* dots;              // dots[edge] = x[col] · own[row]
    const P* split;       // row and first edge of each piece of the long rows
    const int32_t* bins;  // the first row of each bin; nullptr: `each` rows a bin
    int64_t each;
    int64_t pieces, piece, tasks;  // tasks: the pieces, and then the bins
    C* partial;                    // [pieces, features]

    // Offsets that lie are cut to what is there.
    __device__ P offset_of(P raw) const { return min(max(raw, P(0)), edges); }
    __device__ P offset(int64_t row) const { return offset_of(rowptr[row]); }
    // The offset after that, as it stands there.
    __device__ const P* end_after(int32_t row) const { return rowptr + (row < rows - 1 ? row + 2 : rows); }
    __device__ bool has(int64_t row) const { return row >= 0 && row < rows; }

    // Weights, if any, have the type of x and the order of the edges, and no mean was taken: there is little to look
    // at.
    bool is_plain() const { return !edge && !degrees && (!weight || !weight_is_wide || sizeof(T) == sizeof(C)); }

    // Whether a row is long and has pieces, and so will be joined: who walks its bin passes it over.
    __device__ bool is_split(int32_t row, P begin, P end) const {
        if (pieces == 0 || end - begin <= piece) return false;
        int64_t low = 0, high = pieces;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (split[2 * middle] < row)
                low = middle + 1;
            else
                high = middle;
        }
        return low < pieces && split[2 * low] == row;
    }
};

template <class T, class C>
__device__ C number(const void* from, int64_t at, bool wide) {
    return wide ? static_cast<const C*>(from)[at] : static_cast<C>(static_cast<const T*>(from)[at]);
}

// What becomes of V sums of a row: what is not asked for costs one look, not one a feature.
template <int V, class T, class P>
__device__ void finish(const Gather<T, P>& q, Compute<T> (&sums)[V], int64_t degree, int32_t feature) {
    using C = Compute<T>;
    if (q.mean && degree > 0) {
        const C count = static_cast<C>(degree);
#pragma unroll
        for (int i = 0; i < V; ++i) sums[i] /= count;
    }
    if (q.bias) {
#pragma unroll
        for (int i = 0; i < V; ++i) sums[i] += number<T, C>(q.bias, feature + i, q.bias_is_wide);
    }
    if (q.relu) {
#pragma unroll
        for (int i = 0; i < V; ++i) sums[i] = sums[i] < 0 ? C(0) : sums[i];  // NaN stays
    }
}

// What a group walks: the rows of a bin, or a piece of one row.
template <class P>
struct Part {
    int32_t row = 0, last = 0;
    P begin = 0, end = 0;                // the edges of the first row
    bool piece = false, passes = false;  // over the first row

    template <class T>
    __device__ Part(const Gather<T, P>& q, int64_t task) {
        piece = task < q.pieces;
        if (piece) {
            const P named = q.split[2 * task], from = q.split[2 * task + 1];
            if (!q.has(named)) return;
            const P first = q.offset(named), stop = q.offset(named + 1);
            if (stop - first <= q.piece || from < first || from >= stop || (from - first) % q.piece != 0) return;
            row = static_cast<int32_t>(named), last = row + 1;
            begin = from, end = stop - from > q.piece ? static_cast<P>(from + q.piece) : stop;
        } else if (task < q.tasks) {
            const int64_t t = task - q.pieces;
            const bool ends = task + 1 == q.tasks;
            int64_t from = t * q.each, to = from + q.each;
            if (q.bins) from = t > 0 ? q.bins[t] : 0, to = ends ? q.rows : q.bins[t + 1];
            row = static_cast<int32_t>(max(from, int64_t(0))), last = static_cast<int32_t>(min(to, int64_t(q.rows)));
            if (!walks()) return;
            begin = q.offset(row), end = q.offset(row + 1);
            passes = q.is_split(row, begin, end);
            if (passes) begin = end;
        }
    }

    __device__ bool walks() const { return row < last; }
};

// An edge as it was read: where it comes from, -1 for none; where its weight is; its weight, where weights are in the
// order of the edges.
template <class T, class P>
struct Edge {
    using C = Compute<T>;
    int32_t from;
    P at;
    Bits<C> bits;

    template <bool dots, bool plain = false>
    __device__ void ask(const Gather<T, P>& q, P k, bool is) {
        from = index_if(q.col + k, is, -1);
        if constexpr (plain) {
            bits = bits_if<true>(static_cast<const T*>(q.weight) + k, is && q.weight, bits_of_one<T>());
            return;
        }
        at = index_if(q.edge + k, is && q.edge && (dots || q.weight), k);
        bits = weight_bits<true>(q, k, is && q.weight && !q.edge);
    }

    template <bool once>
    __device__ static Bits<C> weight_bits(const Gather<T, P>& q, P k, bool is) {
        if constexpr (sizeof(T) == sizeof(C)) {
            return bits_if<once>(static_cast<const C*>(q.weight) + k, is, bits_of_one<C>());
        } else if (q.weight_is_wide) {
            return bits_if<once>(static_cast<const C*>(q.weight) + k, is, bits_of_one<C>());
        } else {
            return bits_if<once>(static_cast<const T*>(q.weight) + k, is, bits_of_one<T>());
        }
    }

    // Looks at the indices: one out of range is no edge. Gives the weight, and what a mean made of its products.
    template <bool dots, bool plain = false>
    __device__ C look(const Gather<T, P>& q, C& scale) {
        if (static_cast<uint32_t>(from) >= static_cast<uint32_t>(q.columns)) from = -1;
        if constexpr (plain) return from < 0 ? C(0) : of_bits<T>(bits);
        if (q.edge && (dots || q.weight)) {
            if (static_cast<std::make_unsigned_t<P>>(at) >= static_cast<std::make_unsigned_t<P>>(q.edges)) from = -1;
            if (q.weight) bits = weight_bits<false>(q, at, from >= 0);
        }
        const bool narrow = sizeof(T) < sizeof(C) && q.weight && !q.weight_is_wide;
        C weight = 1;
        if (q.weight) weight = narrow ? narrow_weight() : of_bits<C>(bits);
        scale = 1;
        if (q.degrees && from >= 0) {
            const C degree = static_cast<C>(q.degrees[from + 1] - q.degrees[from]);
            weight /= degree, scale /= degree;
        }
        return from < 0 ? C(0) : weight;
    }

    __device__ C narrow_weight() const {
        if constexpr (sizeof(T) < sizeof(C))
            return of_bits<T>(bits);
        else
            return of_bits<C>(bits);
    }
};

// The sums of U numbers over the lanes of a group at once: lane l gets that of number l / (G / U).
template <int G, int U, class C>
__device__ C sum_each(int lane, C (&numbers)[U]) {
    int step = G / 2;
#pragma unroll
    for (int half = U / 2; half > 0; half /= 2, step /= 2) {
        const bool upper = lane & step;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const C given = upper ? numbers[i] : numbers[i + half];
            const C kept = upper ? numbers[i + half] : numbers[i];
            numbers[i] = kept + __shfl_xor_sync(all_lanes, given, step, G);
        }
    }
#pragma unroll
    for (int rest = G / U / 2; rest > 0; rest /= 2) numbers[0] += __shfl_xor_sync(all_lanes, numbers[0], rest, G);
    return numbers[0];
}

// Blocks that an SM holds at once, for which registers are saved: the more rows wait for memory, the better.
constexpr int blocks_at_once = 4;

// Neighbours that are on their way at a time.
template <int G, bool dots>
constexpr int at_once = G >= 16 && !dots ? 8 : 4;

// G lanes a bin, each with V features side by side. Tiles of G · V features
// are blockIdx.y, so that all rows go through one tile before the next: the part of x that they read may then stay in
// the second cache. The groups of a warp go through their bins at their own pace, but always together, so that lanes
// exchange what they have without asking who is there.
template <class T, int V, int G, class P, bool dots, bool plain = false>
__global__ void __launch_bounds__(block_threads, blocks_at_once) gather(__grid_constant__ const Gather<T, P> q) {
    constexpr int U = at_once<G, dots>;
    using C = Compute<T>;
    const int lane = threadIdx.x % G;
    const int64_t task = blockIdx.x * int64_t(block_threads / G) + threadIdx.x / G;
    const Part<P> part(q, task);
    const int32_t last = part.last, feature = ((q.first_tile + blockIdx.y) * G + lane) * V;
    const bool active = feature < q.features;
    const char* x = reinterpret_cast<const char*>(q.x + feature);
    asm volatile("" : "+l"(x));  // kept, not computed again for each edge
    const auto own_of = [&](int32_t row) {
        return reinterpret_cast<const char*>(q.own + feature) + static_cast<uint64_t>(row) * q.own_stride;
    };
    bool walks = part.walks(), passes = part.passes;
    int32_t row = part.row;
    P base = part.begin, end = part.end, begin = part.begin;
    P after = walks ? *q.end_after(row) : P(0);  // where the next row ends
    C sums[V] = {};
    Near<T, V> own, next_own;
    if constexpr (dots) own.read_if(own_of(row), walks && active);
    Edge<T, P> next;
    next.template ask<dots, plain>(q, static_cast<P>(base + lane), base + lane < end);
    while (__any_sync(all_lanes, walks)) {
        Edge<T, P> now = next;
        C scale;
        const C weight = now.template look<dots, plain>(q, scale);
        // The next edges, of this row or the next one, are on their way while the neighbours of these are.
        const bool done = walks && end - base <= G;
        const int32_t next_row = row + done;
        const bool more = next_row < last;
        // Who has finished stays where it is, while others of its warp go on.
        P next_base = done || !walks ? end : static_cast<P>(base + G);
        const P next_end = done && more ? q.offset_of(after) : end;
        const bool next_passes = done && more && q.is_split(next_row, end, next_end);
        if (next_passes) next_base = next_end;
        after = index_if(q.end_after(next_row), done, after);
        if constexpr (dots) next_own.read_if(own_of(next_row), done && more && active);
        next.template ask<dots, plain>(q, static_cast<P>(next_base + lane), next_base + lane < next_end);
#pragma unroll
        for (int at = 0; at < G; at += U) {
            if (at > 0 && !__any_sync(all_lanes, base + at < end)) break;
            Near<T, V> near[U];
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const int32_t from = __shfl_sync(all_lanes, now.from, at + u, G);
                near[u].read_if(x + static_cast<uint64_t>(static_cast<uint32_t>(from)) * q.x_stride,
                                active && from >= 0);
            }
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const C factor = __shfl_sync(all_lanes, weight, at + u, G);
#pragma unroll
                for (int i = 0; i < V; ++i) sums[i] += factor * near[u].at(i);
            }
            if constexpr (dots) {
                C products[U] = {};
#pragma unroll
                for (int u = 0; u < U; ++u) {
#pragma unroll
                    for (int i = 0; i < V; ++i) products[u] += own.at(i) * near[u].at(i);
                }
                const C dot = sum_each<G>(lane, products);
                const int which = at + lane / (G / U);
                const C times = __shfl_sync(all_lanes, scale, which, G);
                const P to = __shfl_sync(all_lanes, now.at, which, G);
                const bool is_edge = __shfl_sync(all_lanes, now.from, which, G) >= 0;
                if (lane % (G / U) == 0 && is_edge) q.dots[to] = (q.first_tile ? q.dots[to] : C(0)) + dot * times;
            }
        }
        if (done) {
            if (q.out && active && !passes) {
                if (part.piece) {
                    for (int i = 0; i < V; ++i) q.partial[task * q.features + feature + i] = sums[i];
                } else {
                    finish<V>(q, sums, end - begin, feature);
                    Pack<T, V> result;
#pragma unroll
                    for (int i = 0; i < V; ++i) result.at[i] = static_cast<T>(sums[i]);
                    put<T, V>(q.out + int64_t(row) * q.features + feature, result);
                }
            }
            walks = more, passes = next_passes, begin = end;
#pragma unroll
            for (int i = 0; i < V; ++i) sums[i] = 0;
            if constexpr (dots) own = next_own;
        }
        row = next_row, base = next_base, end = next_end;
    }
}

// The first piece of a long row, and whether all of its pieces follow. Every thread of a block asks.
template <class T, class P>
struct Joined {
    int64_t row, first, count;
    P begin, end;
    bool is_whole;

    __device__ bool find(const Gather<T, P>& q, int64_t at) {
        if (at >= q.pieces) return false;
        first = at, row = q.split[2 * first];
        if (!q.has(row) || (first > 0 && q.split[2 * first - 2] == row)) return false;
        begin = q.offset(row), end = q.offset(row + 1);
        if (end - begin <= q.piece) return false;  // it is no long row, and was walked with others
        count = ceil_div(end - begin, q.piece);
        bool right = first + count <= q.pieces;
        for (int64_t k = threadIdx.x; right && k < count; k += blockDim.x)
            right = q.split[2 * (first + k)] == row && q.split[2 * (first + k) + 1] == begin + k * q.piece;
        is_whole = __syncthreads_and(right);
        return true;
    }
};

// body(row) for each long row that begins among the pieces of this block. All its threads are there.
template <class T, class P, class Body>
__device__ void each_joined(const Gather<T, P>& q, const Body& body) {
    for (int i = 0; i < pieces_a_block; ++i) {
        Joined<T, P> joined;
        if (joined.find(q, blockIdx.x * int64_t(pieces_a_block) + i)) body(joined);
    }
}

// The pieces of each long row, added up; or its edges, where the pieces are not those of the row. A block has 32
// features of a row, its warps share the pieces.
template <class T, class P, bool dots>
__global__ void __launch_bounds__(join_threads) join_pieces(__grid_constant__ const Gather<T, P> q) {
    using C = Compute<T>;
    constexpr int warps = join_threads / 32;
    __shared__ C totals[warps][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t feature = blockIdx.y * 32 + lane;
    const auto of = [](const T* rows, int64_t row, uint32_t stride) {
        return reinterpret_cast<const T*>(reinterpret_cast<const char*>(rows) + row * stride);
    };
    each_joined(q, [&](const Joined<T, P>& joined) {
        if (dots && !joined.is_whole && blockIdx.y == 0) {
            const T* const own = of(q.own, joined.row, q.own_stride);
            for (P k = joined.begin + warp; k < joined.end; k += warps) {
                Edge<T, P> edge;
                edge.template ask<true>(q, k, true);
                C scale, dot = 0;
                edge.template look<true>(q, scale);
                if (edge.from < 0) continue;
                const T* const near = of(q.x, edge.from, q.x_stride);
                for (int32_t f = lane; f < q.features; f += 32) dot += static_cast<C>(own[f]) * static_cast<C>(near[f]);
                dot = warp_sum(dot);
                if (lane == 0) q.dots[edge.at] = dot * scale;
            }
        }
        if (!q.out) return;
        C sum = 0;
        if (feature < q.features && joined.is_whole) {
#pragma unroll 8
            for (int64_t k = warp; k < joined.count; k += warps)
                sum += q.partial[(joined.first + k) * q.features + feature];
        } else if (feature < q.features) {
            for (P k = joined.begin + warp; k < joined.end; k += warps) {
                Edge<T, P> edge;
                edge.template ask<false>(q, k, true);
                C scale;
                const C weight = edge.template look<false>(q, scale);
                if (edge.from >= 0) sum += weight * static_cast<C>(of(q.x, edge.from, q.x_stride)[feature]);
            }
        }
        __syncthreads();  // the row before may still be being read
        totals[warp][lane] = sum;
        __syncthreads();
        if (warp > 0 || feature >= q.features) return;
        C total[1] = {};
        for (int w = 0; w < warps; ++w) total[0] += totals[w][lane];
        finish<1>(q, total, joined.end - joined.begin, feature);
        q.out[joined.row * q.features + feature] = static_cast<T>(total[0]);
    });
}

}  // namespace graphs
