#include <opwright/aten.h>

#include "../lltm/columns.cuh"
#include "../lltm/gates.cuh"

// Few launches are what counts at the sizes of a cell: [h, x] is made for one product rather than two, and the
// gradient of the bias is summed by the kernel that makes the others.

using OptionalTensor = std::optional<Tensor>;
using lltm::Either;

namespace {

template <class T>
T* elements(const Tensor& x) {
    return x.defined() ? static_cast<T*>(const_cast<void*>(x.const_data_ptr())) : nullptr;
}

Tensor whole(const OptionalTensor& x) { return given(x) ? aten::contiguous(*x) : Tensor(); }

// [h, x], in the dtype of x.
template <class T, class C>
Tensor joined(const Tensor& x_any, const Tensor& h_any) {
    const Tensor x = aten::contiguous(x_any), h = aten::contiguous(h_any);
    const int64_t batch = x.size(0), H = h.size(1), I = x.size(1), width = H + I;
    const Tensor out = empty({batch, width}, dtype(x));
    const Either<T, C> from_h(h);
    const T* from_x = elements<const T>(x);
    T* to = elements<T>(out);
    for_each(out.numel(), [=] __device__(int64_t i) {
        const int64_t b = i / width, j = i - b * width;
        to[i] = j >= H ? from_x[b * I + j - H] : static_cast<T>(from_h[b * H + j]);
    });
    return out;
}

template <class T>
std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                           const Tensor& h, const Tensor& c_any) {
    using C = Compute<T>;
    // With the bias inside: half numbers are to be rounded once, as the reference rounds them, and for small float
    // matrices the product without one takes twenty times as long.
    const Tensor gates = aten::linear(joined<T, C>(x, h), weight, bias);
    const Tensor c = aten::contiguous(c_any);
    const int64_t batch = x.size(0), H = h.size(1);
    const Tensor next = empty({batch, H}, dtype(c)), out = empty({batch, H}, dtype(c));
    T* z = elements<T>(gates);
    const Either<T, C> from(c), to_c(next), to_h(out);
    for_each(batch * H, [=] __device__(int64_t n) {
        const int64_t row = n / H, j = n - row * H;
        T* own = z + row * 3 * H + j;
        const auto a = lltm::activate(static_cast<C>(own[0]), static_cast<C>(own[H]), static_cast<C>(own[2 * H]));
        const C state = from[n] + lltm::elu_of(a.g) * a.i;
        to_c.put(n, state);
        to_h.put(n, lltm::tanh_of(state) * a.o);
        own[0] = static_cast<T>(a.i);
        own[H] = static_cast<T>(a.o);
        own[2 * H] = static_cast<T>(a.g);
    });
    return {out, next, gates};
}

template <class T, class C>
struct Back {
    int64_t batch, hidden;
    const T* gates;
    Either<T, C> c, grad_h, grad_c, d_c;
    T *d, *d_bias;
};

constexpr int across = 32, down = 8;

