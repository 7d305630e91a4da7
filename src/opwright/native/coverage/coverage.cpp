// What a kernel that is compiled with -fsanitize-coverage=trace-pc,trace-cmp calls: which blocks ran, and what was
// compared with what. It is linked into the kernel's library, and compiled without these flags itself.

#include <cstdint>
#include <cstring>

namespace {

// Of one call: a block that ran, or a comparison with the operands that came nearest to each other.
struct Seen {
    std::uint64_t left, right;
    std::uint8_t ran, outcomes, near;
};

enum Outcome : std::uint8_t { less = 1, equal = 2, greater = 4, unordered = 8 };

constexpr std::uintptr_t places = 1u << 20;  // calls are four bytes long or more: enough for 4 MB of code

extern "C" {
extern const char __ehdr_start __attribute__((visibility("hidden")));  // where the library begins, says the linker
__attribute__((visibility("default"))) Seen opwright_coverage_1[places];
}

// Threads may write one place at once; they write the same, or what is as good.
inline Seen* at(const void* after) {
    const auto place = (reinterpret_cast<std::uintptr_t>(after) - reinterpret_cast<std::uintptr_t>(&__ehdr_start)) >> 2;
    return place < places ? opwright_coverage_1 + place : nullptr;
}

inline void compared(const void* after, std::uint8_t outcome, std::uint64_t apart, std::uint64_t a, std::uint64_t b) {
    Seen* seen = at(after);
    if (!seen) return;
    std::uint8_t near = 64;
    for (; apart; apart >>= 1) --near;
    seen->outcomes |= outcome;
    if (!seen->ran || near > seen->near) {
        seen->left = a;
        seen->right = b;
        seen->near = near;
    }
    seen->ran = 1;
}

template <typename T>
inline void whole(const void* after, T a, T b) {
    const auto wide_a = static_cast<std::uint64_t>(static_cast<std::int64_t>(a));
    const auto wide_b = static_cast<std::uint64_t>(static_cast<std::int64_t>(b));
    compared(after, a < b ? less : a == b ? equal : greater, a < b ? wide_b - wide_a : wide_a - wide_b, wide_a, wide_b);
}

// The place of a number among all numbers of its type, so that a difference counts the numbers between two.
inline std::uint64_t placed(double value) {
    std::uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits >> 63 ? ~bits : bits | 1ull << 63;
}

inline void real(const void* after, double a, double b) {
    std::uint64_t bits_a, bits_b;
    std::memcpy(&bits_a, &a, sizeof a);
    std::memcpy(&bits_b, &b, sizeof b);
    const std::uint64_t x = placed(a), y = placed(b);
    const std::uint8_t outcome = a < b ? less : a == b ? equal : a > b ? greater : unordered;
    const std::uint64_t apart = outcome == unordered ? ~0ull : outcome == equal ? 0 : x < y ? y - x : x - y;
    compared(after, outcome, apart, bits_a, bits_b);
}

}  // namespace

#define OPWRIGHT_HOOK extern "C" __attribute__((visibility("hidden"), noinline)) void
#define OPWRIGHT_HERE __builtin_return_address(0)
#define OPWRIGHT_WHOLE(bits, bytes)                                                                      \
    OPWRIGHT_HOOK __sanitizer_cov_trace_cmp##bytes(std::uint##bits##_t a, std::uint##bits##_t b) {       \
        whole(OPWRIGHT_HERE, static_cast<std::int##bits##_t>(a), static_cast<std::int##bits##_t>(b));    \
    }                                                                                                    \
    OPWRIGHT_HOOK __sanitizer_cov_trace_const_cmp##bytes(std::uint##bits##_t a, std::uint##bits##_t b) { \
        whole(OPWRIGHT_HERE, static_cast<std::int##bits##_t>(a), static_cast<std::int##bits##_t>(b));    \
    }

OPWRIGHT_WHOLE(8, 1)
OPWRIGHT_WHOLE(16, 2)
OPWRIGHT_WHOLE(32, 4)
OPWRIGHT_WHOLE(64, 8)

OPWRIGHT_HOOK __sanitizer_cov_trace_pc() {
    if (Seen* seen = at(OPWRIGHT_HERE)) seen->ran = 1;
}

OPWRIGHT_HOOK __sanitizer_cov_trace_cmpf(float a, float b) { real(OPWRIGHT_HERE, a, b); }
OPWRIGHT_HOOK __sanitizer_cov_trace_cmpd(double a, double b) { real(OPWRIGHT_HERE, a, b); }

// Its cases are blocks, which are counted as such; the nearest of them says where to go.
OPWRIGHT_HOOK __sanitizer_cov_trace_switch(std::uint64_t value, std::uint64_t* cases) {
    for (std::uint64_t i = 0; i < cases[0]; ++i)
        whole(OPWRIGHT_HERE, static_cast<std::int64_t>(value), static_cast<std::int64_t>(cases[2 + i]));
}
