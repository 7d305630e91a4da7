// Between memory and blocks of numbers to compute with: any stride, half and bfloat16 from and to float.
#pragma once

#include <opwright/dispatch.h>
#include <opwright/simd.h>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace ow_inner {

// Calls body with a zero of an integer type as wide as an element: to move elements one need not know what they are.
template <class Body>
void with_width(int64_t bytes, const Body& body) {
    struct Wide {
        uint64_t half[2];
    };
    switch (bytes) {
        case 1:
            return body(uint8_t());
        case 2:
            return body(uint16_t());
        case 4:
            return body(uint32_t());
        case 8:
            return body(uint64_t());
        case 16:
            return body(Wide());
        default:
            check(false, "an element must have 1, 2, 4, 8 or 16 bytes, got ", bytes);
    }
}

// Rows of elements, `stride` bytes apart and with `step` bytes from row to row, side by side.
void gather(char* to, const char* from, int64_t stride, int64_t bytes, int64_t n, int64_t step = 0, int64_t rows = 1);

void scatter(char* to, const char* from, int64_t stride, int64_t bytes, int64_t n, int64_t step, int64_t rows);

// A matrix whose columns are contiguous, `stride` bytes apart, into rows that are, `pitch` elements apart. Reading
// along the columns uses each cache line whole.
void transpose(char* to, int64_t pitch, const char* from, int64_t stride, int64_t bytes, int64_t rows, int64_t n);

// Between elements side by side and numbers to compute with.
struct Conversion {
    void (*widen)(char* numbers, const char* elements, int64_t n);
    void (*narrow)(char* elements, const char* numbers, int64_t n);
};

struct WidenBFloat16 {
    static OPWRIGHT_INLINE void run(char* numbers, const char* elements, int64_t n) {
        const uint16_t* from = reinterpret_cast<const uint16_t*>(elements);
        uint32_t* to = reinterpret_cast<uint32_t*>(numbers);
        OPWRIGHT_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) to[i] = static_cast<uint32_t>(from[i]) << 16;
    }
};

// To nearest, ties to even; NaN stays one whatever its low bits.
struct NarrowBFloat16 {
    static OPWRIGHT_INLINE void run(char* elements, const char* numbers, int64_t n) {
        const uint32_t* from = reinterpret_cast<const uint32_t*>(numbers);
        uint16_t* to = reinterpret_cast<uint16_t*>(elements);
        OPWRIGHT_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) {
            const uint32_t u = from[i];
            const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
            to[i] = static_cast<uint16_t>((u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
        }
    }
};

void widen_half(char* numbers, const char* elements, int64_t n);

void narrow_half(char* elements, const char* numbers, int64_t n);

#if defined(__x86_64__)

// Compilers do not make vectors of half conversions by themselves; the processor converts eight at a time.
typedef short Halves __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(32)));

OPWRIGHT_AVX2 inline void widen_half_f16c(char* numbers, const char* elements, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        Halves h;
        std::memcpy(&h, elements + i * 2, sizeof(h));
        const Floats f = __builtin_ia32_vcvtph2ps256(h);
        std::memcpy(numbers + i * 4, &f, sizeof(f));
    }
    if (i == n) return;
    Halves h = {};
    std::memcpy(&h, elements + i * 2, static_cast<size_t>(n - i) * 2);
    const Floats f = __builtin_ia32_vcvtph2ps256(h);
    std::memcpy(numbers + i * 4, &f, static_cast<size_t>(n - i) * 4);
}

OPWRIGHT_AVX2 inline void narrow_half_f16c(char* elements, const char* numbers, int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        Floats f;
        std::memcpy(&f, numbers + i * 4, sizeof(f));
        const auto h = __builtin_ia32_vcvtps2ph256(f, 0);
        std::memcpy(elements + i * 2, &h, sizeof(h));
    }
    if (i == n) return;
    Floats f = {};
    std::memcpy(&f, numbers + i * 4, static_cast<size_t>(n - i) * 4);
    const auto h = __builtin_ia32_vcvtps2ph256(f, 0);
    std::memcpy(elements + i * 2, &h, static_cast<size_t>(n - i) * 2);
}

