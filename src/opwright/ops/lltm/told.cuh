// What ow.explain says of a call: the path, why, and the room on chip.
#pragma once

#include <cstdio>

#include "persist.cuh"

namespace lltm::persist {

template <class... A>
std::string written(const char* format, A... values) {
    char text[400];
    std::snprintf(text, sizeof text, format, values...);
    return text;
}

// The most hidden units whose weights fit on this GPU.
inline int most_units(const Table& table) {
    int most = 0;
    for (const Kernel& kernel : table)
        for (int hidden = kernel.most_hidden; hidden > most; hidden -= 8)
            if (slices_of(kernel, hidden) <= room(kernel, hidden)) most = hidden;
    return most;
}

// Multiprocessors, each with one block, and the shared memory that a block may have.
inline std::pair<int, int> budget() {
    int blocks = 0, bytes = 0;
    const int device = ow_inner::OnDevice::current().index;
    ow_inner::cuda_check(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device), "asking the device");
    ow_inner::cuda_check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                         "asking the device");
    return {blocks, bytes};
}

inline std::string unfit(const std::string& why) {
    return (told("persistent") ? "refused, as OPWRIGHT_LLTM says, since " : "looped, since ") + why;
}

// How a call goes through its steps, forward or backward.
template <class T>
std::string path(int64_t steps, int64_t batch, int64_t hidden, bool forward) {
    if constexpr (std::is_same_v<T, double>) return "looped, since double has no persistent kernel";
    if (steps * batch * hidden == 0) return "looped, over no element";
    if (told("looped")) return "looped, since OPWRIGHT_LLTM says so";
    const Table table = kernels<T>(forward);
    if (!is_small(steps, batch, hidden)) return unfit("a step of it is too large for the persistent kernels' offsets");
    const Choice best = cheapest(table, steps, batch, hidden);
    if (!best) {
        const int most = most_units(table);
        if (most == 0) return unfit("this GPU, or the code built for it, cannot run the persistent kernels");
        const auto [blocks, bytes] = budget();
        return unfit(
            written("the weights of %lld hidden units do not fit on chip: of at most %d here, in %d blocks of "
                    "%d KiB of shared memory and their registers",
                    static_cast<long long>(hidden), most, blocks, bytes / 1024));
    }
    const Kernel& kernel = *best.kernel;
    const int64_t groups = ceil_div(batch, kernel.rows), launches = ceil_div(groups, best.groups);
    const double loop = looped_microseconds(sizeof(T) == 2, steps, batch, hidden) / 1000,
                 all = best.microseconds / 1000;
    if (!told("persistent") && all >= loop)
        return written("looped, since that is thought to take %.3g ms and %lld launches of the persistent kernel %.3g",
                       loop, static_cast<long long>(launches), all);
    return written(
        "persistent in %lld launch%s of %lld blocks, of room for %d at once; a block has %d hidden units of %d batch "
        "rows, and %d KiB of shared memory; thought to take %.3g ms, and the loop %.3g",
        static_cast<long long>(launches), launches == 1 ? "" : "es",
        static_cast<long long>(std::min<int64_t>(best.groups, groups) * best.slices),
        room(kernel, static_cast<int>(hidden)), kernel.units, kernel.rows,
        kernel.shared(static_cast<int>(hidden)) / 1024, all, loop);
}

}  // namespace lltm::persist
