#include "sums.cuh"

void graphs::walk_float(const Pattern& p, const Tensor& x, const Walk& w, const Tensor& out) {
    walk_as<float>(p, x, w, out);
}
