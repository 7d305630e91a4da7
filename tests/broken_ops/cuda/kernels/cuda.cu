// Wrong on purpose, each in one way. Launches are written out, since the ones of launch.cuh make no such mistakes.
#include <opwright/kernel.h>

static Tensor like(const Tensor& x) { return empty(Layout(x), dtype(x)); }
static int blocks_of(int64_t n, int threads = 256) { return static_cast<int>(ceil_div(n, threads)); }

__global__ void add_one(const float* x, float* out, int64_t n) {
    const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (i < n) out[i] = x[i] + 1;
}

Tensor no_stream(const Tensor& x) {
    Tensor out = like(x);
    const int64_t n = x.numel();
    if (n > 0) add_one<<<blocks_of(n), 256>>>(data<const float>(x), data<float>(out), n);
    launched();
    return out;
}

Tensor own_stream(const Tensor& x) {
    static cudaStream_t own = [] {
        cudaStream_t made;
        cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
        return made;
    }();
    Tensor out = like(x);
    const int64_t n = x.numel();
    if (n > 0) add_one<<<blocks_of(n), 256, 0, own>>>(data<const float>(x), data<float>(out), n);
    launched();
    return out;
}

Tensor waits(const Tensor& x) {
    Tensor out = like(x);
    const int64_t n = x.numel();
    if (n > 0) add_one<<<blocks_of(n), 256, 0, stream()>>>(data<const float>(x), data<float>(out), n);
    ow_inner::cuda_check(cudaStreamSynchronize(stream()), "waiting");
    return out;
}

__global__ void sum_rows(const float* x, float* out, int64_t columns) {
    __shared__ float sums[256];
    const int t = threadIdx.x;
    sums[t] = 0;
    for (int64_t i = t; i < columns; i += 256) sums[t] += x[blockIdx.x * columns + i];
    for (int half = 128; half > 0; half /= 2) {
        if (t < half) sums[t] += sums[t + half];  // no __syncthreads() before it
    }
    __syncthreads();
    if (t == 0) out[blockIdx.x] = sums[0];
}

static Tensor one_a_row(const Tensor& x) {
    Layout column;
    column.dim = 1, column.size[0] = x.size(0), column.stride[0] = 1;
    return empty(column, dtype(x));
}

Tensor missing_sync(const Tensor& x) {
    Tensor out = one_a_row(x);
    if (x.size(0) > 0) sum_rows<<<x.size(0), 256, 0, stream()>>>(data<const float>(x), data<float>(out), x.size(1));
    launched();
    return out;
}

__global__ void reverse(const float* x, float* out, int64_t n) {
    __shared__ float part[256];
    const int64_t begin = blockIdx.x * int64_t(256);
    const int length = static_cast<int>(min(int64_t(256), n - begin)), t = threadIdx.x;
    if (t < length) part[t] = x[begin + t];
    // no __syncthreads()
    if (t < length) out[begin + t] = part[length - 1 - t];
}

Tensor shared_race(const Tensor& x) {
    Tensor out = like(x);
    const int64_t n = x.numel();
    if (n > 0) reverse<<<blocks_of(n), 256, 0, stream()>>>(data<const float>(x), data<float>(out), n);
    launched();
    return out;
}

__global__ void add_one_behind_barrier(const float* x, float* out, int64_t n) {
    __shared__ float part[256];
    const int64_t i = blockIdx.x * int64_t(256) + threadIdx.x;
    const unsigned even = 0x55555555u;
    if (threadIdx.x % 2 == 0) {
        part[threadIdx.x] = i < n ? x[i] : 0;
        __syncwarp(even << 1);  // a mask in which the threads that call it are not
    } else {
        part[threadIdx.x] = i < n ? x[i] : 0;
        __syncwarp(even);
    }
    if (i < n) out[i] = part[threadIdx.x] + 1;
}

Tensor divergent_barrier(const Tensor& x) {
    Tensor out = like(x);
    const int64_t n = x.numel();
    if (n > 0) add_one_behind_barrier<<<blocks_of(n), 256, 0, stream()>>>(data<const float>(x), data<float>(out), n);
    launched();
    return out;
}

__global__ void add_one_short(const float* x, float* out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = x[i] + 1;
}

Tensor int_overflow(const Tensor& x) {
    Tensor out = like(x);
    const int n = static_cast<int>(x.numel());
    add_one_short<<<1024, 256, 0, stream()>>>(data<const float>(x), data<float>(out), n);
    launched();
    return out;
}

__global__ void add_one_unsigned(const BFloat16* x, BFloat16* out, unsigned n) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        out[i] = static_cast<BFloat16>(float(x[i]) + 1);
    }
}

Tensor unsigned_count(const Tensor& x) {
    Tensor out = like(x);
    const auto n = static_cast<unsigned>(x.numel());
    add_one_unsigned<<<1024, 256, 0, stream()>>>(data<const BFloat16>(x), data<BFloat16>(out), n);
    launched();
    return out;
}

