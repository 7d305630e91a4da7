// Between memory and blocks of numbers to compute with: any stride, half and bfloat16 from and to float.
#pragma once

#include <opwright/dispatch.h>
#include <opwright/simd.h>

namespace opwright __attribute__((visibility("hidden"))) {
    namespace detail {

    template <class C, class T>
    OPWRIGHT_INLINE C widen(T x) {
        if constexpr (std::is_same_v<T, BFloat16>) {
            return bits<float>(static_cast<uint32_t>(x.x) << 16);
        } else {
            return static_cast<C>(x);
        }
    }

    template <class T, class C>
    OPWRIGHT_INLINE T narrow(C x) {
        if constexpr (std::is_same_v<T, BFloat16>) {
            // To nearest, ties to even; NaN stays one whatever its low bits.
            const uint32_t u = bits<uint32_t>(x);
            const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
            return BFloat16(static_cast<uint16_t>(x != x ? 0x7fc0 : rounded), BFloat16::from_bits());
        } else {
            return static_cast<T>(x);
        }
    }

    // n elements of type T, `stride` bytes apart, into a block of C.
    template <class T, class C>
    struct Load {
        static OPWRIGHT_INLINE void run(char* block, const char* from, int64_t stride, int64_t n) {
            C* to = reinterpret_cast<C*>(block);
            if (stride == sizeof(T)) {
                const T* x = reinterpret_cast<const T*>(from);
                OPWRIGHT_INDEPENDENT
                for (int64_t i = 0; i < n; ++i) to[i] = widen<C>(x[i]);
            } else if (stride == 0) {
                const C x = widen<C>(*reinterpret_cast<const T*>(from));
                for (int64_t i = 0; i < n; ++i) to[i] = x;
            } else {
                OPWRIGHT_INDEPENDENT
                for (int64_t i = 0; i < n; ++i) to[i] = widen<C>(*reinterpret_cast<const T*>(from + i * stride));
            }
        }
    };

    template <class T, class C>
    struct Store {
        static OPWRIGHT_INLINE void run(char* to, const char* block, int64_t stride, int64_t n) {
            const C* from = reinterpret_cast<const C*>(block);
            if (stride == sizeof(T)) {
                T* x = reinterpret_cast<T*>(to);
                OPWRIGHT_INDEPENDENT
                for (int64_t i = 0; i < n; ++i) x[i] = narrow<T>(from[i]);
            } else {
                for (int64_t i = 0; i < n; ++i) *reinterpret_cast<T*>(to + i * stride) = narrow<T>(from[i]);
            }
        }
    };

#if defined(__x86_64__)

    // Compilers do not make vectors of half conversions by themselves; the processor converts eight at a time.
    struct HalfF16C {
        typedef short Halves __attribute__((vector_size(16)));
        typedef float Floats __attribute__((vector_size(32)));

        OPWRIGHT_AVX2 static void load(char* block, const char* from, int64_t stride, int64_t n) {
            for (int64_t i = 0; i < n; i += 8) {
                const int64_t m = n - i < 8 ? n - i : 8;
                Halves h = {};
                if (stride == 2 && m == 8) {
                    std::memcpy(&h, from + i * 2, 16);
                } else {
                    short one[8] = {};
                    for (int64_t k = 0; k < m; ++k) std::memcpy(&one[k], from + (i + k) * stride, 2);
                    std::memcpy(&h, one, 16);
                }
                const Floats f = __builtin_ia32_vcvtph2ps256(h);
                std::memcpy(block + i * 4, &f, static_cast<size_t>(m) * 4);
            }
        }

        OPWRIGHT_AVX2 static void store(char* to, const char* block, int64_t stride, int64_t n) {
            for (int64_t i = 0; i < n; i += 8) {
                const int64_t m = n - i < 8 ? n - i : 8;
                Floats f = {};
                std::memcpy(&f, block + i * 4, static_cast<size_t>(m) * 4);
                const Halves h = __builtin_ia32_vcvtps2ph256(f, 0);
                if (stride == 2) {
                    std::memcpy(to + i * 2, &h, static_cast<size_t>(m) * 2);
                } else {
                    short one[8];
                    std::memcpy(one, &h, 16);
                    for (int64_t k = 0; k < m; ++k) std::memcpy(to + (i + k) * stride, &one[k], 2);
                }
            }
        }
    };

#endif

    using LoadBlock = void (*)(char* block, const char* from, int64_t stride, int64_t n);
    using StoreBlock = void (*)(char* to, const char* block, int64_t stride, int64_t n);

    struct Conversion {
        LoadBlock load;
        StoreBlock store;
    };

    template <class T, class C>
    Conversion conversion_for() {
#if defined(__x86_64__)
        if constexpr (std::is_same_v<T, Half> && std::is_same_v<C, float>) {
            if (simd_level() != Simd::base) return {HalfF16C::load, HalfF16C::store};
        }
#endif
        return {best<Load<T, C>, char*, const char*, int64_t, int64_t>(),
                best<Store<T, C>, char*, const char*, int64_t, int64_t>()};
    }

    // How tensors of a dtype become blocks of C: as they are, or from and to half and bfloat16 when C is float.
    template <class C>
    Conversion conversion(DType dtype) {
        if (dtype == dtype_of<C>) return conversion_for<C, C>();
        if constexpr (std::is_same_v<C, float>) {
            if (dtype == DType::BFloat16) return conversion_for<BFloat16, float>();
            if (dtype == DType::Half) return conversion_for<Half, float>();
        }
        check(false, "map: a function of ", name(dtype_of<C>), " cannot take a tensor of ", name(dtype));
        return {};
    }

    }  // namespace detail
}  // namespace opwright
