// What PyTorch is told of convolutions on the CPU.
#pragma once

#include <dlfcn.h>

#include <cstdint>

#pragma GCC visibility push(hidden)

namespace conv_bn {

// The settings in force, as settings.py numbers them. PyTorch's stable ABI does not tell, so its own functions are
// looked up; -1 where one is missing, and then Python has to be asked.
inline int64_t settings_in_force() {
    struct Context;
    using Asks = bool (*)(const Context*);
    const auto find = [](const char* name) { return dlsym(RTLD_DEFAULT, name); };
    static const auto context = reinterpret_cast<const Context* (*)()>(find("_ZN2at13globalContextEv"));
    static const auto enabled = reinterpret_cast<Asks>(find("_ZNK2at7Context17userEnabledMkldnnEv"));
    static const auto deterministic = reinterpret_cast<Asks>(find("_ZNK2at7Context19deterministicMkldnnEv"));
    static const auto steady = reinterpret_cast<Asks>(find("_ZNK2at7Context23deterministicAlgorithmsEv"));
    static const auto precision = reinterpret_cast<int (*)(const Context*, int, int)>(
        find("_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE"));
    if (!context || !enabled || !deterministic || !steady || !precision) return -1;
    constexpr int mkldnn = 2, convolution = 1, tf32 = 2, bf16 = 3;
    const Context* const now = context();
    const int rounded = precision(now, mkldnn, convolution);
    return 16 * enabled(now) + 32 * (deterministic(now) || steady(now)) + 64 * (rounded == tf32) +
           128 * (rounded == bf16);
}

}  // namespace conv_bn

#pragma GCC visibility pop
