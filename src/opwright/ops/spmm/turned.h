// What kernels of every device ask of a graph. `taken` and `transposed` are the device's own.
#pragma once

#include "pattern.h"

namespace graphs {

// The transposed form, as it was given or made.
static Pattern turned(const char* op, const Tensor& rowptr, const Tensor& col, const Index& edge, const Index& t_rowptr,
                      const Index& t_col, const Index& t_edge, const Schedule& t_schedule, int64_t columns) {
    refuse_parts(op, columns, t_rowptr, t_col, t_edge, 0);
    if (!given(t_rowptr)) return transposed(taken(op, rowptr, col, edge, {}, columns));
    return taken(op, *t_rowptr, *t_col, t_edge, t_schedule, rowptr.size(0) - 1, true);
}

static void refuse_rows(const char* op, const char* name, const Tensor& x, const Tensor& rowptr) {
    check(rowptr.dim() == 1 && x.size(0) + 1 == rowptr.size(0), op, ": ", name, " must have the ", rowptr.size(0) - 1,
          " rows of rowptr, got ", shape(x));
}

}  // namespace graphs
