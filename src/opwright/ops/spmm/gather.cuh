// One walk over compressed rows on the GPU: a group of lanes gathers the neighbours of a row, a piece of it where the
// row is long, and adds them up. No atomics: the order of a sum is that of the edges, so that a result is the same each
// time.
#pragma once

#include "pattern.h"

namespace graphs {

constexpr int block_threads = 256;

template <class T, class P>
struct Gather {
    using C = Compute<T>;
    const P *rowptr, *edge, *degrees;  // degrees: offsets of the rows that columns stand for, whose mean was taken
    const int32_t* col;
    int64_t rows, edges;
    int32_t columns, features, first_tile;
    const T* x;
    int64_t x_stride;
    const void *weight, *bias;
    bool weight_is_wide, bias_is_wide;  // of C, which differs from T for half and bfloat16
    bool mean;
    T* out;  // nullptr: dots alone
    const T* own;
    int64_t own_stride;
    C* dots;                       // dots[edge] = x[col] · own[row]
    const P* split;                // row and first edge of each piece of the long rows
    const int32_t* order;          // the other rows, those of about as many edges side by side; nullptr: as they are
    int64_t pieces, piece, tasks;  // tasks: the pieces, and then the rows
    C* partial;                    // [pieces, features]
};

template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
    T at[V];
};

// V features of a neighbour, as they were read: 16 bytes at once, or one number. They become numbers where they are
// used; half precisions two from a word.
template <class T, int V>
struct Near {
    using C = Compute<T>;
    static constexpr bool whole = sizeof(T) * V == 16;
    std::conditional_t<whole, uint4, T> raw = {};

    __device__ void read(const T* from) {
        if constexpr (whole)
            raw = __ldg(reinterpret_cast<const uint4*>(from));
        else
            raw = *from;
    }

    __device__ C at(int i) const {
        if constexpr (!whole) {
            return static_cast<C>(raw);
        } else {
            const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
            if constexpr (std::is_same_v<T, float>) return __uint_as_float(words[i]);
            if constexpr (std::is_same_v<T, double>)
                return __hiloint2double(static_cast<int>(words[2 * i + 1]), static_cast<int>(words[2 * i]));
            const uint32_t word = words[i / 2];
            if constexpr (std::is_same_v<T, BFloat16>) return __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
            return __half2float(__ushort_as_half(static_cast<unsigned short>(i % 2 ? word >> 16 : word)));
        }
    }
};

template <class T, class C>
__device__ C number(const void* from, int64_t at, bool wide) {
    return wide ? static_cast<const C*>(from)[at] : static_cast<C>(static_cast<const T*>(from)[at]);
}

template <class T, class P>
__device__ Compute<T> finished(const Gather<T, P>& q, Compute<T> sum, int64_t degree, int32_t feature) {
    using C = Compute<T>;
    if (q.mean && degree > 0) sum /= static_cast<C>(degree);
    return q.bias ? sum + number<T, C>(q.bias, feature, q.bias_is_wide) : sum;
}

// The part of the edges that a group walks: those of a row, or of a piece of one. Offsets that lie are cut to what is
// there.
template <class P>
struct Part {
    int32_t row;
    P begin, end, degree;
    bool piece;

    template <class T>
    __device__ bool find(const Gather<T, P>& q, int64_t task) {
        piece = task < q.pieces;
        row = static_cast<int32_t>(piece ? q.split[2 * task] : q.order ? q.order[task - q.pieces] : task - q.pieces);
        if (row < 0 || row >= q.rows) return false;
        begin = max(q.rowptr[row], P(0));
        end = min(q.rowptr[row + 1], static_cast<P>(q.edges));
        degree = end - begin;
        if (piece) {
            begin = max(begin, q.split[2 * task + 1]);
            end = min(static_cast<int64_t>(end), begin + q.piece);
            return true;
        }
        return q.pieces == 0 || degree <= q.piece;  // else its pieces are others'
    }
};

// The sums of U numbers over the lanes of a group at once: lane l gets that of number l / (G / U).
template <int G, int U, class C>
__device__ C sum_each(unsigned mask, int lane, C (&numbers)[U]) {
    int step = G / 2;
#pragma unroll
    for (int half = U / 2; half > 0; half /= 2, step /= 2) {
        const bool upper = lane & step;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const C given = upper ? numbers[i] : numbers[i + half];
            const C kept = upper ? numbers[i + half] : numbers[i];
            numbers[i] = kept + __shfl_xor_sync(mask, given, step, G);
        }
    }
#pragma unroll
    for (int rest = G / U / 2; rest > 0; rest /= 2) numbers[0] += __shfl_xor_sync(mask, numbers[0], rest, G);
    return numbers[0];
}

// One edge: where it comes from, -1 for none; where its weight is; its weight; what a mean makes of its products.
template <class C, class P>
struct Edge {
    int32_t from = -1;
    P at;
    C weight = 1, scale = 1;
};

// Edge k of those before `end`. An index out of range is no edge.
template <bool dots, class T, class P>
__device__ Edge<Compute<T>, P> look(const Gather<T, P>& q, P k, P end) {
    using C = Compute<T>;
    Edge<C, P> edge;
    edge.at = k;
    if (k >= end) return edge;
    const int32_t from = __ldcs(q.col + k);
    bool is_edge = static_cast<uint32_t>(from) < static_cast<uint32_t>(q.columns);
    if (q.edge && (q.weight || dots)) {
        edge.at = __ldcs(q.edge + k);
        is_edge = is_edge && edge.at >= 0 && edge.at < q.edges;
        if (edge.at < 0 || edge.at >= q.edges) edge.at = 0;
    }
    if (q.weight) edge.weight = number<T, C>(q.weight, edge.at, q.weight_is_wide);
    if (q.degrees && is_edge) {
        const C degree = static_cast<C>(q.degrees[from + 1] - q.degrees[from]);
        edge.weight /= degree, edge.scale /= degree;
    }
    edge.from = is_edge ? from : -1;
    return edge;
}

