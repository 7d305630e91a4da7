// A step of the looped path: what it reads and writes, and its kernels.
#pragma once

#include <opwright/aten.h>

#include "gates.cuh"

namespace lltm {

// What a step reads and writes. T are elements, C what is computed in.
template <class T, class C>
struct Step {
    int64_t batch, hidden, step;
    bool reverse;
    const int64_t* lengths;  // or null, as what follows where it says so

    // The step of the sequence that row b is at: -1 when it is over.
    __device__ __forceinline__ int64_t row(int64_t b) const {
        if (!lengths) return reversed(b, steps);
        int64_t length = lengths[b];
        length = length < 0 ? 0 : length > steps ? steps : length;
        return step < length ? reversed(b, length) : -1;
    }
    __device__ __forceinline__ int64_t reversed(int64_t b, int64_t length) const {
        return (reverse ? length - 1 - step : step) * batch + b;
    }
    __device__ __forceinline__ bool is_last(int64_t b) const {
        return step + 1 == (lengths && lengths[b] < steps ? lengths[b] : steps);
    }
    int64_t steps;

    // The number of the step, where the launch does not know it: it is part of a graph.
    const int64_t* now;
    int64_t *next, by;
    __device__ __forceinline__ void begin() {
        if (now) step = *now;
        if (next && blockIdx.x == 0 && threadIdx.x == 0) *next = step + by;
    }

    T* gates;  // [steps · batch, 3 · hidden]: pre-activations from the input in; gates out, where they are kept
    bool keep_gates;
    T* kept_c;                   // [steps · batch, hidden] or null
    const T* recurrent;          // [batch, 3 · hidden], from h; null for zeros
    const T *bias_ih, *bias_hh;  // or null
    T* h;                        // [batch, hidden]
    C* c;
    T* output;           // [steps · batch, hidden]
    Either<T, C> cells;  // or null

    const T* grad_output;     // or null
    Either<T, C> grad_cells;  // or null
    const T* grad_h_n;        // or null
    const T* grad_h;          // [batch, hidden], from the step after; null for zeros
    C* grad_c;
    T* grad_gates;   // [steps · batch, 3 · hidden]
    T* grad_recent;  // [batch, 3 · hidden], this step's
    bool recompute;

    __device__ __forceinline__ Gates<C> pre_activations(const T* x, int64_t b, int64_t j) const {
        C z[3];
#pragma unroll
        for (int g = 0; g < 3; ++g) {
            const int64_t k = g * hidden + j;
            z[g] = static_cast<C>(x[k]);
            if (recurrent) z[g] += static_cast<C>(recurrent[b * 3 * hidden + k]);
            if (bias_ih) z[g] += static_cast<C>(bias_ih[k]);
            if (bias_hh) z[g] += static_cast<C>(bias_hh[k]);
        }
        return {z[0], z[1], z[2]};
    }
};

constexpr int step_threads = 256;

template <class T, class C>
__global__ void __launch_bounds__(step_threads) forward_step(Step<T, C> q) {
    q.begin();
    const int64_t n = blockIdx.x * int64_t(step_threads) + threadIdx.x;
    if (n >= q.batch * q.hidden) return;
    const int64_t b = n / q.hidden, j = n - b * q.hidden, H = q.hidden, row = q.row(b);
    if (row < 0) return;
    T* gates = q.gates + row * 3 * H;
    const auto pre = q.pre_activations(gates, b, j);
    const auto z = activate(pre.i, pre.o, pre.g);
    const C c = q.c[n] + elu_of(z.g) * z.i;
    const T h = static_cast<T>(tanh_of(c) * z.o);
    q.c[n] = c;
    q.h[n] = h;
    q.output[row * H + j] = h;
    if (q.keep_gates) {
        gates[j] = static_cast<T>(z.i);
        gates[H + j] = static_cast<T>(z.o);
        gates[2 * H + j] = static_cast<T>(z.g);
    }
    if (q.kept_c) q.kept_c[row * H + j] = static_cast<T>(c);
    if (q.cells) q.cells.put(row * H + j, c);
}

template <class T, class C>
__global__ void __launch_bounds__(step_threads) backward_step(Step<T, C> q) {
    q.begin();
    const int64_t n = blockIdx.x * int64_t(step_threads) + threadIdx.x;
    if (n >= q.batch * q.hidden) return;
    const int64_t b = n / q.hidden, j = n - b * q.hidden, H = q.hidden, row = q.row(b);
    T* recent = q.grad_recent + b * 3 * H + j;
    if (row < 0) {
        recent[0] = recent[H] = recent[2 * H] = static_cast<T>(0.0f);
        return;
    }
    T* out = q.grad_gates + row * 3 * H;
    Gates<C> z;
    if (q.recompute) {
        const auto pre = q.pre_activations(out, b, j);
        z = activate(pre.i, pre.o, pre.g);
    } else {
        const T* kept = q.gates + row * 3 * H + j;
        z = {static_cast<C>(kept[0]), static_cast<C>(kept[H]), static_cast<C>(kept[2 * H])};
    }
    // At its last step a sequence has no later one: zeros times weights that are not finite would not be zero.
    const bool last = q.is_last(b);
    C d_h = q.grad_h && !last ? static_cast<C>(q.grad_h[n]) : C(0), d_c = q.grad_c[n];
    if (q.grad_output) d_h += static_cast<C>(q.grad_output[row * H + j]);
    if (q.grad_h_n && last) d_h += static_cast<C>(q.grad_h_n[n]);
    if (q.grad_cells) d_c += q.grad_cells[row * H + j];
    const auto d = gradients(z, static_cast<C>(q.kept_c[row * H + j]), d_h, d_c);
    q.grad_c[n] = d_c;
    out[j] = recent[0] = static_cast<T>(d.i);
    out[H + j] = recent[H] = static_cast<T>(d.o);
    out[2 * H + j] = recent[2 * H] = static_cast<T>(d.g);
}

// h before a step, to compute its gates again.
template <class T, class C>
__global__ void __launch_bounds__(step_threads) gather_h(Step<T, C> q, const T* h_0) {
    q.next = nullptr;  // the step's other kernel is still to come
    q.begin();
    const int64_t n = blockIdx.x * int64_t(step_threads) + threadIdx.x;
    if (n >= q.batch * q.hidden) return;
    const int64_t b = n / q.hidden, j = n - b * q.hidden;
    Step<T, C> earlier = q;
    --earlier.step;
    const int64_t row = q.step > 0 ? earlier.row(b) : -1;
    q.h[n] = row >= 0 ? q.output[row * q.hidden + j] : h_0 ? h_0[n] : static_cast<T>(0.0f);
}

}  // namespace lltm
