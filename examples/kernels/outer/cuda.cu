#include <opwright/kernel.h>

template <class T, class I>
__global__ void products(Packed<const T, 1, I> x, Packed<const T, 1, I> y, Packed<T, 2, I> out) {
    using C = Compute<T>;  // float for half and bfloat16
    const I column = static_cast<I>(blockIdx.x) * 32 + threadIdx.x;
    // blockIdx.y goes to 65535 only, so a thread may have several rows.
    for (I row = static_cast<I>(blockIdx.y) * 8 + threadIdx.y; row < out.size(0); row += I(gridDim.y) * 8) {
        if (column < out.size(1)) out(row, column) = static_cast<T>(C(x(row)) * C(y(column)));
    }
}

Tensor outer_cuda(const Tensor& x, const Tensor& y) {
    Layout matrix;
    matrix.dim = 2, matrix.size[0] = x.size(0), matrix.size[1] = y.size(0);
    matrix.make_contiguous();
    Tensor out = empty(matrix, dtype(x));
    if (out.numel() == 0) return out;  // a launch of no blocks is an error
    dispatch(floating, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        with_index(
            [&](auto index) {
                using I = decltype(index);
                const dim3 blocks(ceil_div(y.size(0), 32), std::min<int64_t>(ceil_div(x.size(0), 8), 65535));
                products<T, I><<<blocks, dim3(32, 8), 0, stream()>>>(packed<const T, 1, I>(x), packed<const T, 1, I>(y),
                                                                     packed<T, 2, I>(out));
                launched();
            },
            x, y, out);
    });
    return out;
}

OPWRIGHT_KERNEL(outer, CUDA, outer_cuda);