// Blocks that an SM holds at once, for which registers are saved: the more rows wait for memory, the better.
template <class T, bool dots>
constexpr int blocks_at_once = (sizeof(T) == 2 ? 5 : 6) - (dots ? 2 : 0);

// G lanes a row, each with V features side by side; U neighbours are on their way at a time. Tiles of G · V features
// are blockIdx.y, so that all rows go through one tile before the next: the part of x that they read may then stay in
// the second cache.
template <class T, int V, int G, class P, bool dots, int U = 4>
__global__ void __launch_bounds__(block_threads, dots             ? 1
                                                 : sizeof(T) == 2 ? 5
                                                                  : 6) gather(__grid_constant__ const Gather<T, P> q) {
    using C = Compute<T>;
    const int lane = threadIdx.x % G;
    const unsigned mask = G == 32 ? ~0u : ((1u << (G % 32)) - 1) << (threadIdx.x % 32 / G * G);
    const int64_t task = blockIdx.x * int64_t(block_threads / G) + threadIdx.x / G;
    Part<P> part;
    if (task >= q.tasks || !part.find(q, task)) return;
    const int32_t feature = ((q.first_tile + blockIdx.y) * G + lane) * V;
    const bool active = feature < q.features;
    const T* const x = q.x + feature;
    C sums[V] = {};
    Near<T, V> own;
    if (dots && active) own.read(q.own + int64_t(part.row) * q.own_stride + feature);
    const P end = part.end;
    P base = part.begin;
    Edge<C, P> now = look<dots>(q, static_cast<P>(base + lane), end);
    for (; base < end; base += G) {
        // The next edges are on their way while the neighbours of these are.
        const Edge<C, P> next = look<dots>(q, static_cast<P>(base + G + lane), end);
        const int count = static_cast<int>(min(static_cast<P>(end - base), static_cast<P>(G)));
        for (int at = 0; at < count; at += U) {
            int32_t from[U];
            Near<T, V> near[U];
#pragma unroll
            for (int u = 0; u < U; ++u) from[u] = __shfl_sync(mask, now.from, at + u, G);
#pragma unroll
            for (int u = 0; u < U; ++u) {
                if (active && from[u] >= 0) near[u].read(x + from[u] * q.x_stride);
            }
            if (q.weight || q.degrees) {
#pragma unroll
                for (int u = 0; u < U; ++u) {
                    const C factor = __shfl_sync(mask, now.weight, at + u, G);
#pragma unroll
                    for (int i = 0; i < V; ++i) sums[i] += factor * near[u].at(i);
                }
            } else {
#pragma unroll
                for (int u = 0; u < U; ++u) {
#pragma unroll
                    for (int i = 0; i < V; ++i) sums[i] += near[u].at(i);
                }
            }
            if constexpr (dots) {
                C products[U] = {};
#pragma unroll
                for (int u = 0; u < U; ++u) {
#pragma unroll
                    for (int i = 0; i < V; ++i) products[u] += own.at(i) * near[u].at(i);
                }
                const C dot = sum_each<G>(mask, lane, products);
                const int which = at + lane / (G / U);
                const C times = __shfl_sync(mask, now.scale, which, G);
                const P to = __shfl_sync(mask, now.at, which, G);
                const bool is_edge = __shfl_sync(mask, now.from, which, G) >= 0;
                if (lane % (G / U) == 0 && is_edge) q.dots[to] = (q.first_tile ? q.dots[to] : C(0)) + dot * times;
            }
        }
        now = next;
    }
    if (!q.out || !active) return;
    if (part.piece) {
        for (int i = 0; i < V; ++i) q.partial[task * q.features + feature + i] = sums[i];
        return;
    }
    Pack<T, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) result.at[i] = static_cast<T>(finished(q, sums[i], part.degree, feature + i));
    *reinterpret_cast<Pack<T, V>*>(q.out + int64_t(part.row) * q.features + feature) = result;
}

// The pieces of each long row, added up. A block has 32 features of one row, its warps share the pieces.
template <class T, class P>
__global__ void __launch_bounds__(block_threads) join_pieces(__grid_constant__ const Gather<T, P> q) {
    using C = Compute<T>;
    constexpr int warps = block_threads / 32;
    __shared__ C totals[warps][32];
    const int64_t first = blockIdx.x;
    const int64_t row = q.split[2 * first];
    if (row < 0 || row >= q.rows || (first > 0 && q.split[2 * first - 2] == row)) return;
    Part<P> part;
    part.find(q, first);
    const int64_t count = min(ceil_div(part.degree, q.piece), q.pieces - first);
    const int32_t feature = blockIdx.y * 32 + threadIdx.x % 32;
    C sum = 0;
    if (feature < q.features) {
        for (int64_t k = threadIdx.x / 32; k < count; k += warps) sum += q.partial[(first + k) * q.features + feature];
    }
    totals[threadIdx.x / 32][threadIdx.x % 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32 || feature >= q.features) return;
    sum = 0;
    for (int w = 0; w < warps; ++w) sum += totals[w][threadIdx.x];
    q.out[row * q.features + feature] = static_cast<T>(finished(q, sum, part.degree, feature));
}

}  // namespace graphs
