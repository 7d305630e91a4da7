// Launches: the only place where one is written. Every launch is on PyTorch's current stream of the current device, is
// left out when there is nothing to do, and is checked.
#pragma once

#include <opwright/device.h>

#include <algorithm>
#include <climits>
#include <cstdio>

#pragma GCC visibility push(hidden)

namespace opwright {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// So many blocks of so many threads; `shared` bytes of dynamic shared memory a block.
struct Grid {
    int64_t blocks;
    dim3 threads;
    size_t shared = 0;
    int64_t rows = 1;    // blockIdx.y
    int64_t sheets = 1;  // blockIdx.z
};

namespace ow_inner {

constexpr int64_t most_blocks = INT_MAX;
constexpr int64_t most_rows = 65535;

// What shared memory a block of a kernel can have beside the kernel's own; from now on it gets as much as a launch
// says.
OPWRIGHT_NOINLINE int all_shared(const void* kernel) {
    cudaFuncAttributes about = {};
    cuda_check(cudaFuncGetAttributes(&about, kernel), "asking for a kernel");
    int most = 0;
    cuda_check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, OnDevice::current().index),
               "asking the device");
    const int room = std::max(most - static_cast<int>(about.sharedSizeBytes), 0);
    if (about.maxDynamicSharedSizeBytes < room)
        cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room),
                   "asking for shared memory");
    return room;
}

// Beside what a kernel has in its own right, without asking a launch gets 48 KiB of shared memory in all. Asked for is
// all that the device has: a limit of what one launch needs would be that of another thread's launch, too.
OPWRIGHT_NOINLINE void ask_for_shared(const void* kernel, size_t bytes) {
    cudaFuncAttributes about = {};
    cuda_check(cudaFuncGetAttributes(&about, kernel), "asking for a kernel");
    if (bytes <= static_cast<size_t>(about.maxDynamicSharedSizeBytes) && bytes + about.sharedSizeBytes <= 48 * 1024)
        return;
    const int room = all_shared(kernel);
    check(bytes <= static_cast<size_t>(room), OnDevice::name(), ": a block has ", room,
          " bytes of shared memory beside the kernel's own here, got ", bytes);
}

OPWRIGHT_NOINLINE void launch_raw(const void* kernel, const Grid& grid, void** arguments) {
    if (grid.blocks == 0 || grid.rows == 0 || grid.sheets == 0) return;
    const dim3 t = grid.threads;
    check(grid.blocks > 0 && grid.blocks <= most_blocks && grid.rows > 0 && grid.rows <= most_rows && grid.sheets > 0 &&
              grid.sheets <= most_rows,
          ow_inner::OnDevice::name(), ": a launch has at most 2147483647 x 65535 x 65535 blocks, got ", grid.blocks,
          " x ", grid.rows, " x ", grid.sheets);
    const cudaStream_t on = stream();
    if (__builtin_expect(synchronous(), false)) wait_for(on, "an earlier kernel on this stream");
    if (grid.shared > 0) ask_for_shared(kernel, grid.shared);
    const dim3 blocks(static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.rows),
                      static_cast<unsigned>(grid.sheets));
    const cudaError_t error = cudaLaunchKernel(kernel, blocks, t, arguments, grid.shared, on);
    if (__builtin_expect(error != cudaSuccess, false)) {
        cudaGetLastError();
        check(error == cudaErrorNoKernelImageForDevice, ow_inner::OnDevice::name(),
              ": the launch failed: ", cudaGetErrorString(error), ", with blocks (", blocks.x, ", ", blocks.y, ", ",
              blocks.z, "), threads (", t.x, ", ", t.y, ", ", t.z, ") and ", grid.shared, " bytes of shared memory (",
              cudaGetErrorName(error), ")");
        cuda_fail(error, "the launch");
    }
    if (__builtin_expect(synchronous(), false)) wait_for(on, "the kernel");
}

// A launch whose blocks all run at the same time, so that they may wait for each other; `cluster` of them make a
// cluster. False where the device has no room for that: nothing has been launched then. Who asks for much shared memory
// has told CUDA so before, on this device.
OPWRIGHT_NOINLINE bool launch_together(const void* kernel, const Grid& grid, int cluster, void** arguments) {
    if (grid.blocks == 0 || grid.rows == 0 || grid.sheets == 0) return true;
    const cudaStream_t on = stream();
    if (__builtin_expect(synchronous(), false)) wait_for(on, "an earlier kernel on this stream");
    cudaLaunchConfig_t config = {};
    config.gridDim =
        dim3(static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.rows), static_cast<unsigned>(grid.sheets));
    config.blockDim = grid.threads, config.dynamicSmemBytes = grid.shared, config.stream = on;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeCooperative, attributes[0].val.cooperative = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    config.attrs = attributes, config.numAttrs = cluster > 1 ? 2 : 1;
    const cudaError_t error = cudaLaunchKernelExC(&config, kernel, arguments);
    if (error == cudaErrorCooperativeLaunchTooLarge || error == cudaErrorLaunchOutOfResources ||
        error == cudaErrorInvalidClusterSize || error == cudaErrorNotSupported) {
        cudaGetLastError();
        return false;
    }
    cuda_check(error, "the launch of blocks that run together");
    if (__builtin_expect(synchronous(), false)) wait_for(on, "the kernel");
    return true;
}

}  // namespace ow_inner