__global__ void add_one_by_float(const float* x, float* out, float n) {
    for (float i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        out[static_cast<int64_t>(i)] = x[static_cast<int64_t>(i)] + 1;
    }
}

Tensor index_in_float(const Tensor& x) {
    Tensor out = like(x);
    const auto n = static_cast<float>(x.numel());
    add_one_by_float<<<1024, 256, 0, stream()>>>(data<const float>(x), data<float>(out), n);
    launched();
    return out;
}

__global__ void sum_and_count(const float* x, float* sum, int64_t n) {
    float mine = 0;
    for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += gridDim.x * int64_t(blockDim.x)) {
        mine += x[i];
        atomicAdd(sum + 1, 1.0f);
    }
    atomicAdd(sum, mine);
}

__global__ void divide(const float* sum, float* out) { *out = sum[0] / sum[1]; }

Tensor count_in_float(const Tensor& x) {
    Layout two;
    two.dim = 1, two.size[0] = 2, two.stride[0] = 1;
    Tensor sum = empty(two, dtype(x)), out = empty(Layout(), dtype(x));
    ow_inner::cuda_check(cudaMemsetAsync(data<float>(sum), 0, 2 * sizeof(float), stream()), "clearing");
    sum_and_count<<<1024, 256, 0, stream()>>>(data<const float>(x), data<float>(sum), x.numel());
    divide<<<1, 1, 0, stream()>>>(data<const float>(sum), data<float>(out));
    launched();
    return out;
}

__global__ void add_one_in_eights(const float* x, float* out, int64_t n) {
    const int64_t i = blockIdx.x * int64_t(8) + threadIdx.x;
    out[i] = (i < n ? x[i] : 0) + 1;
}

Tensor no_bounds_check(const Tensor& x) {
    Tensor out = like(x);
    const int64_t n = x.numel();
    if (n > 0) add_one_in_eights<<<blocks_of(n, 8), 8, 0, stream()>>>(data<const float>(x), data<float>(out), n);
    launched();
    return out;
}

__global__ void add_right(const float* x, float* out, int64_t n) {
    const int64_t i = blockIdx.x * int64_t(256) + threadIdx.x;
    if (i < n) out[i] = x[i] + x[i + 1];
}

Tensor reads_past_end(const Tensor& x) {
    Tensor out = like(x);
    const int64_t n = x.numel();
    if (n > 0) add_right<<<blocks_of(n), 256, 0, stream()>>>(data<const float>(x), data<float>(out), n);
    launched();
    return out;
}

__global__ void write_positive(const float* x, float* out, int64_t n) {
    const int64_t i = blockIdx.x * int64_t(256) + threadIdx.x;
    if (i < n && x[i] > 0) out[i] = x[i];
}

Tensor unwritten(const Tensor& x) {
    Tensor out = like(x);
    const int64_t n = x.numel();
    if (n > 0) write_positive<<<blocks_of(n), 256, 0, stream()>>>(data<const float>(x), data<float>(out), n);
    launched();
    return out;
}

__global__ void sum_in_half(const BFloat16* x, BFloat16* out, int64_t rows, int64_t columns) {
    const int64_t row = blockIdx.x * int64_t(256) + threadIdx.x;
    if (row >= rows) return;
    BFloat16 sum = 0.0f;
    for (int64_t i = 0; i < columns; ++i) sum = static_cast<BFloat16>(float(sum) + float(x[row * columns + i]));
    out[row] = sum;
}

Tensor half_sums(const Tensor& x) {
    Tensor out = one_a_row(x);
    if (x.size(0) > 0) {
        sum_in_half<<<blocks_of(x.size(0)), 256, 0, stream()>>>(data<const BFloat16>(x), data<BFloat16>(out), x.size(0),
                                                                x.size(1));
    }
    launched();
    return out;
}

Tensor unchecked_launch(const Tensor& x) {
    Tensor out = like(x);
    const int64_t n = x.numel();
    if (n > 0) add_one<<<blocks_of(n, 2048), 2048, 0, stream()>>>(data<const float>(x), data<float>(out), n);
    return out;  // no launched()
}

__global__ void add_one_by_four(const float4* x, float4* out, int64_t n) {
    const int64_t i = blockIdx.x * int64_t(256) + threadIdx.x;
    if (4 * i + 3 < n) {
        const float4 v = x[i];
        out[i] = make_float4(v.x + 1, v.y + 1, v.z + 1, v.w + 1);
    } else {
        const float* rest = reinterpret_cast<const float*>(x);
        for (int64_t k = 4 * i; k < n; ++k) reinterpret_cast<float*>(out)[k] = rest[k] + 1;
    }
}

