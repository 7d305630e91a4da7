// The kernels there are in half precisions, and what a step of each is thought to take.
#pragma once

#include "persist_backward.cuh"
#include "persist_forward.cuh"

namespace lltm::persist {

// Fitted to the H200, in cycles: a poll that comes after the store, words from L2, products, gates, cluster.
constexpr double microseconds(double word, int words, int products, int items, bool cluster) {
    return (1060 + word * words * warps * 512 + 13.8 * products + 280 * items + (cluster ? 350 : 0)) / 1750;
}

template <class T, int HT, int KC, int NT>
constexpr Kernel forward_kernel() {
    return {reinterpret_cast<const void*>(&forward<T, HT, KC, NT>),
            16 * HT,
            8 * NT,
            1,
            warps * KC * 32,
            HT == 1 ? 2 : 1,
            threads,
            2,
            [](int) { return ForwardKernel<T, HT, KC, NT>::P::shared_bytes; },
            [](int) { return microseconds(0.06, KC * NT, 6 * HT * KC * NT, HT * NT, false); }};
}

template <class T, int HT, int SC, int NT, int C>
constexpr Kernel backward_kernel() {
    return {reinterpret_cast<const void*>(&backward<T, HT, SC, NT, C>),
            16 * HT,
            8 * NT,
            C,
            warps * C * SC * 16,
            C,
            threads,
            8,
            [](int) { return BackwardKernel<T, HT, SC, NT, C>::P::shared_bytes; },
            [](int) { return microseconds(0.02, 2 * SC * NT, 3 * C * HT * SC * NT, HT * NT, C > 1); }};
}

template <class T>
Table kernels(bool is_forward) {
    static const Kernel forward[] = {forward_kernel<T, 1, 1, 1>(), forward_kernel<T, 1, 2, 1>(),
                                     forward_kernel<T, 1, 3, 1>(), forward_kernel<T, 1, 4, 1>(),
                                     forward_kernel<T, 1, 8, 1>(), forward_kernel<T, 2, 2, 2>(),
                                     forward_kernel<T, 2, 4, 2>()};
    static const Kernel backward[] = {backward_kernel<T, 1, 2, 1, 1>(), backward_kernel<T, 1, 3, 1, 1>(),
                                      backward_kernel<T, 1, 2, 1, 2>(), backward_kernel<T, 1, 2, 1, 3>(),
                                      backward_kernel<T, 1, 4, 1, 2>(), backward_kernel<T, 1, 8, 1, 2>(),
                                      backward_kernel<T, 2, 2, 2, 2>(), backward_kernel<T, 2, 4, 2, 2>()};
    return is_forward ? Table{forward, sizeof forward / sizeof *forward}
                      : Table{backward, sizeof backward / sizeof *backward};
}

}  // namespace lltm::persist
