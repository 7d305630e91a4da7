#include <opwright/kernel.h>

// A block of threads for each row. T is what tensors hold, C what is computed in.
template <class T, class C>
__global__ void forward(const T* x, T* out, int64_t rows, int64_t n, C eps) {
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* from = x + row * n;
        C squares = 0;
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) squares += C(from[i]) * C(from[i]);
        const C r = C(1) / sqrt(block_sum(squares) / C(n) + eps);
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) out[row * n + i] = T(C(from[i]) * r);
    }
}

template <class T, class C>
__global__ void backward(const T* grad, const T* x, T* out, int64_t rows, int64_t n, C eps) {
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *g = grad + row * n, *v = x + row * n;
        C squares = 0, both = 0;
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            squares += C(v[i]) * C(v[i]);
            both += C(g[i]) * C(v[i]);
        }
        const C r = C(1) / sqrt(block_sum(squares) / C(n) + eps), along = r * r * (block_sum(both) / C(n));
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) out[row * n + i] = T((C(g[i]) - C(v[i]) * along) * r);
    }
}

struct Shape {
    int64_t rows, n;
    Grid grid;
    explicit Shape(const Tensor& x) : n(x.size(x.dim() - 1)) {
        rows = n ? x.numel() / n : 0;
        grid = {std::min<int64_t>(rows, 1 << 20), n <= 256 ? 64 : 256};
    }
};

Tensor ${name}_cuda(const Tensor& x, double eps) {
    Tensor out = empty(x, dtype(x));
    const Shape s(x);
    dispatch(floating, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        using C = Compute<T>;
        launch(forward<T, C>, s.grid, data<const T>(x), data<T>(out), s.rows, s.n, C(eps));
    });
    return out;
}

// The gradient takes what its formula in op.py takes. What memory safety needs is checked: anybody may call it.
Tensor ${name}_backward_cuda(const Tensor& grad, const Tensor& x, double eps, const Wanted&) {
    check(Layout(grad).same_shape(x), "${name}_backward: grad must have shape ", shape(x), ", got ", shape(grad));
    Tensor out = empty(x, dtype(x));
    const Shape s(x);
    dispatch(floating, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        using C = Compute<T>;
        launch(backward<T, C>, s.grid, data<const T>(grad), data<const T>(x), data<T>(out), s.rows, s.n, C(eps));
    });
    return out;
}

OPWRIGHT_KERNEL($name, CUDA, ${name}_cuda);
OPWRIGHT_KERNEL(${name}_backward, CUDA, ${name}_backward_cuda);
