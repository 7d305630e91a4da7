// Loops over compressed rows on the CPU.
#pragma once

#include <opwright/tile.h>

#include "pattern.h"

namespace graphs {

// Of indices that have been looked at.
inline Tensor narrowed(const Tensor& index) { return aten::to(index, DType::Int); }

// Raises where an index lies outside [0, below).
inline void refuse_values(const char* op, const char* name, const Tensor& index, int64_t below) {
    dispatch(Types<int32_t, int64_t>(), dtype(index), [&](auto zero) {
        using I = decltype(zero);
        const auto at = strided<const I, 1>(index);
        parallel(0, at.size(0), grain, [&](int64_t begin, int64_t end) {
            I least = 0, most = 0;
            OPWRIGHT_INDEPENDENT
            for (int64_t k = begin; k < end; ++k) least = std::min(least, at(k)), most = std::max(most, at(k));
            check(least >= 0 && most < below, op, ": ", name, " must lie in [0, ", below, "), got ",
                  least < 0 ? int64_t(least) : int64_t(most));
        });
    });
}

// Raises unless offsets go from 0 to `edges` without a step back.
inline void refuse_offsets(const char* op, const char* name, const Tensor& rowptr, int64_t edges) {
    dispatch(Types<int32_t, int64_t>(), dtype(rowptr), [&](auto zero) {
        const auto at = strided<const decltype(zero), 1>(rowptr);
        const int64_t n = at.size(0);
        check(at(0) == 0 && at(n - 1) == edges, op, ": ", name, " must go from 0 to the ", edges, " edges, got ",
              int64_t(at(0)), " and ", int64_t(at(n - 1)));
        bool falls = false;
        for (int64_t i = 0; i + 1 < n; ++i) falls |= at(i + 1) < at(i);
        check(!falls, op, ": ", name, " must not decrease");
    });
}

// A vector of C, of so many bytes, from numbers of T.
template <class C, int bytes>
struct Lanes {
    using Vector = typename Vectors<C, bytes>::type;
    static constexpr int count = bytes / sizeof(C);

    template <class T>
    static OPWRIGHT_INLINE Vector load(const T* from) {
        Vector v;
        if constexpr (std::is_same_v<T, C>) {
            std::memcpy(&v, from, sizeof(v));
        } else if constexpr (std::is_same_v<T, BFloat16>) {  // the upper half of a float
            using Words = typename Vectors<uint32_t, bytes>::type;
            typename Vectors<uint16_t, bytes / 2>::type halves;
            std::memcpy(&halves, from, sizeof(halves));
            const Words words = __builtin_convertvector(halves, Words) << 16;
            std::memcpy(&v, &words, sizeof(v));
        } else {
            C wide[count];
            for (int i = 0; i < count; ++i) wide[i] = static_cast<C>(from[i]);
            std::memcpy(&v, wide, sizeof(v));
        }
        return v;
    }
    template <class T>
    static OPWRIGHT_INLINE void store(T* to, const Vector& v) {
        if constexpr (std::is_same_v<T, C>) {
            std::memcpy(to, &v, sizeof(v));
        } else {
            C wide[count];
            std::memcpy(wide, &v, sizeof(v));
            for (int i = 0; i < count; ++i) to[i] = static_cast<T>(wide[i]);
        }
    }
    static OPWRIGHT_INLINE C sum(const Vector& v) {
        C wide[count], total = 0;
        std::memcpy(wide, &v, sizeof(v));
        for (int i = 0; i < count; ++i) total += wide[i];
        return total;
    }
};

// out[i] = Σ weight · x[col] over the edges of row i; dots[edge] = x[col] · own[i].
template <class T, class P>
struct Job {
    using C = Compute<T>;
    const P *rowptr, *edge, *degrees;  // degrees: offsets of the rows that columns stand for, whose mean was taken
    const int32_t* col;
    const T* x;
    int64_t x_stride, features;
    const C* weight;
    bool mean, relu;
    const C* bias;
    T* out;  // nullptr: dots alone
    const T* own;
    int64_t own_stride;
    C* dots;
};

// So many edges of a long row are summed apart and then added to the row's sum. A million of them one after another
// would be off by a million roundings. As many as a piece has on a GPU.
constexpr int piece = 256;

template <class T, class P, bool dots>
struct Sums {
    template <int bytes>
    struct Loop {
        using C = Compute<T>;
        using L = Lanes<C, bytes>;
        using Q = Job<T, P>;

        static OPWRIGHT_INLINE C factor(const Q& q, P k) {
            C w = q.weight ? q.weight[q.edge ? q.edge[k] : k] : C(1);
            if (q.degrees) w /= C(q.degrees[q.col[k] + 1] - q.degrees[q.col[k]]);  // it has this edge
            return w;
        }

