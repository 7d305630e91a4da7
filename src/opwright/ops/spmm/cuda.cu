#include "sums.cuh"
#include "transposed.cuh"
//
#include "kernels.h"

using namespace graphs;

OPWRIGHT_KERNEL(spmm, CUDA, spmm_of);
OPWRIGHT_KERNEL(spmm_backward, CUDA, spmm_backward_of);
OPWRIGHT_KERNEL(sddmm, CUDA, sddmm_of);
OPWRIGHT_KERNEL(sddmm_backward, CUDA, sddmm_backward_of);
