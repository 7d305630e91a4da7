// Which persistent kernel a call takes, or none, and its launches.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "layer.cuh"
#include "persist.h"
#include "replay.cuh"

namespace lltm::persist {

template <class T>
using Element = std::conditional_t<sizeof(T) == 2, uint16_t, T>;

template <class T>
Table kernels(bool forward) {
    if constexpr (std::is_same_v<T, Half>) return half_kernels(forward);
    if constexpr (std::is_same_v<T, BFloat16>) return bfloat16_kernels(forward);
    if constexpr (std::is_same_v<T, float>) return single_kernels(forward);
    return {};
}

// Blocks of a kernel that the device runs at once, when it has nothing else to run.
inline int ask_room(const Kernel& kernel, int shared, int device) {
    int most = 0, sms = 0, cooperative = 0, blocks = 0;
    cudaFuncAttributes about;
    const auto attribute = [&](int& to, cudaDeviceAttr which) {
        ow_inner::cuda_check(cudaDeviceGetAttribute(&to, which, device), "asking the device");
    };
    attribute(most, cudaDevAttrMaxSharedMemoryPerBlockOptin), attribute(sms, cudaDevAttrMultiProcessorCount);
    attribute(cooperative, cudaDevAttrCooperativeLaunch);
    if (!cooperative || shared > most) return 0;
    ow_inner::cuda_check(cudaFuncGetAttributes(&about, kernel.code), "asking for a kernel");
    // What the code was compiled for: older code for a newer device has no clusters.
    if (about.ptxVersion < (kernel.cluster > 1 ? 90 : 80)) return 0;
    // All there is, once: what a call asks for would be another thread's limit.
    const int all = most - static_cast<int>(about.sharedSizeBytes);
    ow_inner::cuda_check(cudaFuncSetAttribute(kernel.code, cudaFuncAttributeMaxDynamicSharedMemorySize, all),
                         "asking for shared memory");
    const size_t bytes = static_cast<size_t>(shared);
    if (kernel.cluster == 1) {
        ow_inner::cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel.code, kernel.threads, bytes),
                             "asking for room");
        return blocks * sms;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(kernel.cluster));
    config.blockDim = dim3(static_cast<unsigned>(kernel.threads)), config.dynamicSmemBytes = bytes;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(kernel.cluster), 1, 1};
    config.attrs = &cluster, config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&blocks, kernel.code, &config) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return blocks * kernel.cluster;
}

// To load a kernel is no part of a graph that is being captured.
struct OutsideCapture {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    OutsideCapture() { ow_inner::cuda_check(cudaThreadExchangeStreamCaptureMode(&mode), "asking for room"); }
    ~OutsideCapture() { cudaThreadExchangeStreamCaptureMode(&mode); }
};

inline int room(const Kernel& kernel, int hidden) {
    static std::mutex turn;
    static std::map<std::tuple<int, const void*, int>, int> known;
    const int shared = kernel.shared(hidden), device = ow_inner::OnDevice::current().index;
    const std::lock_guard<std::mutex> mine(turn);
    const auto found = known.find({device, kernel.code, shared});
    if (found != known.end()) return found->second;
    const OutsideCapture outside;
    return known[{device, kernel.code, shared}] = ask_room(kernel, shared, device);
}

struct Choice {
    const Kernel* kernel = nullptr;  // or none: the looped path
    int slices = 0, groups = 0;      // groups: of batch rows, in one launch
    double microseconds = 0;
    explicit operator bool() const { return kernel != nullptr; }
};

inline int64_t slices_of(const Kernel& kernel, int64_t hidden) {
    return ceil_div(ceil_div(hidden, kernel.units), kernel.multiple) * kernel.multiple;
}

inline Choice cheapest(const Table& table, int64_t steps, int64_t batch, int64_t hidden) {
    Choice best;
    for (const Kernel& kernel : table) {
        if (hidden > kernel.most_hidden) continue;
        const int64_t slices = slices_of(kernel, hidden);
        const int64_t at_once = room(kernel, static_cast<int>(hidden)) / slices, groups = ceil_div(batch, kernel.rows);
        if (at_once == 0) continue;
        const int64_t launches = ceil_div(groups, at_once);
        const double start = 20, step = kernel.microseconds(static_cast<int>(hidden));
        const double all = static_cast<double>(launches) * (start + static_cast<double>(steps) * step);
        if (best && best.microseconds <= all) continue;
        best = {&kernel, static_cast<int>(slices), static_cast<int>(ceil_div(groups, launches)), all};
    }
    return best;
}

