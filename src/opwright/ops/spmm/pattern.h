// Compressed rows as kernels take them, on every device.
#pragma once

#include <opwright/aten.h>

namespace graphs {

using Index = std::optional<Tensor>;

// What balances the load on a GPU: the long rows in pieces, and the other rows in bins of about as much work.
struct Schedule {
    Index split, bins;
    Index other;  // the pieces of the transposed form: how many edges come from columns that have many
    int64_t piece = 0;
};

// The edges of row i are those from rowptr[i] to rowptr[i + 1]. Edge k comes from column col[k], and weight[edge[k]] is
// its weight. rowptr, edge and split have one type, int32 where it reaches; col and bins have int32.
struct Pattern {
    Tensor rowptr, col;
    Index edge, split, bins;
    int64_t rows, columns, edges;
    int64_t hot = 0;  // edges from columns that have many, about

    bool is_long() const { return dtype(rowptr) == DType::Long; }
};

// A vector of int64 as int32, by the device's own means.
inline Tensor narrowed(const Tensor& index);

// A vector of indices with its elements side by side, in the type that is asked for.
inline Index laid(const Index& index, DType type) {
    if (!given(index) || dtype(*index) == type) return given(index) ? Index(aten::contiguous(*index)) : Index();
    return type == DType::Int ? narrowed(aten::contiguous(*index)) : aten::contiguous(aten::to(*index, type));
}

inline Pattern pattern(const char* op, const Tensor& rowptr, const Tensor& col, const Index& edge, const Schedule& s,
                       int64_t columns) {
    check(rowptr.dim() == 1 && rowptr.size(0) > 0 && col.dim() == 1, op, ": rowptr and col must be vectors, got ",
          shape(rowptr), " and ", shape(col));
    check(columns < INT32_MAX && rowptr.size(0) < INT32_MAX, op, ": a graph has at most 2147483646 nodes a side, got ",
          columns);
    check(!given(edge) || edge->numel() == col.size(0), op, ": edge must have the ", col.size(0), " entries of col");
    const int64_t edges = col.size(0);
    // Offsets of 64 bits with so few edges come from who never thought of it.
    const DType type = edges >= INT32_MAX - 4096 ? DType::Long : DType::Int;
    const int64_t hot = given(s.other) ? s.other->size(0) * s.piece : 0;
    return {*laid(rowptr, type),
            *laid(col, DType::Int),
            laid(edge, type),
            laid(s.split, type),
            laid(s.bins, DType::Int),
            rowptr.size(0) - 1,
            columns,
            edges,
            hot};
}

// The transposed form is given as a whole or not at all; a piece is no longer than any row.
inline void refuse_parts(const char* op, int64_t columns, const Index& rowptr, const Index& col, const Index& edge,
                         int64_t piece) {
    check(piece >= 0 && piece <= INT32_MAX, op, ": piece must lie in [0, 2147483648), got ", piece);
    check(given(rowptr) == given(col) && given(col) == given(edge), op,
          ": t_rowptr, t_col and t_edge must be given together");
    check(!given(rowptr) || rowptr->size(0) == columns + 1, op, ": t_rowptr must have ", columns + 1, " entries");
}

// Weights, and the sums of their gradients, in the type to compute in.
template <class C>
Tensor numbers(const Tensor& x) {
    return aten::contiguous(dtype(x) == dtype_of<C> ? x : aten::to(x, dtype_of<C>));
}

// The sums of a gradient's columns, of which PyTorch adds up half and bfloat16 in float32.
inline Tensor bias_gradient(const Tensor& grad, const Tensor& bias) {
    return call("aten::sum", "dim_IntList", grad, std::optional(std::vector<int64_t>{0}), false,
                std::optional(dtype(bias)));
}

// A matrix whose rows have their elements side by side; the rows may be apart.
inline Tensor matrix(const Tensor& x) { return x.size(1) < 2 || x.stride(1) == 1 ? x : aten::contiguous(x); }

// What is wanted of one walk over a pattern: out[row] = Σ weight · x[col], with the dots in the same walk.
struct Walk {
    std::optional<Tensor> weight, bias;
    bool mean = false;  // of the rows of this pattern
    bool relu = false;
    std::optional<Tensor> degrees;    // offsets of the rows that the columns stand for, whose mean was taken
    std::optional<Tensor> own, dots;  // dots[edge] = x[col] · own[row], in the type to compute in
    bool sums = true;
    int64_t piece = 0;  // how many edges a piece of the pattern's schedule has
};

inline DType computed(const Tensor& x) { return dtype(x) == DType::Double ? DType::Double : DType::Float; }

inline Tensor as(const Tensor& x, DType type) { return dtype(x) == type ? x : aten::to(x, type); }

// Zeros for dots: an edge that is left out has none.
inline Tensor dots_for(const Tensor& col, const Tensor& x) {
    Tensor dots = empty({col.size(0)}, computed(x));
    aten::zero_(dots);
    return dots;
}

}  // namespace graphs
