// The greatest and the least of neighbours, on the CPU.
#pragma once

#include <limits>

#include "../spmm/sums.h"

namespace graphs {

template <class T, class P>
struct Extreme {
    using C = Compute<T>;
    static constexpr int64_t width = 64;  // features at a time
    const P *rowptr, *edge;
    const int32_t* col;
    const T* x;
    int64_t x_stride, features;
    const C* weight;
    bool least;

    C factor(P k) const { return weight ? weight[edge ? edge[k] : k] : C(1); }

    // The extremes of row i and how many edges have each, for n features from `at` on.
    template <bool minimum>
    OPWRIGHT_INLINE void find(int64_t i, int64_t at, int64_t n, C* best, C* among) const {
        const C none = minimum ? std::numeric_limits<C>::infinity() : -std::numeric_limits<C>::infinity();
        std::fill_n(best, n, rowptr[i] < rowptr[i + 1] ? none : C(0)), std::fill_n(among, n, C(0));
        for (P k = rowptr[i]; k < rowptr[i + 1]; ++k) {
            const T* row = x + col[k] * x_stride + at;
            const C w = factor(k);
            OPWRIGHT_INDEPENDENT
            for (int64_t f = 0; f < n; ++f) {
                const C v = w * static_cast<C>(row[f]), b = best[f];
                const bool better = (minimum ? v < b : v > b) | (v != v);
                among[f] = better ? C(1) : among[f] + (v == b ? C(1) : C(0));
                best[f] = better ? v : b;
            }
        }
    }
};

template <class T, class P>
struct Found {  // out, or best and share of the gradient
    T* out;
    Compute<T>*best, *share;
    const T* grad;
    int64_t grad_stride;
};

template <class T, class P>
struct FindRows {
    static OPWRIGHT_INLINE void run(const Extreme<T, P>* q, const Found<T, P>* to, int64_t begin, int64_t end) {
        using C = Compute<T>;
        constexpr int64_t width = Extreme<T, P>::width;
        C best[width], among[width];
        for (int64_t i = begin; i < end; ++i) {
            for (int64_t at = 0; at < q->features; at += width) {
                const int64_t n = std::min(width, q->features - at), place = i * q->features + at;
                if (q->least)
                    q->template find<true>(i, at, n, best, among);
                else
                    q->template find<false>(i, at, n, best, among);
                for (int64_t f = 0; f < n; ++f) {
                    if (to->out) {
                        to->out[place + f] = static_cast<T>(best[f]);
                        continue;
                    }
                    to->best[place + f] = best[f];
                    const C g = static_cast<C>(to->grad[i * to->grad_stride + at + f]);
                    to->share[place + f] = g / (among[f] > C(1) ? among[f] : C(1));
                }
            }
        }
    }
};

// The gradients of column j and of its edges: the pattern is the transposed one, its columns are rows of best and
// share.
template <class T, class P>
struct ShareRows {
    static OPWRIGHT_INLINE void run(const Extreme<T, P>* q, const Found<T, P>* by, T* grad_x, Compute<T>* dots,
                                    int64_t begin, int64_t end) {
        using C = Compute<T>;
        constexpr int64_t width = Extreme<T, P>::width;
        C sums[width];
        for (int64_t j = begin; j < end; ++j) {
            for (int64_t at = 0; at < q->features; at += width) {
                const int64_t n = std::min(width, q->features - at);
                std::fill_n(sums, n, C(0));
                const T* own = q->x + j * q->x_stride + at;
                for (P k = q->rowptr[j]; k < q->rowptr[j + 1]; ++k) {
                    const int64_t place = q->col[k] * q->features + at;
                    const C w = q->factor(k);
                    C dot = 0;
                    for (int64_t f = 0; f < n; ++f) {
                        const C v = static_cast<C>(own[f]), g = by->share[place + f];
                        const bool hit = w * v == by->best[place + f];
                        sums[f] += hit ? w * g : C(0), dot += hit ? v * g : C(0);
                    }
                    if (dots) dots[q->edge ? q->edge[k] : k] += dot;
                }
                if (grad_x) {
                    for (int64_t f = 0; f < n; ++f) grad_x[j * q->features + at + f] = static_cast<T>(sums[f]);
                }
            }
        }
    }
};

template <class T, class P>
Extreme<T, P> extreme(const Pattern& p, const Tensor& x, const Tensor& weight, bool least) {
    using C = Compute<T>;
    return {data<const P>(p.rowptr),
            p.edge ? data<const P>(*p.edge) : nullptr,
            data<const int32_t>(p.col),
            data<const T>(x),
            x.size(0) > 1 ? x.stride(0) : x.size(1),
            x.size(1),
            weight.defined() ? data<const C>(weight) : nullptr,
            least};
}

// body(zero of T, zero of P, weights in the type to compute in), for the types of a call.
template <class Body>
void with_types(const Pattern& p, const Tensor& x, const std::optional<Tensor>& weight, const Body& body) {
    dispatch(floating, dtype(x), [&](auto zero) {
        using C = Compute<decltype(zero)>;
        const Tensor numbered = given(weight) ? numbers<C>(*weight) : Tensor();
        dispatch(Types<int32_t, int64_t>(), dtype(p.rowptr), [&](auto offset) { body(zero, offset, numbered); });
    });
}

inline Tensor extremes(const Pattern& p, const Tensor& features, const std::optional<Tensor>& weight, bool least,
                       int64_t) {
    const Tensor x = matrix(features);
    const Tensor out = empty({p.rows, x.size(1)}, dtype(x));
    with_types(p, x, weight, [&](auto zero, auto offset, const Tensor& numbered) {
        using T = decltype(zero);
        using P = decltype(offset);
        const auto q = extreme<T, P>(p, x, numbered, least);
        const Found<T, P> found = {data<T>(out), nullptr, nullptr, nullptr, 0};
        const auto loop = ow_inner::best<FindRows<T, P>, const Extreme<T, P>*, const Found<T, P>*, int64_t, int64_t>();
        by_edges(q.rowptr, p.rows, q.features, [&](int64_t b, int64_t e) { loop(&q, &found, b, e); });
    });
    return out;
}

inline std::tuple<Tensor, Tensor> extremes_backward(const Pattern& p, const Pattern& t, const Tensor& given_grad,
                                                    const Tensor& features, const std::optional<Tensor>& weight,
                                                    bool least, bool sums, bool dots, int64_t) {
    const Tensor x = matrix(features), grad = matrix(given_grad);
    const int64_t f = x.size(1);
    const Tensor best = empty({p.rows, f}, computed(x)), share = empty({p.rows, f}, computed(x));
    const Tensor grad_x = sums ? empty({p.columns, f}, dtype(x)) : Tensor();
    const Tensor grad_weight = dots ? dots_for(p.col, x) : Tensor();
    with_types(p, x, weight, [&](auto zero, auto offset, const Tensor& numbered) {
        using T = decltype(zero);
        using P = decltype(offset);
        using C = Compute<T>;
        const auto q = extreme<T, P>(p, x, numbered, least), back = extreme<T, P>(t, x, numbered, least);
        const Found<T, P> found = {nullptr, data<C>(best), data<C>(share), data<const T>(grad),
                                   grad.size(0) > 1 ? grad.stride(0) : f};
        const auto find = ow_inner::best<FindRows<T, P>, const Extreme<T, P>*, const Found<T, P>*, int64_t, int64_t>();
        by_edges(q.rowptr, p.rows, f, [&](int64_t b, int64_t e) { find(&q, &found, b, e); });
        const auto loop =
            ow_inner::best<ShareRows<T, P>, const Extreme<T, P>*, const Found<T, P>*, T*, C*, int64_t, int64_t>();
        T* const to = sums ? data<T>(grad_x) : nullptr;
        C* const each = dots ? data<C>(grad_weight) : nullptr;
        by_edges(back.rowptr, t.rows, f, [&](int64_t b, int64_t e) { loop(&back, &found, to, each, b, e); });
    });
    return {grad_x, grad_weight};
}

}  // namespace graphs
