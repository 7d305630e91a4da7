// Small matrix products whose right side is used many times: it is packed once, and a tile of the result stays in
// registers. For loops over steps, which PyTorch's products, made for one large call, would serve badly.
#pragma once

#include <opwright/simd.h>

#pragma GCC visibility push(hidden)

namespace opwright {

// Vectors of T as wide as an instruction set's: 64 bytes for AVX-512, 32 for AVX2, 16 otherwise.
template <class T, int bytes>
struct Vectors {
    typedef T type __attribute__((vector_size(bytes)));
    static constexpr int lanes = bytes / sizeof(T);
    static constexpr int rows = bytes == 64 ? 8 : 4;  // of a tile that is 3 vectors wide and fits the registers
};

// sums[r] += a[r][0 … depth) · panel, where the panel holds `depth` rows of `width` vectors.
template <class V, int rows, int width, class T>
OPWRIGHT_INLINE void multiply(V (&sums)[rows][width], const T* const* a, const T* panel, int64_t depth) {
    const V* p = reinterpret_cast<const V*>(panel);
    for (int64_t k = 0; k < depth; ++k, p += width) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            const T x = a[r][k];
#pragma GCC unroll 4
            for (int v = 0; v < width; ++v) sums[r][v] += x * p[v];
        }
    }
}

// Runs Loop<bytes>::run(arguments…) for the widest vectors of the processor at hand.
namespace ow_inner {

template <template <int> class Loop, class... A>
auto widest() -> void (*)(A...) {
#if defined(__x86_64__)
    if (simd_level() == Simd::avx512) return run_avx512<Loop<64>, A...>;
    if (simd_level() == Simd::avx2) return run_avx2<Loop<32>, A...>;
#endif
    return run_base<Loop<16>, A...>;
}

}  // namespace ow_inner
}  // namespace opwright

#pragma GCC visibility pop
