#include "sums.cuh"

void graphs::walk_double(const Pattern& p, const Tensor& x, const Walk& w, const Tensor& out) {
    walk_as<double>(p, x, w, out);
}
