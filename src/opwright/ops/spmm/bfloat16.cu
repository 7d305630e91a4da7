#include "sums.cuh"

void graphs::walk_bfloat16(const Pattern& p, const Tensor& x, const Walk& w, const Tensor& out) {
    walk_as<BFloat16>(p, x, w, out);
}
