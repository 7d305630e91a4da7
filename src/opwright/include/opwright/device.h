// The GPU that a kernel runs on: its index, PyTorch's current stream on it, and what CUDA says of errors.
//
// A kernel that OPWRIGHT_KERNEL(op, CUDA, …) binds runs with the device of its first tensor as the current one; so
// stream(), empty() and every launch mean that device. This header is for .cpp files as well: a plain C launcher that
// knows no tensor is called with data<float>(x), sizes and stream().
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <opwright/tensor.h>

#include <cstdlib>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace ow_inner {

[[noreturn]] void cuda_fail(cudaError_t error, const char* what);

OPWRIGHT_INLINE void cuda_check(cudaError_t error, const char* what) {
    if (__builtin_expect(error != cudaSuccess, false)) cuda_fail(error, what);
}

// The current device and the operator that runs on it; the device before comes back at the end.
class OnDevice {
  public:
    const char* const op;
    int32_t index = 0;

    OnDevice(const char* op, AtenTensorHandle first) : op(op), outer_(top()) {
        int32_t type;
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(first, &type));
        static const int32_t cuda = aoti_torch_device_type_cuda();
        check(type == cuda, op, ": the first tensor must be on a GPU");
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(first, &index));
        int32_t current;
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_device_index(&current));
        if (current != index) TORCH_ERROR_CODE_CHECK(aoti_torch_create_device_guard(index, &guard_));
        // PyTorch's CUDA runtime differs from ours, which may have last seen another device.
        int seen;
        cuda_check(cudaGetDevice(&seen), "asking for the current device");
        if (seen != index) cuda_check(cudaSetDevice(index), "choosing the device");
        top() = this;
    }
    ~OnDevice() {
        top() = outer_;
        if (guard_) aoti_torch_delete_device_guard(guard_);
    }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

    static const OnDevice& current() {
        check(top() != nullptr, "this runs inside a kernel bound with OPWRIGHT_KERNEL(op, CUDA, …) only");
        return *top();
    }
    static const char* name() { return top() ? top()->op : "a kernel"; }

  private:
    static OnDevice*& top() {
        static thread_local OnDevice* device = nullptr;
        return device;
    }

    OnDevice* outer_;
    DeviceGuardHandle guard_ = nullptr;
};

// PyTorch's current stream. Its function lives in libtorch_cuda, which a CPU-only torch, against which this may have
// been linked, does not have: so it is looked up when first needed.
inline cudaStream_t current_stream(int32_t index) {
    using Get = AOTITorchError (*)(int32_t, void**);
    static const Get get = [] {
        constexpr const char* name = "aoti_torch_get_current_cuda_stream";
        void* found = dlsym(RTLD_DEFAULT, name);
        if (!found) {
            if (void* torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD)) found = dlsym(torch, name);
        }
        check(found, "this torch is built without CUDA: it has no ", name);
        return reinterpret_cast<Get>(found);
    }();
    void* stream;
    TORCH_ERROR_CODE_CHECK(get(index, &stream));
    return static_cast<cudaStream_t>(stream);
}

[[noreturn]] __attribute__((noinline, cold)) inline void cuda_fail(cudaError_t error, const char* what) {
    if (error == cudaErrorNoKernelImageForDevice) {
        int device = 0, major = 0, minor = 0;
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
        check(false, OnDevice::name(), ": the library has no code for GPU ", device, ", compute capability ", major,
              ".", minor, "; add it to OPWRIGHT_CUDA_ARCH and build again");
    }
    check(false, OnDevice::name(), ": ", what, " failed: ", cudaGetErrorString(error), " (", cudaGetErrorName(error),
          ")");
    std::abort();
}

// OPWRIGHT_CUDA_SYNC=1: every launch is waited for, so that an error is its own kernel's.
inline bool synchronous() {
    static const bool yes = [] {
        const char* said = std::getenv("OPWRIGHT_CUDA_SYNC");
        return said && *said && *said != '0';
    }();
    return yes;
}

inline void wait_for(cudaStream_t stream, const char* what) {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    cuda_check(cudaStreamIsCapturing(stream, &capturing), what);
    if (capturing == cudaStreamCaptureStatusNone) cuda_check(cudaStreamSynchronize(stream), what);
}

}  // namespace ow_inner

// The stream to launch on: PyTorch's current one.
inline cudaStream_t stream() { return ow_inner::current_stream(ow_inner::OnDevice::current().index); }

// After a launch of one's own, `kernel<<<…, stream()>>>(…); launched();`: an error of the launch is raised here. An
// error of the kernel itself shows later, in whatever waits for it; with OPWRIGHT_CUDA_SYNC=1 it shows here.
inline void launched() {
    ow_inner::cuda_check(cudaGetLastError(), "the launch");
    if (__builtin_expect(ow_inner::synchronous(), false)) ow_inner::wait_for(stream(), "the kernel");
}

}  // namespace opwright

#pragma GCC visibility pop