Tensor misaligned_vector(const Tensor& x) {
    Tensor out = like(x);
    const int64_t n = x.numel();
    if (n > 0) {
        add_one_by_four<<<blocks_of(ceil_div(n, 4)), 256, 0, stream()>>>(
            reinterpret_cast<const float4*>(data<const float>(x)), reinterpret_cast<float4*>(data<float>(out)), n);
    }
    launched();
    return out;
}

Tensor whole_blocks(const Tensor& x) {
    Tensor out = like(x);
    const int64_t n = x.numel();
    if (n >= 128) add_one<<<static_cast<int>(n / 128), 128, 0, stream()>>>(data<const float>(x), data<float>(out), n);
    launched();
    return out;
}

__global__ void add_one_a_row(const float* x, float* out) { out[blockIdx.y] = x[blockIdx.y] + 1; }

Tensor grid_too_large(const Tensor& x) {
    Tensor out = like(x);
    const auto n = static_cast<unsigned>(x.numel());
    if (n > 0) add_one_a_row<<<dim3(1, n), 1, 0, stream()>>>(data<const float>(x), data<float>(out));
    cudaGetLastError();  // and forgets what it said
    return out;
}

__global__ void add_atomically(const float* x, float* out, int64_t n) {
    const int64_t i = blockIdx.x * int64_t(256) + threadIdx.x;
    if (i < n) atomicAdd(out, x[i]);
}

Tensor block_order(const Tensor& x) {
    Tensor out = empty(Layout(), dtype(x));
    ow_inner::cuda_check(cudaMemsetAsync(data<float>(out), 0, sizeof(float), stream()), "clearing");
    const int64_t n = x.numel();
    if (n > 0) add_atomically<<<blocks_of(n), 256, 0, stream()>>>(data<const float>(x), data<float>(out), n);
    launched();
    return out;
}

__device__ float counted;

__global__ void count(float* out, int64_t n) {
    counted += static_cast<float>(n);
    *out = counted;
}

Tensor kept_sum(const Tensor& x) {
    Tensor out = empty(Layout(), dtype(x));
    count<<<1, 1, 0, stream()>>>(data<float>(out), x.numel());
    launched();
    return out;
}

Tensor result_on_cpu(const Tensor& x) {
    AtenTensorHandle made;
    const Layout layout(x);
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(layout.dim, layout.size, layout.stride, aoti_torch_dtype_float32(),
                                                    aoti_torch_device_type_cpu(), 0, &made));
    Tensor out(made);
    ow_inner::cuda_check(
        cudaMemcpy(data<float>(out), data<const float>(x), x.numel() * sizeof(float), cudaMemcpyDefault), "copying");
    for (int64_t i = 0; i < out.numel(); ++i) data<float>(out)[i] += 1;
    return out;
}

Tensor device_zero(const Tensor& x) {
    AtenTensorHandle made;
    const Layout layout(x);
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(layout.dim, layout.size, layout.stride, aoti_torch_dtype_float32(),
                                                    aoti_torch_device_type_cuda(), 0, &made));
    Tensor out(made);
    const int64_t n = x.numel();
    if (n > 0) add_one<<<blocks_of(n), 256, 0, stream()>>>(data<const float>(x), data<float>(out), n);
    launched();
    return out;
}

OPWRIGHT_KERNEL(no_stream, CUDA, no_stream);
OPWRIGHT_KERNEL(own_stream, CUDA, own_stream);
OPWRIGHT_KERNEL(waits, CUDA, waits);
OPWRIGHT_KERNEL(missing_sync, CUDA, missing_sync);
OPWRIGHT_KERNEL(shared_race, CUDA, shared_race);
OPWRIGHT_KERNEL(divergent_barrier, CUDA, divergent_barrier);
OPWRIGHT_KERNEL(int_overflow, CUDA, int_overflow);
OPWRIGHT_KERNEL(unsigned_count, CUDA, unsigned_count);
OPWRIGHT_KERNEL(index_in_float, CUDA, index_in_float);
OPWRIGHT_KERNEL(count_in_float, CUDA, count_in_float);
OPWRIGHT_KERNEL(no_bounds_check, CUDA, no_bounds_check);
OPWRIGHT_KERNEL(reads_past_end, CUDA, reads_past_end);
OPWRIGHT_KERNEL(unwritten, CUDA, unwritten);
OPWRIGHT_KERNEL(half_sums, CUDA, half_sums);
OPWRIGHT_KERNEL(unchecked_launch, CUDA, unchecked_launch);
OPWRIGHT_KERNEL(misaligned_vector, CUDA, misaligned_vector);
OPWRIGHT_KERNEL(whole_blocks, CUDA, whole_blocks);
OPWRIGHT_KERNEL(grid_too_large, CUDA, grid_too_large);
OPWRIGHT_KERNEL(block_order, CUDA, block_order);
OPWRIGHT_KERNEL(kept_sum, CUDA, kept_sum);
OPWRIGHT_KERNEL(result_on_cpu, CUDA, result_on_cpu);
OPWRIGHT_KERNEL(device_zero, CUDA, device_zero);
