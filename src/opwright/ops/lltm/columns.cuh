// The sum over the rows of a matrix: the gradient of a bias.
#pragma once

#include <opwright/aten.h>

namespace lltm {

constexpr int sum_warps = 8, sum_ahead = 4;

template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
    T v[V];
};

// Where sums go: to one tensor or two; null for none.
template <class T>
struct Twice {
    T *first, *second;
    __device__ __forceinline__ void put(int64_t i, T value) const {
        if (first) first[i] = value;
        if (second) second[i] = value;
    }
};

// One part of the sums, of 32 V columns and every gridDim.y-th eight rows; the whole where there is one part.
template <class T, class C, int V>
__global__ void __launch_bounds__(sum_warps * 32)
    sum_parts(const T* x, int64_t rows, int64_t columns, C* parts, Twice<T> whole) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t column = (blockIdx.x * int64_t(32) + lane) * V, apart = gridDim.y * int64_t(sum_warps);
    __shared__ C all[sum_warps][32 * V];
    C sum[V] = {};
    if (column < columns) {
        int64_t row = blockIdx.y * int64_t(sum_warps) + warp;
        const auto* from = reinterpret_cast<const Pack<T, V>*>(x + row * columns + column);
        const int64_t step = apart * columns / V;
        const auto add = [&](const Pack<T, V>& p) {
#pragma unroll
            for (int i = 0; i < V; ++i) sum[i] += static_cast<C>(p.v[i]);
        };
        for (; row + (sum_ahead - 1) * apart < rows; row += sum_ahead * apart) {
            Pack<T, V> p[sum_ahead];
#pragma unroll
            for (int k = 0; k < sum_ahead; ++k, from += step) p[k] = *from;
#pragma unroll
            for (int k = 0; k < sum_ahead; ++k) add(p[k]);
        }
        for (; row < rows; row += apart, from += step) add(*from);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) all[warp][i * 32 + lane] = sum[i];
    __syncthreads();
    for (int n = threadIdx.x; n < 32 * V; n += sum_warps * 32) {
        const int64_t to = (blockIdx.x * int64_t(32) + n % 32) * V + n / 32;
        if (to >= columns) continue;
        C total = 0;
#pragma unroll
        for (int k = 0; k < sum_warps; ++k) total += all[k][n];
        if (parts) {
            parts[blockIdx.y * columns + to] = total;
        } else {
            whole.put(to, static_cast<T>(total));
        }
    }
}

template <class T, class C, int V>
void sum_columns(const T* x, int64_t rows, int64_t columns, Twice<T> out) {
    // Blocks for some eight to a multiprocessor of the largest GPUs, of rows enough to be worth one.
    const int64_t across = ceil_div(columns, 32 * V);
    const int64_t down = std::clamp<int64_t>(1024 / across, 1, std::max<int64_t>(1, rows / (sum_warps * 8)));
    const Tensor parts = down > 1 ? empty({down, columns}, dtype_of<C>) : Tensor();
    C* const part = down > 1 ? data<C>(parts) : nullptr;
    launch(sum_parts<T, C, V>, {across, sum_warps * 32, 0, down}, x, rows, columns, part, out);
    if (!part) return;
    for_each(columns, [=] __device__(int64_t j) {
        C total = 0;
        for (int64_t k = 0; k < down; ++k) total += part[k * columns + j];
        out.put(j, static_cast<T>(total));
    });
}

// As PyTorch's sum over the rows, which takes 96 MiB of memory beside, in the same order each time. Two biases that are
// added have one gradient, and each wants its own.
template <class T>
std::tuple<Tensor, Tensor> sums_of_rows(const Tensor& x, bool first, bool second) {
    using C = Compute<T>;
    constexpr int V = 16 / sizeof(T);
    const int64_t rows = x.size(0), columns = x.size(1);
    const Tensor one = first ? empty({columns}, dtype(x)) : Tensor(),
                 two = second ? empty({columns}, dtype(x)) : Tensor();
    if (columns == 0) return {one, two};
    const T* from = data<const T>(x);
    const Twice<T> out{first ? data<T>(one) : nullptr, second ? data<T>(two) : nullptr};
    const bool even = columns % V == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
    (even ? sum_columns<T, C, V> : sum_columns<T, C, 1>)(from, rows, columns, out);
    return {one, two};
}

template <class T>
Tensor sum_of_rows(const Tensor& x) {
    return std::get<0>(sums_of_rows<T>(x, true, false));
}

}  // namespace lltm
