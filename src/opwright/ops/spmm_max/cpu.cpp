#include "extremes.h"
//
#include "kernels.h"

using namespace graphs;

OPWRIGHT_KERNEL(spmm_max, CPU, spmm_max_of);
OPWRIGHT_KERNEL(spmm_max_backward, CPU, spmm_max_backward_of);
