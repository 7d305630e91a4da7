// Loads that nothing waits for before they are used. What stands for a load that is not made is in its registers first:
// said in PTX, since the compiler would load elsewhere, and move, and so wait.
#pragma once

#include "pattern.h"

namespace graphs {

template <class T>
using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

#define OPWRIGHT_LOAD(KIND, MOVE, LOAD)                                                           \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; " MOVE " %0, %3; @p " LOAD " %0, [%1]; }" \
                 : "=&" KIND(bits)                                                                \
                 : "l"(from), "r"(static_cast<int>(is)), KIND(other))

// The bits of a number of 2, 4 or 8 bytes, or `other`. `once`: nobody reads it again, so that it may leave the caches.
template <bool once, class T>
__device__ Bits<T> bits_if(const T* from, bool is, Bits<T> other) {
    Bits<T> bits;
    if constexpr (sizeof(T) == 8 && once)
        OPWRIGHT_LOAD("l", "mov.b64", "ld.global.cs.u64");
    else if constexpr (sizeof(T) == 8)
        OPWRIGHT_LOAD("l", "mov.b64", "ld.global.u64");
    else if constexpr (sizeof(T) == 4 && once)
        OPWRIGHT_LOAD("r", "mov.b32", "ld.global.cs.u32");
    else if constexpr (sizeof(T) == 4)
        OPWRIGHT_LOAD("r", "mov.b32", "ld.global.u32");
    else if constexpr (once)
        OPWRIGHT_LOAD("r", "mov.b32", "ld.global.cs.u16");
    else
        OPWRIGHT_LOAD("r", "mov.b32", "ld.global.u16");
    return bits;
}

#undef OPWRIGHT_LOAD

// An index, or `other`.
template <class I>
__device__ I index_if(const I* from, bool is, I other) {
    return static_cast<I>(bits_if<true>(from, is, static_cast<Bits<I>>(other)));
}

// What a number of T says, from its bits.
template <class T>
__device__ Compute<T> of_bits(Bits<T> bits) {
    if constexpr (std::is_same_v<T, double>) {
        return __longlong_as_double(static_cast<long long>(bits));
    } else if constexpr (std::is_same_v<T, float>) {
        return __uint_as_float(bits);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
        return __uint_as_float(bits << 16);
    } else {
        return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
    }
}

template <class T>
__device__ Bits<T> bits_of_one() {
    if constexpr (std::is_same_v<T, double>) {
        return 0x3ff0000000000000u;
    } else {
        return std::is_same_v<T, float> ? 0x3f800000u : std::is_same_v<T, BFloat16> ? 0x3f80u : 0x3c00u;
    }
}

// V features of a neighbour, as they were read: 16 bytes at once, or one number. They become numbers where they are
// used; half precisions two from a word.
template <class T, int V>
struct Near {
    using C = Compute<T>;
    static constexpr bool whole = sizeof(T) * V == 16;
    std::conditional_t<whole, uint4, Bits<T>> raw;

    // Zeros unless `is`.
    __device__ void read_if(const void* from, bool is) {
        if constexpr (whole) {
            asm volatile(
                "{ .reg .pred p; setp.ne.b32 p, %5, 0;"
                " mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
                " @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                : "=&r"(raw.x), "=&r"(raw.y), "=&r"(raw.z), "=&r"(raw.w)
                : "l"(from), "r"(static_cast<int>(is)));
        } else {
            raw = bits_if<false>(static_cast<const T*>(from), is, 0);
        }
    }

    __device__ C at(int i) const {
        if constexpr (!whole) {
            return of_bits<T>(raw);
        } else {
            const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
            if constexpr (std::is_same_v<T, float>) return __uint_as_float(words[i]);
            if constexpr (std::is_same_v<T, double>)
                return __hiloint2double(static_cast<int>(words[2 * i + 1]), static_cast<int>(words[2 * i]));
            const uint32_t word = words[i / 2];
            if constexpr (std::is_same_v<T, BFloat16>) return __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
            return __half2float(__ushort_as_half(static_cast<unsigned short>(i % 2 ? word >> 16 : word)));
        }
    }
};

template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
    T at[V];
};

// Written, and not soon read: what is read again and again shall stay in the cache instead.
template <class T, int V>
__device__ void put(T* to, const Pack<T, V>& from) {
    if constexpr (sizeof(T) * V == 16)
        __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
    else
        *reinterpret_cast<Pack<T, V>*>(to) = from;
}

}  // namespace graphs
