// The kernels of every device, over its extremes.
#pragma once

#include "../spmm/turned.h"

namespace graphs {

static Tensor spmm_max_of(const Tensor& x, const Tensor& rowptr, const Tensor& col, const std::optional<Tensor>& weight,
                          const Index& edge, const Index& t_rowptr, const Index& t_col, const Index& t_edge,
                          const Index& split, const Index&, const Index& bins, const Index&, int64_t piece,
                          const std::string& reduce) {
    refuse_parts("spmm_max", x.size(0), t_rowptr, t_col, t_edge, piece);
    return extremes(taken("spmm_max", rowptr, col, edge, {split, bins}, x.size(0)), x, weight, reduce == "min", piece);
}

static std::tuple<Tensor, Tensor> spmm_max_backward_of(const Tensor& grad, const Tensor& x, const Tensor& rowptr,
                                                       const Tensor& col, const std::optional<Tensor>& weight,
                                                       const Index& edge, const Index& t_rowptr, const Index& t_col,
                                                       const Index& t_edge, const Index& split, const Index& t_split,
                                                       const Index& bins, const Index& t_bins, int64_t piece,
                                                       const std::string& reduce, const Wanted& wanted) {
    constexpr const char* op = "spmm_max_backward";
    const bool dots = given(weight) && wants(wanted, 1);
    if (!wants(wanted, 0) && !dots) return {};
    refuse_rows(op, "grad", grad, rowptr);
    const Pattern p = taken(op, rowptr, col, edge, {split, bins}, x.size(0));
    const Pattern t = turned(op, rowptr, col, edge, t_rowptr, t_col, t_edge, {t_split, t_bins}, x.size(0));
    auto [grad_x, grad_weight] =
        extremes_backward(p, t, grad, x, weight, reduce == "min", wants(wanted, 0), dots, piece);
    return {grad_x, dots ? as(grad_weight, dtype(*weight)) : Tensor()};
}

}  // namespace graphs