#endif

// How tensors of a dtype become numbers: as they are, or from and to half and bfloat16 when the numbers are float.
Conversion conversion(DType dtype, DType numbers);

}  // namespace ow_inner
#ifndef OPWRIGHT_APART

namespace ow_inner {

OPWRIGHT_NOINLINE void gather(char* to, const char* from, int64_t stride, int64_t bytes, int64_t n, int64_t step,
                              int64_t rows) {
    if (stride == bytes && n * bytes >= 64) {
        for (int64_t r = 0; r < rows; ++r) {
            std::memcpy(to + r * n * bytes, from + r * step, static_cast<size_t>(n * bytes));
        }
        return;
    }
    with_width(bytes, [=](auto zero) {
        using T = decltype(zero);
        T* __restrict t = reinterpret_cast<T*>(to);
        for (int64_t r = 0; r < rows; ++r, t += n) {
            const char* row = from + r * step;
            if (stride == 0) {
                std::fill_n(t, n, *reinterpret_cast<const T*>(row));
                continue;
            }
            for (int64_t i = 0; i < n; ++i) t[i] = *reinterpret_cast<const T*>(row + i * stride);
        }
    });
}

OPWRIGHT_NOINLINE void scatter(char* to, const char* from, int64_t stride, int64_t bytes, int64_t n, int64_t step,
                               int64_t rows) {
    with_width(bytes, [=](auto zero) {
        using T = decltype(zero);
        const T* f = reinterpret_cast<const T*>(from);
        for (int64_t r = 0; r < rows; ++r, f += n) {
            for (int64_t i = 0; i < n; ++i) *reinterpret_cast<T*>(to + r * step + i * stride) = f[i];
        }
    });
}

OPWRIGHT_NOINLINE void transpose(char* to, int64_t pitch, const char* from, int64_t stride, int64_t bytes, int64_t rows,
                                 int64_t n) {
    with_width(bytes, [=](auto zero) {
        using T = decltype(zero);
        T* t = reinterpret_cast<T*>(to);
        for (int64_t j = 0; j < n; ++j) {
            const T* column = reinterpret_cast<const T*>(from + j * stride);
            for (int64_t r = 0; r < rows; ++r) t[r * pitch + j] = column[r];
        }
    });
}

OPWRIGHT_NOINLINE void widen_half(char* numbers, const char* elements, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        reinterpret_cast<float*>(numbers)[i] = static_cast<float>(reinterpret_cast<const Half*>(elements)[i]);
    }
}

OPWRIGHT_NOINLINE void narrow_half(char* elements, const char* numbers, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        reinterpret_cast<Half*>(elements)[i] = static_cast<Half>(reinterpret_cast<const float*>(numbers)[i]);
    }
}

OPWRIGHT_NOINLINE Conversion conversion(DType dtype, DType numbers) {
    if (dtype == numbers) return {};
    if (dtype == DType::BFloat16 && numbers == DType::Float) {
        return {best<WidenBFloat16, char*, const char*, int64_t>(),
                best<NarrowBFloat16, char*, const char*, int64_t>()};
    }
#if defined(__x86_64__)
    const bool f16c = simd_level() != Simd::base;
    if (dtype == DType::Half && numbers == DType::Float && f16c) return {widen_half_f16c, narrow_half_f16c};
#endif
    if (dtype == DType::Half && numbers == DType::Float) return {widen_half, narrow_half};
    check(false, "map: a function of ", name(numbers), " cannot take a tensor of ", name(dtype));
    return {};
}

}  // namespace ow_inner

#endif

}  // namespace opwright

#pragma GCC visibility pop
