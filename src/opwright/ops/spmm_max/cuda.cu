#include "extremes.cuh"
//
#include "kernels.h"

using namespace graphs;

OPWRIGHT_KERNEL(spmm_max, CUDA, spmm_max_of);
OPWRIGHT_KERNEL(spmm_max_backward, CUDA, spmm_max_backward_of);
