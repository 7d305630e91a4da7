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
struct Part {
    int64_t row, begin, end, degree;
    bool piece;

    template <class T, class P>
    __device__ bool find(const Gather<T, P>& q, int64_t task) {
        piece = task < q.pieces;
        row = piece ? static_cast<int64_t>(q.split[2 * task]) : q.order ? q.order[task - q.pieces] : task - q.pieces;
        if (row < 0 || row >= q.rows) return false;
        begin = max(static_cast<int64_t>(q.rowptr[row]), int64_t(0));
        end = min(static_cast<int64_t>(q.rowptr[row + 1]), q.edges);
        degree = end - begin;
        if (piece) {
            begin = max(begin, static_cast<int64_t>(q.split[2 * task + 1]));
            end = min(end, begin + q.piece);
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

// G lanes a row, each with V features side by side; U neighbours are on their way at a time. Tiles of G · V features
// are blockIdx.y, so that all rows go through one tile before the next: the part of x that they read may then stay in
// the second cache.
template <class T, int V, int G, class P, bool dots, int U = 4>
__global__ void __launch_bounds__(block_threads) gather(__grid_constant__ const Gather<T, P> q) {
    using C = Compute<T>;
    const int lane = threadIdx.x % G;
    const unsigned mask = G == 32 ? ~0u : ((1u << (G % 32)) - 1) << (threadIdx.x % 32 / G * G);
    const int64_t task = blockIdx.x * int64_t(block_threads / G) + threadIdx.x / G;
    Part part;
    if (task >= q.tasks || !part.find(q, task)) return;
    const int32_t feature = ((q.first_tile + blockIdx.y) * G + lane) * V;
    const bool active = feature < q.features;
    const T* const x = q.x + feature;
    C sums[V] = {};
    Near<T, V> own;
    if (dots && active) own.read(q.own + part.row * q.own_stride + feature);
    for (int64_t base = part.begin; base < part.end; base += G) {
        // A lane looks at one edge; an index out of range is none.
        const int64_t mine = base + lane;
        int32_t c = -1;
        C w = 1, scale = 1;
        P e = static_cast<P>(mine);
        if (mine < part.end) {
            c = __ldcs(q.col + mine);
            if (static_cast<uint32_t>(c) >= static_cast<uint32_t>(q.columns)) c = -1;
            if (q.edge && (q.weight || dots)) {
                e = __ldcs(q.edge + mine);
                if (e < 0 || e >= q.edges) c = -1;
            }
            if (q.weight && c >= 0) w = number<T, C>(q.weight, e, q.weight_is_wide);
            if (q.degrees && c >= 0) {
                const C degree = static_cast<C>(q.degrees[c + 1] - q.degrees[c]);
                w /= degree, scale /= degree;
            }
        }
        const int count = static_cast<int>(min(part.end - base, int64_t(G)));
        for (int at = 0; at < count; at += U) {
            int32_t from[U];
            Near<T, V> near[U];
#pragma unroll
            for (int u = 0; u < U; ++u) from[u] = __shfl_sync(mask, c, at + u, G);
#pragma unroll
            for (int u = 0; u < U; ++u) {
                if (active && from[u] >= 0) near[u].read(x + from[u] * q.x_stride);
            }
            if (q.weight || q.degrees) {
#pragma unroll
                for (int u = 0; u < U; ++u) {
                    const C factor = __shfl_sync(mask, w, at + u, G);
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
                const C times = __shfl_sync(mask, scale, which, G);
                const P to = __shfl_sync(mask, e, which, G);
                const bool is_edge = __shfl_sync(mask, c, which, G) >= 0;
                if (lane % (G / U) == 0 && is_edge) q.dots[to] = (q.first_tile ? q.dots[to] : C(0)) + dot * times;
            }
        }
    }
    if (!q.out || !active) return;
    if (part.piece) {
        for (int i = 0; i < V; ++i) q.partial[task * q.features + feature + i] = sums[i];
        return;
    }
    Pack<T, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) result.at[i] = static_cast<T>(finished(q, sums[i], part.degree, feature + i));
    *reinterpret_cast<Pack<T, V>*>(q.out + part.row * q.features + feature) = result;
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
    Part part;
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