        // `width` vectors of features from `at` on, of row i.
        template <int width>
        static OPWRIGHT_INLINE void block(const Q& q, int64_t i, int64_t at) {
            typename L::Vector sums[width] = {}, before[width] = {}, own[width] = {};
            if constexpr (dots) {
                for (int v = 0; v < width; ++v) own[v] = L::load(q.own + i * q.own_stride + at + v * L::count);
            }
            const P begin = q.rowptr[i], end = q.rowptr[i + 1];
            P next = begin + piece;
            for (P k = begin; k < end; ++k) {
                if (k == next) {
#pragma GCC unroll 8
                    for (int v = 0; v < width; ++v) before[v] += sums[v], sums[v] = typename L::Vector{};
                    next += piece;
                }
                const T* row = q.x + q.col[k] * q.x_stride + at;
                const C w = factor(q, k);
                if constexpr (dots) {
                    typename L::Vector product = {};
#pragma GCC unroll 8
                    for (int v = 0; v < width; ++v) {
                        const typename L::Vector x = L::load(row + v * L::count);
                        sums[v] += w * x;
                        product += own[v] * x;
                    }
                    C& dot = q.dots[q.edge ? q.edge[k] : k];
                    dot = (at == 0 ? C(0) : dot) + L::sum(product) * scaled(q, k);
                } else {
#pragma GCC unroll 8
                    for (int v = 0; v < width; ++v) sums[v] += w * L::load(row + v * L::count);
                }
            }
            if (!q.out) return;
            const C scale = q.mean && end > begin ? C(end - begin) : C(1);
#pragma GCC unroll 8
            for (int v = 0; v < width; ++v) {
                typename L::Vector total = before[v] + sums[v];
                if (q.mean) total /= scale;
                if (q.bias) total += L::load(q.bias + at + v * L::count);
                if (q.relu) total = total < 0 ? typename L::Vector{} : total;  // NaN stays
                L::store(q.out + i * q.features + at + v * L::count, total);
            }
        }

        // What the mean made of a product of an edge.
        static OPWRIGHT_INLINE C scaled(const Q& q, P k) {
            return q.degrees ? C(1) / C(q.degrees[q.col[k] + 1] - q.degrees[q.col[k]]) : C(1);
        }

        // The features that fill no vector.
        static OPWRIGHT_INLINE void rest(const Q& q, int64_t i, int64_t at) {
            const int64_t n = q.features - at;
            C sums[L::count] = {}, before[L::count] = {};
            const P begin = q.rowptr[i], end = q.rowptr[i + 1];
            P next = begin + piece;
            for (P k = begin; k < end; ++k) {
                if (k == next) {
                    for (int64_t f = 0; f < n; ++f) before[f] += sums[f], sums[f] = 0;
                    next += piece;
                }
                const T* row = q.x + q.col[k] * q.x_stride + at;
                const C w = factor(q, k);
                for (int64_t f = 0; f < n; ++f) sums[f] += w * static_cast<C>(row[f]);
                if constexpr (dots) {
                    const T* own = q.own + i * q.own_stride + at;
                    C product = 0;
                    for (int64_t f = 0; f < n; ++f) product += static_cast<C>(own[f]) * static_cast<C>(row[f]);
                    C& dot = q.dots[q.edge ? q.edge[k] : k];
                    dot = (at == 0 ? C(0) : dot) + product * scaled(q, k);
                }
            }
            if (!q.out) return;
            const C scale = q.mean && end > begin ? C(end - begin) : C(1);
            for (int64_t f = 0; f < n; ++f) {
                C total = before[f] + sums[f];
                if (q.mean) total /= scale;
                if (q.bias) total += q.bias[at + f];
                q.out[i * q.features + at + f] = static_cast<T>(q.relu && total < 0 ? C(0) : total);
            }
        }

        static OPWRIGHT_INLINE void run(const Q* job, int64_t begin, int64_t end) {
            const Q& q = *job;
            for (int64_t i = begin; i < end; ++i) {
                int64_t at = 0;
                for (; q.features - at >= 8 * L::count; at += 8 * L::count) block<8>(q, i, at);
                if (q.features - at >= 4 * L::count) block<4>(q, i, at), at += 4 * L::count;
                for (; q.features - at >= L::count; at += L::count) block<1>(q, i, at);
                if (at < q.features) rest(q, i, at);
            }
        }
    };
};

// body(first row, last row) over parts of all rows with about as many edges each, on all threads. A row is one
// thread's.
template <class P, class Body>
void by_edges(const P* rowptr, int64_t rows, int64_t features, const Body& body) {
    const int64_t work = int64_t(rowptr[rows]) + rows, unit = grain / (features + 1) + 1;
    parallel(0, (work + unit - 1) / unit, 1, [&](int64_t begin, int64_t end) {
        // Row i begins at rowptr[i] + i of the work, which rises with i.
        const auto first = [&](int64_t at) {
            int64_t low = 0, high = rows;
            while (low < high) {
                const int64_t middle = (low + high) / 2;
                if (int64_t(rowptr[middle]) + middle < at)
                    low = middle + 1;
                else
                    high = middle;
            }
            return low;
        };
        const int64_t from = first(begin * unit), to = first(end * unit);
        if (from < to) body(from, to);
    });
}

}  // namespace graphs
