// The passes of a dtype, each of which is compiled by itself.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "passes.h"

#pragma GCC visibility push(hidden)

namespace conv_bn {

struct Passes {
    // The moments of parts of y, `count` of them.
    Tensor (*statistics)(const Planes& planes, const void* y, int& count);
    void (*moments)(const Tensor& parts, int count, int64_t channels, void* mean, void* var, void* values, bool raw);
    void (*apply)(const Apply& q);
    void (*reduce)(const Gradient& q);
    void (*back)(const Gradient& q);
    void (*repair)(const Gradient& q, const Convolution& c);
    // All of a forward, or of a gradient, in one launch; false where that cannot be, and nothing was done then.
    bool (*normalise)(const Apply& q, void* mean, void* var);
    bool (*differentiate)(const Gradient& q);
};

Passes float_passes();
Passes double_passes();
Passes half_passes();
Passes bfloat16_passes();

inline Passes passes_of(DType dtype) {
    return dtype == DType::Double     ? double_passes()
           : dtype == DType::Half     ? half_passes()
           : dtype == DType::BFloat16 ? bfloat16_passes()
                                      : float_passes();
}

// Of the current device.
inline int multiprocessors() {
    int found = 0;
    ow_inner::cuda_check(
        cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, ow_inner::OnDevice::current().index),
        "asking the device");
    return found;
}

// What a multiprocessor of the current device has for a kernel: how many blocks of so many threads it holds, and how
// much shared memory beside the kernel's own where there is one, which launches there may ask for from now on.
struct Room {
    int blocks = 0;
    int64_t shared = 0;
};
inline Room room_of(const void* kernel, int block) {
    static std::mutex mutex;
    static std::map<std::pair<const void*, int>, Room> known;
    const std::lock_guard<std::mutex> lock(mutex);
    Room& room = known[{kernel, ow_inner::OnDevice::current().index}];
    if (room.blocks > 0) return room;
    int blocks = 0;
    ow_inner::cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, block, 0),
                         "asking how many blocks fit");
    return room = {std::max(blocks, 1), ow_inner::all_shared(kernel)};
}

}  // namespace conv_bn

#pragma GCC visibility pop
