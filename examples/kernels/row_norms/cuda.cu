#include <opwright/kernel.h>

#include "square.cuh"

__global__ void norms(Packed<const float, 2> x, float* out) {
    for (int64_t row = blockIdx.x; row < x.size(0); row += gridDim.x) {
        float sum = 0;
        for (int64_t column = threadIdx.x; column < x.size(1); column += blockDim.x) sum += square(x(row, column));
        sum = block_sum(sum);
        if (threadIdx.x == 0) out[row] = sqrtf(sum);
    }
}

Tensor row_norms_cuda(const Tensor& x) {
    Layout column;
    column.dim = 1, column.size[0] = x.size(0), column.stride[0] = 1;
    Tensor out = empty(column, dtype(x));
    launch(norms, {std::min<int64_t>(x.size(0), 1 << 20), 256}, packed<const float, 2>(x), data<float>(out));
    return out;
}

OPWRIGHT_KERNEL(row_norms, CUDA, row_norms_cuda);
