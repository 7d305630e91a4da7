#include "sums.h"
//
#include "kernels.h"

using namespace graphs;

OPWRIGHT_KERNEL(spmm, CPU, spmm_of);
OPWRIGHT_KERNEL(spmm_backward, CPU, spmm_backward_of);
OPWRIGHT_KERNEL(sddmm, CPU, sddmm_of);
OPWRIGHT_KERNEL(sddmm_backward, CPU, sddmm_backward_of);