// What the looped path takes, fitted to the H200: the product and a kernel for the gates. Few steps are launched by the
// host at its own pace; many are a graph, which takes some time to make.
inline double looped_microseconds(bool half, int64_t steps, int64_t batch, int64_t hidden) {
    const double flops = 6.0 * static_cast<double>(batch) * static_cast<double>(hidden * hidden);
    const double step = half ? 6.4 + flops / 450e6 : 9 + flops / 31e6;
    if (steps < least_replayed) return static_cast<double>(steps) * std::max(24.0, step);
    return 400 + static_cast<double>(steps) * step;
}

// Whether OPWRIGHT_LLTM says that the path must be this one.
inline bool told(const char* path) {
    const char* const said = std::getenv("OPWRIGHT_LLTM");
    if (!said || !*said) return false;
    check(!std::strcmp(said, "looped") || !std::strcmp(said, "persistent"),
          "lltm: OPWRIGHT_LLTM must be looped or persistent, got ", said);
    return !std::strcmp(said, path);
}

// Offsets within a step have 32 bits.
inline bool is_small(int64_t steps, int64_t batch, int64_t hidden) {
    return hidden <= 1 << 20 && batch <= INT_MAX / (hidden * 8) && steps < INT_MAX / 2;
}

// The kernel for a call.
template <class T>
Choice choose(const Layer& layer, bool forward) {
    const int64_t steps = layer.steps(), B = layer.batch(), H = layer.hidden();
    const bool must = told("persistent");
    if (std::is_same_v<T, double> || steps * B * H == 0 || told("looped")) return {};
    const Choice best = is_small(steps, B, H) ? cheapest(kernels<T>(forward), steps, B, H) : Choice();
    check(best || !must, "lltm: the weights of ", H, " hidden units in ", name(dtype_of<T>),
          " do not fit on this GPU, or it cannot run as many blocks at once");
    return must || best.microseconds < looped_microseconds(sizeof(T) == 2, steps, B, H) ? best : Choice();
}

// Runs it. False where the device has no room now; nothing has then been done.
template <class Call>
bool run(const Choice& choice, const Layer& layer, Call call) {
    const Kernel& kernel = *choice.kernel;
    const Tensor weights = aten::contiguous(layer.weight_hh);
    call.weights = static_cast<decltype(call.weights)>(weights.const_data_ptr());
    call.steps = static_cast<int>(layer.steps()), call.batch = static_cast<int>(layer.batch());
    call.hidden = static_cast<int>(layer.hidden()), call.slices = choice.slices;
    call.reverse = layer.reverse, call.lengths = elements<const int64_t>(layer.lengths);
    const int64_t bytes = 2LL * choice.groups * choice.slices * kernel.units * kernel.rows * kernel.word_bytes;
    const Tensor exchange = empty({bytes}, DType::Byte);
    call.exchange = static_cast<uint4*>(exchange.mutable_data_ptr());
    const int groups = static_cast<int>(ceil_div(layer.batch(), kernel.rows));
    for (call.first_group = 0; call.first_group < groups; call.first_group += choice.groups) {
        ow_inner::cuda_check(cudaMemsetAsync(call.exchange, 0, static_cast<size_t>(bytes), stream()), "clearing");
        const int blocks = std::min(choice.groups, groups - call.first_group) * choice.slices;
        const Grid grid{blocks, static_cast<unsigned>(kernel.threads), static_cast<size_t>(kernel.shared(call.hidden))};
        void* arguments[] = {&call};
        if (ow_inner::launch_together(kernel.code, grid, kernel.cluster, arguments)) continue;
        check(call.first_group == 0, "lltm: the device has no room for the second part of the batch");
        check(!told("persistent"), "lltm: the device has no room for a persistent kernel now");
        return false;
    }
    return true;
}

}  // namespace lltm::persist