// Blocks of so many units; their rows in turns, so that a block has the whole sum of its biases.
template <class T, class C>
__global__ void __launch_bounds__(across* down) backward_gates(Back<T, C> q) {
    const int64_t H = q.hidden, j = blockIdx.x * int64_t(across) + threadIdx.x;
    C sum[3] = {};
    for (int64_t row = blockIdx.y * int64_t(down) + threadIdx.y; j < H && row < q.batch;
         row += gridDim.y * int64_t(down)) {
        const int64_t n = row * H + j;
        const T* z = q.gates + row * 3 * H + j;
        const lltm::Gates<C> a{static_cast<C>(z[0]), static_cast<C>(z[H]), static_cast<C>(z[2 * H])};
        C d_c = q.grad_c ? q.grad_c[n] : C(0);
        const auto d = lltm::gradients(a, q.c[n] + lltm::elu_of(a.g) * a.i, q.grad_h ? q.grad_h[n] : C(0), d_c);
        q.d_c.put(n, d_c);
        T* out = q.d + row * 3 * H + j;
        out[0] = static_cast<T>(d.i);
        out[H] = static_cast<T>(d.o);
        out[2 * H] = static_cast<T>(d.g);
        sum[0] += d.i;
        sum[1] += d.o;
        sum[2] += d.g;
    }
    if (!q.d_bias) return;
    __shared__ C part[3][down][across + 1];
#pragma unroll
    for (int g = 0; g < 3; ++g) part[g][threadIdx.y][threadIdx.x] = sum[g];
    __syncthreads();
    if (threadIdx.y >= 3 || j >= H) return;
    C total = 0;
#pragma unroll
    for (int k = 0; k < down; ++k) total += part[threadIdx.y][k][threadIdx.x];
    q.d_bias[threadIdx.y * H + j] = static_cast<T>(total);
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

template <class T>
Gradients backward(const OptionalTensor& grad_h, const OptionalTensor& grad_c, const Tensor& x, const Tensor& weight,
                   const Tensor& h, const Tensor& c_any, const OptionalTensor& bias, const Tensor& gates_any,
                   const Wanted& wanted) {
    using C = Compute<T>;
    const int64_t batch = x.size(0), H = h.size(1), I = x.size(1), width = H + I;
    const DType type = dtype(x);
    const Tensor gates = aten::contiguous(gates_any), c = aten::contiguous(c_any), d_next = whole(grad_c),
                 d_out = whole(grad_h);
    const Tensor d = empty({batch, 3 * H}, type), d_state = empty({batch, H}, dtype(c));
    // With many rows it takes many blocks to be fast, and a sum of its own.
    const bool sums = given(bias) && wants(wanted, 2), few = batch <= 512;
    Gradients out;
    auto& [d_x, d_weight, d_bias, d_h, d_c] = out;
    if (sums && few) d_bias = empty({3 * H}, type);
    const Back<T, C> q{batch,
                       H,
                       elements<const T>(gates),
                       Either<T, C>(c),
                       Either<T, C>(d_out),
                       Either<T, C>(d_next),
                       Either<T, C>(d_state),
                       elements<T>(d),
                       elements<T>(d_bias)};
    Grid grid{ceil_div(H, across), dim3(across, down)};
    if (!(sums && few)) grid.rows = std::min<int64_t>(ceil_div(batch, down), 1024);
    launch(backward_gates<T, C>, grid, q);
    if (sums && !few) d_bias = lltm::sum_of_rows<T>(d);
    if (wants(wanted, 1)) d_weight = aten::mm(aten::t(d), joined<T, C>(x, h));
    if (wants(wanted, 0) && wants(wanted, 3)) {
        const Tensor both = aten::mm(d, weight);
        d_x = empty({batch, I}, type), d_h = empty({batch, H}, dtype(h));
        const T* from = elements<const T>(both);
        T* to_x = elements<T>(d_x);
        const Either<T, C> to_h(d_h);
        for_each(both.numel(), [=] __device__(int64_t i) {
            const int64_t row = i / width, j = i - row * width;
            if (j >= H) {
                to_x[row * I + j - H] = from[i];
            } else {
                to_h.put(row * H + j, static_cast<C>(from[i]));
            }
        });
    } else if (wants(wanted, 0)) {
        d_x = aten::mm(d, aten::narrow(weight, 1, H, I));
    } else if (wants(wanted, 3)) {
        d_h = aten::mm(d, aten::narrow(weight, 1, 0, H));
        if (dtype(h) != type) {
            const T* from = elements<const T>(d_h);
            const Tensor wide = empty({batch, H}, dtype(h));
            const Either<T, C> to(wide);
            for_each(batch * H, [=] __device__(int64_t i) { to.put(i, static_cast<C>(from[i])); });
            d_h = wide;
        }
    }
    if (wants(wanted, 4)) d_c = d_state;
    return out;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> lltm_cell_saving_cuda(const Tensor& x, const Tensor& weight,
                                                         const OptionalTensor& bias, const Tensor& h, const Tensor& c) {
    return dispatch(floating, dtype(x), [&](auto zero) { return forward<decltype(zero)>(x, weight, bias, h, c); });
}

std::tuple<Tensor, Tensor> lltm_cell_cuda(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                          const Tensor& h, const Tensor& c) {
    const auto all = lltm_cell_saving_cuda(x, weight, bias, h, c);
    return {std::get<0>(all), std::get<1>(all)};
}

Gradients lltm_cell_backward_cuda(const OptionalTensor& grad_h, const OptionalTensor& grad_c, const Tensor& x,
                                  const Tensor& weight, const Tensor& h, const Tensor& c, const OptionalTensor& bias,
                                  const Tensor& gates, const Wanted& wanted) {
    return dispatch(floating, dtype(x), [&](auto zero) {
        return backward<decltype(zero)>(grad_h, grad_c, x, weight, h, c, bias, gates, wanted);
    });
}

OPWRIGHT_KERNEL(lltm_cell, CUDA, lltm_cell_cuda);
OPWRIGHT_KERNEL(lltm_cell_saving, CUDA, lltm_cell_saving_cuda);
OPWRIGHT_KERNEL(lltm_cell_backward, CUDA, lltm_cell_backward_cuda);
