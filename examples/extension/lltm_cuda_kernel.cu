// What is elementwise in the cell, a thread an element, on packed accessors.
#include <cuda.h>
#include <cuda_runtime.h>
#include <torch/extension.h>

#include <vector>

namespace {

template <class T>
__device__ __forceinline__ T sigmoid(T z) {
    return T(1) / (T(1) + exp(-z));
}

template <class T>
__device__ __forceinline__ T elu(T z) {
    return z > T(0) ? z : expm1(z);  // exp(z) - 1 would lose what is small
}

template <class T>
using Matrix = torch::PackedTensorAccessor32<T, 2, torch::RestrictPtrTraits>;
template <class T>
using Gates = torch::PackedTensorAccessor32<T, 3, torch::RestrictPtrTraits>;

template <class T>
__global__ void forward_kernel(const Gates<T> gates, const Matrix<T> c, Matrix<T> new_h, Matrix<T> new_c, Matrix<T> i,
                               Matrix<T> o, Matrix<T> g) {
    const int n = blockIdx.y;
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= gates.size(2)) return;
    i[n][k] = sigmoid(gates[n][0][k]);
    o[n][k] = sigmoid(gates[n][1][k]);
    g[n][k] = elu(gates[n][2][k]);
    new_c[n][k] = c[n][k] + g[n][k] * i[n][k];
    new_h[n][k] = tanh(new_c[n][k]) * o[n][k];
}

template <class T>
__global__ void backward_kernel(Matrix<T> grad_old_c, Gates<T> grad_gates, const Matrix<T> grad_h,
                                const Matrix<T> grad_c, const Matrix<T> new_c, const Matrix<T> i, const Matrix<T> o,
                                const Matrix<T> g, const Gates<T> gates) {
    const int n = blockIdx.y;
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= grad_gates.size(2)) return;
    const T t = tanh(new_c[n][k]);
    const T d_c = grad_h[n][k] * o[n][k] * (T(1) - t * t) + grad_c[n][k];
    const T z = gates[n][2][k];
    grad_old_c[n][k] = d_c;
    grad_gates[n][0][k] = d_c * g[n][k] * i[n][k] * (T(1) - i[n][k]);
    grad_gates[n][1][k] = grad_h[n][k] * t * o[n][k] * (T(1) - o[n][k]);
    grad_gates[n][2][k] = d_c * i[n][k] * (z > T(0) ? T(1) : exp(z));
}

constexpr int THREADS = 256;

dim3 blocks(int64_t batch, int64_t hidden) { return dim3((hidden + THREADS - 1) / THREADS, batch); }

}  // namespace

std::vector<torch::Tensor> lltm_cuda_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, torch::Tensor h,
                                             torch::Tensor c) {
    auto joined = torch::cat({h, x}, 1);
    const auto batch = c.size(0), hidden = c.size(1);
    auto gates = torch::addmm(bias, joined, weight.t()).reshape({batch, 3, hidden});
    auto new_h = torch::zeros_like(c), new_c = torch::zeros_like(c);
    auto i = torch::zeros_like(c), o = torch::zeros_like(c), g = torch::zeros_like(c);
    // A grid of no blocks is an error, which whoever launches next is told.
    if (c.numel() > 0)
        AT_DISPATCH_FLOATING_TYPES(gates.scalar_type(), "lltm_forward", ([&] {
                                       forward_kernel<scalar_t><<<blocks(batch, hidden), THREADS>>>(
                                           gates.packed_accessor32<scalar_t, 3, torch::RestrictPtrTraits>(),
                                           c.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
                                           new_h.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
                                           new_c.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
                                           i.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
                                           o.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
                                           g.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>());
                                   }));
    return {new_h, new_c, i, o, g, joined, gates};
}

std::vector<torch::Tensor> lltm_cuda_backward(torch::Tensor grad_h, torch::Tensor grad_c, torch::Tensor new_c,
                                              torch::Tensor i, torch::Tensor o, torch::Tensor g, torch::Tensor joined,
                                              torch::Tensor gates, torch::Tensor weight) {
    auto grad_old_c = torch::zeros_like(new_c);
    auto grad_gates = torch::zeros_like(gates);
    const auto batch = new_c.size(0), hidden = new_c.size(1);
    if (new_c.numel() > 0)
        AT_DISPATCH_FLOATING_TYPES(joined.scalar_type(), "lltm_backward", ([&] {
                                       backward_kernel<scalar_t><<<blocks(batch, hidden), THREADS>>>(
                                           grad_old_c.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
                                           grad_gates.packed_accessor32<scalar_t, 3, torch::RestrictPtrTraits>(),
                                           grad_h.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
                                           grad_c.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
                                           new_c.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
                                           i.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
                                           o.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
                                           g.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
                                           gates.packed_accessor32<scalar_t, 3, torch::RestrictPtrTraits>());
                                   }));
    auto flat = grad_gates.flatten(1, 2);
    auto grad_weight = flat.t().mm(joined);
    auto grad_bias = flat.sum(0);
    auto grad_joined = flat.mm(weight);
    return {grad_joined.slice(1, hidden), grad_weight, grad_bias, grad_joined.slice(1, 0, hidden), grad_old_c};
}
