#include "persist_single_backward.cuh"
#include "persist_single_forward.cuh"

namespace lltm::persist {
namespace {

// Fitted to the H200 at 8 and 64 batch rows.
template <int LN, int NR>
Kernel forward_kernel() {
    using P = Plan32<3, LN, NR, 1>;
    return {reinterpret_cast<const void*>(&forward32<LN, NR>),
            slice32,
            P::N,
            1,
            2048,
            1,
            threads32,
            4,
            [](int hidden) { return P::shared_bytes(hidden); },
            [](int hidden) { return 2.4 + 9.5e-6 * P::N * 3 * slice32 * hidden; }};
}

template <int LN, int NR, int C>
Kernel backward_kernel() {
    using P = Plan32<1, LN, NR, C>;
    return {reinterpret_cast<const void*>(&backward32<LN, NR, C>),
            slice32,
            P::N,
            C,
            2048,
            C,
            threads32,
            16,
            [](int hidden) { return P::shared_bytes(hidden); },
            [](int hidden) { return 3.4 + 10.8e-6 * P::N * 3 * slice32 * hidden; }};
}

}  // namespace

Table single_kernels(bool is_forward) {
    static const Kernel forward[] = {forward_kernel<2, 4>(), forward_kernel<2, 8>(), forward_kernel<4, 8>(),
                                     forward_kernel<8, 8>()};
    static const Kernel backward[] = {backward_kernel<2, 4, 1>(), backward_kernel<2, 8, 1>(),
                                      backward_kernel<4, 8, 2>(), backward_kernel<8, 8, 2>()};
    return is_forward ? Table{forward, sizeof forward / sizeof *forward}
                      : Table{backward, sizeof backward / sizeof *backward};
}

}  // namespace lltm::persist
