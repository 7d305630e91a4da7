// Sums on the GPU: over a block, and over the dimensions that an operand was broadcast along. Always in the same order,
// so that a result is the same each time; no atomics.
#pragma once

#include <opwright/sum.h>

#include <opwright/map.cuh>

#pragma GCC visibility push(hidden)

namespace opwright {

// The sum of `value` over the threads of a warp, or of a block of up to 1024 threads, a multiple of 32; every thread
// gets it. All threads must call it.
template <class C>
__device__ C warp_sum(C value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

template <class C>
__device__ C block_sum(C value) {
    __shared__ C warps[32];
    const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const int count = blockDim.x * blockDim.y * blockDim.z / 32;
    value = warp_sum(value);
    __syncthreads();  // an earlier sum may still be being read
    if (thread % 32 == 0) warps[thread / 32] = value;
    __syncthreads();
    return warp_sum(thread % 32 < count ? warps[thread % 32] : C(0));
}

namespace ow_inner {

struct Axis {
    int64_t size, stride;  // elements
};

// The axes of one kind, kept or summed, from the fastest to the slowest; neighbours that step alike are one.
struct Axes {
    int count = 0;
    Axis axis[max_walked];

    void add(const Axis& a) {
        if (a.size == 1) return;
        if (count > 0 && a.stride == axis[count - 1].stride * axis[count - 1].size) {
            axis[count - 1].size *= a.size;
            return;
        }
        check(count < max_walked, OnDevice::name(), ": sum_to takes at most ", max_walked, " dimensions");
        axis[count++] = a;
    }
    int64_t numel() const {
        int64_t n = 1;
        for (int k = 0; k < count; ++k) n *= axis[k].size;
        return n;
    }
    template <class Index>
    __device__ int64_t offset(Index number) const {
        int64_t at = 0;
        for (int k = 0; k < count; ++k) {
            const Index size = static_cast<Index>(axis[k].size);
            const Index rest = k + 1 < count ? number / size : 0;
            at += static_cast<int64_t>(number - rest * size) * axis[k].stride;
            number = rest;
        }
        return at;
    }
};

constexpr int sum_threads = 256;

struct Sum {
    Axes kept, summed;
    int64_t results, terms, chunk;  // terms of one block
    bool along;                     // a block sums one result, its threads along memory; else they share 32 results
};

// One part of the sums of one or of 32 results: blockIdx.x says which results, blockIdx.y which terms.
template <class T, class Index, class F>
__global__ void __launch_bounds__(sum_threads)
    sum_part(__grid_constant__ const Sum sum, F function, const T* x, Compute<T>* partial) {
    using C = Compute<T>;
    const int width = sum.along ? 1 : 32;
    const int64_t result = blockIdx.x * int64_t(width) + (sum.along ? 0 : threadIdx.x % 32);
    const Index step = sum_threads / width;
    const Index end = static_cast<Index>(min(sum.terms, (blockIdx.y + 1) * sum.chunk));
    C total = 0;
    if (result < sum.results) {
        const T* base = x + sum.kept.offset(static_cast<Index>(result));
        for (Index i = static_cast<Index>(blockIdx.y * sum.chunk) + (sum.along ? threadIdx.x : threadIdx.x / 32);
             i < end; i += step) {
            total += function(static_cast<C>(base[sum.summed.offset(i)]));
        }
    }
    if (sum.along) {
        total = block_sum(total);
    } else {
        __shared__ C rows[sum_threads / 32][33];
        rows[threadIdx.x / 32][threadIdx.x % 32] = total;
        __syncthreads();
        total = 0;
        for (int row = 0; row < sum_threads / 32; ++row) total += rows[row][threadIdx.x % 32];
    }
    if (threadIdx.x < width && result < sum.results) partial[blockIdx.y * sum.results + result] = total;
}

// Adds the parts of each result.
template <class T>
__global__ void __launch_bounds__(sum_threads)
    add_parts(int64_t parts, int64_t results, const Compute<T>* from, T* to) {
    for (int64_t i = blockIdx.x * int64_t(sum_threads) + threadIdx.x; i < results;
         i += int64_t(gridDim.x) * sum_threads) {
        Compute<T> total = 0;
        for (int64_t part = 0; part < parts; ++part) total += from[part * results + i];
        to[i] = static_cast<T>(total);
    }
}

template <class T, class F>
void sum_tensor(const Sum& sum, const F& function, const Tensor& x, const Tensor& out) {
    using C = Compute<T>;
    const int64_t blocks = sum.along ? sum.results : ceil_div(sum.results, 32);
    const int64_t parts = std::max<int64_t>(1, ceil_div(sum.terms, sum.chunk));  // the sum of nothing is written too
    Layout layout;
    layout.dim = 2, layout.size[0] = parts, layout.size[1] = sum.results;
    layout.make_contiguous();
    const bool direct = parts == 1 && std::is_same_v<T, C>;
    const Tensor partial = direct ? out : empty(layout, dtype_of<C>);
    const bool small = sum.results < INT_MAX && sum.terms < INT_MAX - sum_threads;
    launch(small ? sum_part<T, int32_t, F> : sum_part<T, int64_t, F>, {blocks, sum_threads, 0, parts}, sum, function,
           data<const T>(x), data<C>(partial));
    if (direct) return;
    const C* from = data<const C>(partial);
    T* to = data<T>(out);
    launch(add_parts<T>, {std::min(ceil_div(sum.results, sum_threads), most_blocks), sum_threads}, parts, sum.results,
           from, to);
}

}  // namespace ow_inner

// function(x) summed to a smaller shape that broadcasts to its own, in one pass and without a tensor for function(x).
// Sums of half and bfloat16 are in float. The result is contiguous and has the dtype of x; where there is nothing to
// sum, it is that of map.
//
//     Tensor grad_bias = sum_to(bias, [] __device__(auto g) { return 2 * g; }, grad);
template <class F>
Tensor sum_to(const Layout& shape, const F& function, const Tensor& x) {
    using namespace ow_inner;
    const Layout in(x);
    if (in.same_shape(shape)) return map(function, x);
    Layout to(shape);
    to.make_contiguous();
    check(in.dim >= to.dim, OnDevice::name(), ": sum_to needs at least ", to.dim, " dimensions, got ",
          opwright::shape(x));
    Tensor out = empty(to, dtype(x));
    Sum sum;
    Axis summed[max_dim];
    int count = 0;
    for (int d = in.dim - 1; d >= 0; --d) {
        const int e = d - (in.dim - to.dim);
        const bool keep = e >= 0 && to.size[e] == in.size[d];
        check(keep || e < 0 || to.size[e] == 1, OnDevice::name(), ": sum_to needs a shape that broadcasts to ",
              opwright::shape(x));
        if (keep) sum.kept.add({in.size[d], in.stride[d]});
        if (!keep) summed[count++] = {in.size[d], in.stride[d]};
    }
    std::sort(summed, summed + count, [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
    for (int k = 0; k < count; ++k) sum.summed.add(summed[k]);
    sum.results = sum.kept.numel(), sum.terms = sum.summed.numel();
    if (sum.results == 0) return out;
    const auto step = [](const Axes& axes) { return axes.count ? axes.axis[0].stride : INT64_MAX; };
    sum.along = sum.results < 32 || step(sum.summed) < step(sum.kept);
    // Few results and many terms: the terms are divided among blocks, by the sizes alone.
    const int64_t blocks = sum.along ? sum.results : ceil_div(sum.results, 32);
    const int64_t least = sum.along ? 16 * sum_threads : 512;
    const int64_t parts =
        std::max<int64_t>(1, std::min(std::min<int64_t>(sum.terms / least, 1024 / blocks), most_rows));
    sum.chunk = std::max<int64_t>(1, ceil_div(sum.terms, parts));
    dispatch(floating, dtype(x), [&](auto zero) { sum_tensor<decltype(zero)>(sum, function, x, out); });
    return out;
}

namespace ow_inner {

struct Itself {
    template <class T>
    __device__ T operator()(T value) const {
        return value;
    }
};

}  // namespace ow_inner

// function(x, y, …) of several tensors that broadcast together, summed as above, by way of a tensor for its values.
template <class F, class... More>
Tensor sum_to(const Layout& shape, const F& function, const Tensor& x, const Tensor& y, const More&... more) {
    const Tensor values = map(function, x, y, more...);
    return Layout(values).same_shape(shape) ? values : sum_to(shape, ow_inner::Itself(), values);
}

}  // namespace opwright

#pragma GCC visibility pop
