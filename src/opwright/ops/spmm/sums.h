// Sums over neighbours, and the products of neighbours' features, on the CPU.
#pragma once

#include "rows.h"

namespace graphs {

// out[row] = Σ weight · x[col] over the edges of each row, in one walk with the dots.
inline Tensor walk(const Pattern& p, const Tensor& features, const Walk& w) {
    const Tensor x = matrix(features);
    const int64_t f = x.size(1);
    Tensor out = w.sums ? empty({p.rows, f}, dtype(x)) : Tensor();
    if (f == 0) return out;
    dispatch(floating, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        using C = Compute<T>;
        const Tensor weight = given(w.weight) ? numbers<C>(*w.weight) : Tensor();
        const Tensor bias = given(w.bias) ? numbers<C>(*w.bias) : Tensor();
        const Tensor own = given(w.own) ? matrix(*w.own) : Tensor();
        dispatch(Types<int32_t, int64_t>(), dtype(p.rowptr), [&](auto offset) {
            using P = decltype(offset);
            const Index degrees = laid(w.degrees, dtype_of<P>);
            const Job<T, P> job = {
                data<const P>(p.rowptr),
                p.edge ? data<const P>(*p.edge) : nullptr,
                degrees ? data<const P>(*degrees) : nullptr,
                data<const int32_t>(p.col),
                data<const T>(x),
                x.size(0) > 1 ? x.stride(0) : f,
                f,
                weight.defined() ? data<const C>(weight) : nullptr,
                w.mean,
                w.relu,
                bias.defined() ? data<const C>(bias) : nullptr,
                w.sums ? data<T>(out) : nullptr,
                own.defined() ? data<const T>(own) : nullptr,
                own.defined() && own.size(0) > 1 ? own.stride(0) : f,
                w.dots ? data<C>(*w.dots) : nullptr,
            };
            const auto loop =
                w.dots ? ow_inner::widest<Sums<T, P, true>::template Loop, const Job<T, P>*, int64_t, int64_t>()
                       : ow_inner::widest<Sums<T, P, false>::template Loop, const Job<T, P>*, int64_t, int64_t>();
            by_edges(job.rowptr, p.rows, f, [&](int64_t begin, int64_t end) { loop(&job, begin, end); });
        });
    });
    return out;
}

// The gradient of what was above 0, or NaN; elsewhere 0.
inline Tensor let_through(const Tensor& grad, const Tensor& result) {
    const Tensor from = aten::contiguous(grad), by = aten::contiguous(result);
    const Tensor out = empty({grad.size(0), grad.size(1)}, dtype(grad));
    dispatch(floating, dtype(grad), [&](auto zero) {
        using T = decltype(zero);
        const T *g = data<const T>(from), *r = data<const T>(by);
        T* const to = data<T>(out);
        parallel(0, out.numel(), grain, [&](int64_t begin, int64_t end) {
            OPWRIGHT_INDEPENDENT
            for (int64_t i = begin; i < end; ++i) to[i] = static_cast<Compute<T>>(r[i]) <= 0 ? T(0) : g[i];
        });
    });
    return out;
}

// Indices are looked at before a loop trusts them; the schedule is for a GPU.
inline Pattern taken(const char* op, const Tensor& rowptr, const Tensor& col, const Index& edge, const Schedule&,
                     int64_t columns, bool transposed = false) {
    const char* const names[2][3] = {{"rowptr", "col", "edge"}, {"t_rowptr", "t_col", "t_edge"}};
    const char* const* const name = names[transposed];
    check(rowptr.dim() == 1 && rowptr.size(0) > 0 && col.dim() == 1, op, ": rowptr and col must be vectors, got ",
          shape(rowptr), " and ", shape(col));
    refuse_offsets(op, name[0], rowptr, col.size(0));
    refuse_values(op, name[1], col, columns);
    if (given(edge)) refuse_values(op, name[2], *edge, col.size(0));
    return pattern(op, rowptr, col, edge, {}, columns);
}

// The transposed form of a pattern: its edges by column.
inline Pattern transposed(const Pattern& p) {
    const DType type = dtype(p.rowptr);
    Tensor rowptr = empty({p.columns + 1}, type), col = empty({p.edges}, DType::Int), edge = empty({p.edges}, type);
    dispatch(Types<int32_t, int64_t>(), type, [&](auto zero) {
        using P = decltype(zero);
        P* const start = data<P>(rowptr);
        const P* const from = data<const P>(p.rowptr);
        const int32_t* const at = data<const int32_t>(p.col);
        std::fill_n(start, p.columns + 1, P(0));
        for (int64_t k = 0; k < p.edges; ++k) ++start[at[k] + 1];
        for (int64_t j = 0; j < p.columns; ++j) start[j + 1] += start[j];
        std::vector<P> next(start, start + p.columns);
        for (int64_t i = 0; i < p.rows; ++i) {
            for (P k = from[i]; k < from[i + 1]; ++k) {
                const P to = next[static_cast<size_t>(at[k])]++;
                data<int32_t>(col)[to] = static_cast<int32_t>(i);
                data<P>(edge)[to] = p.edge ? data<const P>(*p.edge)[k] : k;
            }
        }
    });
    return {rowptr, col, edge, {}, {}, p.columns, p.rows, p.edges};
}

}  // namespace graphs
