// The passes of a dtype, each of which is compiled by itself.
#pragma once

#include <algorithm>
#include <mutex>
#include <unordered_map>

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

inline int multiprocessors() {
    static const int count = [] {
        int found = 0;
        const int device = ow_inner::OnDevice::current().index;
        ow_inner::cuda_check(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device),
                             "asking the device");
        return found;
    }();
    return count;
}

// How many blocks of a kernel a multiprocessor holds.
inline int held_at_once(const void* kernel) {
    static std::mutex mutex;
    static std::unordered_map<const void*, int> known;
    const std::lock_guard<std::mutex> lock(mutex);
    int& blocks = known[kernel];
    if (blocks == 0) {
        ow_inner::cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 256, 0),
                             "asking how many blocks fit");
        blocks = std::max(blocks, 1);
    }
    return blocks;
}

}  // namespace conv_bn

#pragma GCC visibility pop
