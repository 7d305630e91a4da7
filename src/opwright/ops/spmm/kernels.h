// The kernels of every device, over its walk.
#pragma once

#include "turned.h"

namespace graphs {

static Tensor spmm_of(const Tensor& x, const Tensor& rowptr, const Tensor& col, const std::optional<Tensor>& weight,
                      const std::optional<Tensor>& bias, const Index& edge, const Index& t_rowptr, const Index& t_col,
                      const Index& t_edge, const Index& split, const Index& t_split, const Index& bins, const Index&,
                      int64_t piece, const std::string& reduce, bool relu) {
    refuse_parts("spmm", x.size(0), t_rowptr, t_col, t_edge, piece);
    Walk w;
    w.weight = weight, w.bias = bias, w.mean = reduce == "mean", w.relu = relu, w.piece = piece;
    return walk(taken("spmm", rowptr, col, edge, {split, bins, t_split, piece}, x.size(0)), x, w);
}

// x and the weights get their gradients in one walk over the edges by column, which reads each row of grad once an
// edge.
static std::tuple<Tensor, Tensor, Tensor> spmm_backward_of(
    const Tensor& given_grad, const Index& result, const Tensor& x, const Tensor& rowptr, const Tensor& col,
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, const Index& edge, const Index& t_rowptr,
    const Index& t_col, const Index& t_edge, const Index& split, const Index& t_split, const Index&,
    const Index& t_bins, int64_t piece, const std::string& reduce, bool relu, const Wanted& wanted) {
    refuse_rows("spmm_backward", "grad", given_grad, rowptr);
    if (given(result)) refuse_rows("spmm_backward", "result", *result, rowptr);
    const Tensor grad = relu && given(result) ? let_through(given_grad, *result) : given_grad;
    const bool sums = wants(wanted, 0), dots = given(weight) && wants(wanted, 1);
    Tensor grad_x, grad_weight, grad_bias;
    if (given(bias) && wants(wanted, 2)) grad_bias = bias_gradient(grad, *bias);
    if (!sums && !dots) return {grad_x, grad_weight, grad_bias};
    Walk w;
    w.weight = weight, w.sums = sums, w.piece = piece;
    if (reduce == "mean") {
        refuse_offsets("spmm_backward", "rowptr", rowptr, col.size(0));
        w.degrees = rowptr;
    }
    if (dots) w.own = x, w.dots = dots_for(col, x);
    grad_x = walk(
        turned("spmm_backward", rowptr, col, edge, t_rowptr, t_col, t_edge, {t_split, t_bins, split, piece}, x.size(0)),
        grad, w);
    if (dots) grad_weight = as(*w.dots, dtype(*weight));
    return {grad_x, grad_weight, grad_bias};
}

static Tensor sddmm_of(const Tensor& a, const Tensor& b, const Tensor& rowptr, const Tensor& col, const Index& edge,
                       const Index& t_rowptr, const Index& t_col, const Index& t_edge, const Index& split, const Index&,
                       const Index& bins, const Index&, int64_t piece) {
    refuse_parts("sddmm", b.size(0), t_rowptr, t_col, t_edge, piece);
    refuse_rows("sddmm", "a", a, rowptr);
    Walk w;
    w.sums = false, w.own = a, w.dots = dots_for(col, a), w.piece = piece;
    walk(taken("sddmm", rowptr, col, edge, {split, bins}, b.size(0)), b, w);
    return as(*w.dots, dtype(a));
}

static std::tuple<Tensor, Tensor> sddmm_backward_of(const Tensor& grad, const Tensor& a, const Tensor& b,
                                                    const Tensor& rowptr, const Tensor& col, const Index& edge,
                                                    const Index& t_rowptr, const Index& t_col, const Index& t_edge,
                                                    const Index& split, const Index& t_split, const Index& bins,
                                                    const Index& t_bins, int64_t piece, const Wanted& wanted) {
    constexpr const char* op = "sddmm_backward";
    refuse_rows(op, "a", a, rowptr);
    Walk w;
    w.weight = grad, w.piece = piece;
    return {wants(wanted, 0) ? walk(taken(op, rowptr, col, edge, {split, bins, t_split, piece}, b.size(0)), b, w)
                             : Tensor(),
            wants(wanted, 1) ? walk(turned(op, rowptr, col, edge, t_rowptr, t_col, t_edge,
                                           {t_split, t_bins, split, piece}, b.size(0)),
                                    a, w)
                             : Tensor()};
}

}  // namespace graphs
