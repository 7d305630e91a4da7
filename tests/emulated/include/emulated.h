// What a kernel for CUDA is compiled with to run on the CPU: CUDA's words, and opwright's device in the CPU's place.
// PyTorch's headers stand before the words: to them this is C++ as any other.
#pragma once

#include <dlfcn.h>
#include <emulated/device.h>
#include <emulated/faults.h>
#include <emulated/host.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/stableivalue_conversions.h>
#include <torch/csrc/stable/tensor.h>

#define OPWRIGHT_CUDA
#define __CUDACC__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

namespace emulated {

inline AOTITorchError first_index(AtenTensorHandle, int32_t* index) { return *index = 0, 0; }
inline AOTITorchError current_index(int32_t* index) { return *index = 0, 0; }
inline AOTITorchError no_stream(int32_t, void** stream) { return *stream = nullptr, 0; }

inline void* found(void* where, const char* name) {
    if (!std::strcmp(name, "aoti_torch_get_current_cuda_stream")) return reinterpret_cast<void*>(no_stream);
    return dlsym(where, name);
}

}  // namespace emulated

#define aoti_torch_device_type_cuda aoti_torch_device_type_cpu
#define aoti_torch_get_device_index emulated::first_index
#define aoti_torch_get_current_device_index emulated::current_index
#define dlsym emulated::found
