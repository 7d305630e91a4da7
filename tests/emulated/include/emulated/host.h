// CUDA's runtime, as far as launches ask it: one H200 that has done its work when a launch returns.
#pragma once

#include <emulated/threads.h>

#include <map>
#include <mutex>
#include <utility>

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorLaunchOutOfResources = 701,
    cudaErrorCooperativeLaunchTooLarge = 720,
    cudaErrorNotSupported = 801,
    cudaErrorInvalidClusterSize = 912,
};
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0 };
enum cudaLaunchAttributeID { cudaLaunchAttributeCooperative = 2, cudaLaunchAttributeClusterDimension = 4 };
using cudaStream_t = struct CUstream_st*;

struct cudaFuncAttributes {
    size_t sharedSizeBytes;
    int maxDynamicSharedSizeBytes, maxThreadsPerBlock;
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int cooperative;
        struct {
            unsigned x, y, z;
        } clusterDim;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    unsigned numAttrs;
};

namespace emulated {

constexpr int without_asking = 48 << 10;

// A kernel whose parameters are known: how to call it with the arguments of a launch.
struct Kernel {
    void (*call)(const void* kernel, void** arguments) = nullptr;
    int shared = without_asking;  // dynamic, at most
};
inline std::map<const void*, Kernel>& kernels() {
    static std::map<const void*, Kernel> all;
    return all;
}
inline std::recursive_mutex& turn() {
    static std::recursive_mutex one;
    return one;
}

template <class... P, size_t... I>
void call(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::decay_t<P>*>(arguments[I])...);
}
// Remembers a kernel, which a launch knows by its address alone.
template <class... P>
void remember(void (*kernel)(P...)) {
    const std::lock_guard<std::recursive_mutex> mine(turn());
    kernels()[reinterpret_cast<const void*>(kernel)].call = [](const void* it, void** arguments) {
        call(reinterpret_cast<void (*)(P...)>(const_cast<void*>(it)), arguments, std::index_sequence_for<P...>());
    };
}

inline cudaError_t& last_error() {
    static thread_local cudaError_t last = cudaSuccess;
    return last;
}
inline cudaError_t told(cudaError_t error) {
    if (error != cudaSuccess) last_error() = error;
    return error;
}

// The seed of the order of blocks and threads; 0: as they are numbered.
inline uint64_t seed() {
    const char* const said = std::getenv("EMULATED_SEED");
    return said ? std::strtoull(said, nullptr, 10) : 0;
}

}  // namespace emulated

inline cudaError_t cudaGetLastError() { return std::exchange(emulated::last_error(), cudaSuccess); }
inline const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorInvalidConfiguration ? "invalid configuration argument" : "invalid argument";
}
inline const char* cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorInvalidConfiguration ? "cudaErrorInvalidConfiguration" : "cudaErrorInvalidValue";
}
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
        case cudaDevAttrMultiProcessorCount:
            return *value = 132, cudaSuccess;
        case cudaDevAttrL2CacheSize:
            return *value = 60 << 20, cudaSuccess;
        case cudaDevAttrComputeCapabilityMajor:
            return *value = 9, cudaSuccess;
        case cudaDevAttrComputeCapabilityMinor:
            return *value = 0, cudaSuccess;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            return *value = int(emulated::most_shared), cudaSuccess;
    }
    return emulated::told(cudaErrorInvalidValue);
}
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t) {
    return *blocks = 2048 / threads, cudaSuccess;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* about, const void* kernel) {
    const std::lock_guard<std::recursive_mutex> mine(emulated::turn());
    return *about = {0, emulated::kernels()[kernel].shared, int(emulated::most_threads)}, cudaSuccess;
}
inline cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
    const std::lock_guard<std::recursive_mutex> mine(emulated::turn());
    if (value < 0 || size_t(value) > emulated::most_shared) return emulated::told(cudaErrorInvalidValue);
    return emulated::kernels()[kernel].shared = value, cudaSuccess;
}

// Runs the kernel, and raises what goes wrong in it.
inline cudaError_t cudaLaunchKernel(const void* kernel, const dim3& grid, const dim3& block, void** arguments,
                                    size_t shared, cudaStream_t) {
    const std::lock_guard<std::recursive_mutex> mine(emulated::turn());
    const emulated::Kernel found = emulated::kernels()[kernel];
    const size_t threads = size_t(block.x) * block.y * block.z;
    if (found.call == nullptr) return emulated::told(cudaErrorInvalidDeviceFunction);
    if (shared > size_t(found.shared)) return emulated::told(cudaErrorInvalidValue);
    if (threads == 0 || threads > emulated::most_threads || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
        grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
        return emulated::told(cudaErrorInvalidConfiguration);
    emulated::Machine::get().run(grid, block, shared, emulated::seed(), [&] { found.call(kernel, arguments); });
    return cudaSuccess;
}
// Blocks that wait for each other; in clusters they know each other's memory, which is not done here.
inline cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
    const std::lock_guard<std::recursive_mutex> mine(emulated::turn());
    const emulated::Kernel found = emulated::kernels()[kernel];
    const dim3 grid = config->gridDim, block = config->blockDim;
    const size_t threads = size_t(block.x) * block.y * block.z;
    if (config->numAttrs != 1) return emulated::told(cudaErrorNotSupported);
    if (found.call == nullptr) return emulated::told(cudaErrorInvalidDeviceFunction);
    if (config->dynamicSmemBytes > size_t(found.shared)) return emulated::told(cudaErrorInvalidValue);
    if (uint64_t(grid.x) * grid.y * grid.z * threads > 132 * 2048)
        return emulated::told(cudaErrorCooperativeLaunchTooLarge);
    emulated::Machine::get().run_together(grid, block, config->dynamicSmemBytes, emulated::seed(),
                                          [&] { found.call(kernel, arguments); });
    return cudaSuccess;
}
