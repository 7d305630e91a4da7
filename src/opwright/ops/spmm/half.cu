#include "sums.cuh"

void graphs::walk_half(const Pattern& p, const Tensor& x, const Walk& w, const Tensor& out) {
    walk_as<Half>(p, x, w, out);
}