// kernel<<<…>>>(arguments…), checked.
//
//     launch(scan_rows<float>, {rows, 256}, data<const float>(x), data<float>(out), x.size(1));
template <class... P, class... A>
void launch(void (*kernel)(P...), const Grid& grid, const A&... arguments) {
    static_assert(sizeof...(P) == sizeof...(A), "one argument a parameter");
    const auto with = [&](P... converted) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&converted))..., nullptr};
        ow_inner::launch_raw(reinterpret_cast<const void*>(kernel), grid, pointers);
    };
    with(arguments...);
}

namespace ow_inner {

// The same for blocks that wait for each other; false where they do not all fit, and nothing was launched then.
template <class... P, class... A>
bool launch_at_once(void (*kernel)(P...), const Grid& grid, const A&... arguments) {
    static_assert(sizeof...(P) == sizeof...(A), "one argument a parameter");
    const auto with = [&](P... converted) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&converted))..., nullptr};
        return launch_together(reinterpret_cast<const void*>(kernel), grid, 1, pointers);
    };
    return with(arguments...);
}

template <class F>
__global__ void __launch_bounds__(256) each_index(int64_t n, F function) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * 256;
    for (int64_t i = blockIdx.x * int64_t(256) + threadIdx.x; i < n; i += step) function(i);
}

}  // namespace ow_inner

// function(i) for every i in [0, n), on as many threads.
//
//     for_each(x.numel(), [=] __device__(int64_t i) { out[i] = in[index[i]]; });
template <class F>
void for_each(int64_t n, const F& function) {
    const int64_t blocks = std::min<int64_t>(ceil_div(n, 256), ow_inner::most_blocks);
    launch(ow_inner::each_index<F>, {blocks, 256}, n, function);
}

// A tensor of rank N as a kernel takes it: by value, indexed x(i, j). Index is int32_t where that reaches every
// element, which is faster, and int64_t where it does not: with_index chooses. Indices are checked in builds with
// OPWRIGHT_DEBUG.
template <class T, int N, class Index = int64_t>
class Packed {
  public:
    explicit Packed(const Tensor& x) : data_(data<T>(x)) {
        check(x.dim() == N, ow_inner::OnDevice::name(), ": the tensor must have ", N, " dimensions, got ", shape(x));
        for (int d = 0; d < N; ++d) {
            size_[d] = static_cast<Index>(x.size(d));
            stride_[d] = static_cast<Index>(x.stride(d));
        }
    }

    __host__ __device__ Index size(int d) const { return size_[d]; }
    __host__ __device__ Index stride(int d) const { return stride_[d]; }
    __host__ __device__ T* data() const { return data_; }

    template <class... I>
    __device__ T& operator()(I... index) const {
        static_assert(sizeof...(I) == N, "one index a dimension");
        const Index at[N + 1] = {static_cast<Index>(index)..., 0};
        Index offset = 0;
#pragma unroll
        for (int d = 0; d < N; ++d) {
#ifdef OPWRIGHT_DEBUG
            if (at[d] < 0 || at[d] >= size_[d]) {
                printf("index %lld is out of bounds for dimension %d of size %lld\n", static_cast<long long>(at[d]), d,
                       static_cast<long long>(size_[d]));
                __trap();
            }
#endif
            offset += at[d] * stride_[d];
        }
        return data_[offset];
    }

  private:
    template <class U>
    static U* data(const Tensor& x) {
        return opwright::data<U>(x);
    }

    T* data_;
    Index size_[N + 1];
    Index stride_[N + 1];
};

template <class T, int N, class Index = int64_t>
Packed<T, N, Index> packed(const Tensor& x) {
    return Packed<T, N, Index>(x);
}

namespace ow_inner {

// Whether 32 bits number every element of x, and every offset into it, with room for a step past the end.
inline bool is_small(const Tensor& x) {
    int64_t last = 0;
    for (int64_t d = 0; d < x.dim(); ++d) last += (std::max<int64_t>(x.size(d), 1) - 1) * x.stride(d);
    constexpr int64_t most = INT_MAX - (1 << 20);
    return last < most && x.numel() < most;
}

}  // namespace ow_inner

// body with a zero of the type to index these tensors with: int32_t, or int64_t where one of them needs it.
//
//     with_index([&](auto zero) {
//         using I = decltype(zero);
//         launch(flip<float, I>, {…}, packed<const float, 2, I>(x), packed<float, 2, I>(out));
//     }, x, out);
template <class Body, class... Tensors>
auto with_index(const Body& body, const Tensors&... tensors) {
    return (ow_inner::is_small(tensors) && ...) ? body(int32_t()) : body(int64_t());
}

}  // namespace opwright

#pragma GCC visibility pop
