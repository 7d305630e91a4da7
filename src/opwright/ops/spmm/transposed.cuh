// The transposed form of a pattern that came without it.
#pragma once

#include "pattern.h"

namespace graphs {

// The first of n sorted numbers that is not below `value`.
template <class I>
__device__ int64_t first_of(const I* sorted, int64_t n, int64_t value) {
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (static_cast<int64_t>(sorted[middle]) < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

template <class P>
struct Starts {
    const int32_t* sorted;
    int64_t edges;
    P* to;
    __device__ void operator()(int64_t j) const { to[j] = static_cast<P>(first_of(sorted, edges, j)); }
};

template <class P>
struct Places {
    const P *rowptr, *edge;
    const int64_t* order;
    int64_t rows;
    int32_t* row;
    P* to;
    __device__ void operator()(int64_t k) const {
        const int64_t at = order[k];
        row[k] = static_cast<int32_t>(first_of(rowptr, rows + 1, at + 1) - 1);
        to[k] = edge ? edge[at] : static_cast<P>(at);
    }
};

inline Pattern transposed(const Pattern& p) {
    const auto [sorted, order] =
        call<std::tuple<Tensor, Tensor>>("aten::sort", "stable", p.col, std::optional<bool>(true), int64_t(0), false);
    const DType type = dtype(p.rowptr);
    const Tensor rowptr = empty({p.columns + 1}, type), col = empty({p.edges}, DType::Int),
                 edge = empty({p.edges}, type);
    const int32_t* const columns = data<const int32_t>(sorted);
    const int64_t* const from = data<const int64_t>(order);
    dispatch(Types<int32_t, int64_t>(), type, [&](auto zero) {
        using P = decltype(zero);
        for_each(p.columns + 1, Starts<P>{columns, p.edges, data<P>(rowptr)});
        for_each(p.edges, Places<P>{data<const P>(p.rowptr), given(p.edge) ? data<const P>(*p.edge) : nullptr, from,
                                    p.rows, data<int32_t>(col), data<P>(edge)});
    });
    return {rowptr, col, edge, {}, {}, p.columns, p.rows, p.edges};
}

}  // namespace graphs
