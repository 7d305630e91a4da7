// What PyTorch is told of convolutions.
#pragma once

#include <dlfcn.h>

#include <cstdint>

#pragma GCC visibility push(hidden)

namespace conv_bn {

// The settings in force for this device, as settings.py numbers them. PyTorch's stable ABI does not tell, so its own
// functions are looked up; -1 where one is missing, and then nobody knows.
inline int64_t settings_in_force() {
    struct Context;
    using Asks = bool (*)(const Context*);
    const auto find = [](const char* name) { return dlsym(RTLD_DEFAULT, name); };
    static const auto context = reinterpret_cast<const Context* (*)()>(find("_ZN2at13globalContextEv"));
    static const auto steady = reinterpret_cast<Asks>(find("_ZNK2at7Context23deterministicAlgorithmsEv"));
    static const auto precision = reinterpret_cast<int (*)(const Context*, int, int)>(
        find("_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE"));
#ifdef OPWRIGHT_CUDA
    static const auto enabled = reinterpret_cast<Asks>(find("_ZNK2at7Context16userEnabledCuDNNEv"));
    static const auto benchmark = reinterpret_cast<Asks>(find("_ZNK2at7Context14benchmarkCuDNNEv"));
    static const auto deterministic = reinterpret_cast<Asks>(find("_ZNK2at7Context18deterministicCuDNNEv"));
    constexpr int backend = 1;
    if (!benchmark) return -1;
#else
    static const auto enabled = reinterpret_cast<Asks>(find("_ZNK2at7Context17userEnabledMkldnnEv"));
    static const auto deterministic = reinterpret_cast<Asks>(find("_ZNK2at7Context19deterministicMkldnnEv"));
    constexpr int backend = 2;
#endif
    if (!context || !enabled || !deterministic || !steady || !precision) return -1;
    constexpr int convolution = 1, tf32 = 2, bf16 = 3;
    const Context* const now = context();
    const int rounded = precision(now, backend, convolution);
    const bool same = deterministic(now) || steady(now);
#ifdef OPWRIGHT_CUDA
    return 1 * enabled(now) + 2 * benchmark(now) + 4 * same + 8 * (rounded == tf32);
#else
    return 16 * enabled(now) + 32 * same + 64 * (rounded == tf32) + 128 * (rounded == bf16);
#endif
}

}  // namespace conv_bn

#pragma GCC visibility pop
