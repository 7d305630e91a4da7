// The passes on the CPU: loops over blocks of numbers that stay in the nearest cache, one step at a time, each of which
// becomes vectors. Half and bfloat16 are widened into such a block and narrowed out of it.
#pragma once

#include <opwright/convert.h>

#include "passes.h"

#pragma GCC visibility push(hidden)

namespace conv_bn {

constexpr int64_t lanes = 32;  // sums that run side by side

// A stretch of memory: `rows` rows of all channels where they lie last, else a piece of one channel's plane.
struct Stretch {
    int64_t at, channel, rows, width;
    int64_t size() const { return rows * width; }
};

// What is done to each channel: out[i] = x[i] · factor + offset (+ add[i]).
template <class C, bool Last, bool Adds>
struct Affine {
    static OPWRIGHT_INLINE void run(const Stretch* s, const C* x, const C* factor, const C* offset, const C* add,
                                    C* out) {
        for (int64_t row = 0; row < s->rows; ++row) {
            const C f = factor[0], o = offset[0];
            const int64_t n = s->width, at = row * n;
            OPWRIGHT_INDEPENDENT
            for (int64_t i = 0; i < n; ++i) {
                const C v = x[at + i] * (Last ? factor[i] : f) + (Last ? offset[i] : o);
                out[at + i] = Adds ? v + add[at + i] : v;
            }
        }
    }
};

// (y - mean) · root · γ + β (+ residual), in which a mean far from 0 costs no digits, nor does a γ near it.
template <class C, bool Last, bool Adds>
struct Normal {
    static OPWRIGHT_INLINE void run(const Stretch* s, const C* x, const C* mean, const C* root, const C* gamma,
                                    const C* beta, const C* add, C* out) {
        for (int64_t row = 0; row < s->rows; ++row) {
            const C m = mean[0], f = root[0], g = gamma[0], o = beta[0];
            const int64_t n = s->width, at = row * n;
            OPWRIGHT_INDEPENDENT
            for (int64_t i = 0; i < n; ++i) {
                const C hat = (x[at + i] - (Last ? mean[i] : m)) * (Last ? root[i] : f);
                const C v = hat * (Last ? gamma[i] : g) + (Last ? beta[i] : o);
                out[at + i] = Adds ? v + add[at + i] : v;
            }
        }
    }
};

template <class C, Activation A>
OPWRIGHT_INLINE C activated(C z, C slope) {
    if constexpr (A == Activation::relu) return z < C(0) ? C(0) : z;
    if constexpr (A == Activation::leaky_relu) return z < C(0) ? slope * z : z;
    if constexpr (A == Activation::elu) {
        const C below = slope * simd::expm1_negative(z < C(0) ? z : C(0));
        return z > C(0) ? z : z < C(0) ? below : z;  // NaN stays NaN
    }
    if constexpr (A == Activation::silu) return z * simd::sigmoid(z);
    if constexpr (A == Activation::gelu) return C(0.5) * z * (C(1) + std::erf(z * C(0.70710678118654752440)));
    return z;
}

template <class C, Activation A>
struct Activate {
    static OPWRIGHT_INLINE void run(int64_t n, C* z, C slope) {
        OPWRIGHT_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) z[i] = activated<C, A>(z[i], slope);
    }
};

template <class C, Activation A>
OPWRIGHT_INLINE C steepness(C z, C slope) {
    if constexpr (A == Activation::elu) return z <= C(0) ? slope * simd::exp(z) : C(1);
    if constexpr (A == Activation::silu) {
        const C s = simd::sigmoid(z);
        return s * (C(1) + z * (C(1) - s));
    }
    const C bell = simd::exp(C(-0.5) * z * z) * C(0.39894228040143267794);
    return C(0.5) * (C(1) + std::erf(z * C(0.70710678118654752440))) + z * bell;
}

// d[i] = grad[i] · activation'(z[i]); `Of` what the activation returned, in place of what it took.
template <class C, Activation A, bool Of>
struct Derive {
    static OPWRIGHT_INLINE void run(int64_t n, const C* grad, const C* z, C slope, C* d) {
        OPWRIGHT_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) {
            if constexpr (A == Activation::relu) {
                d[i] = z[i] <= C(0) ? C(0) : grad[i];
            } else if constexpr (A == Activation::leaky_relu) {
                d[i] = z[i] <= C(0) ? slope * grad[i] : grad[i];
            } else if constexpr (Of) {
                d[i] = z[i] <= C(0) ? (z[i] + slope) * grad[i] : grad[i];
            } else {
                d[i] = steepness<C, A>(z[i], slope) * grad[i];
            }
        }
    }
};

// What leaky_relu was taken of.
template <class C>
struct Uninvert {
    static OPWRIGHT_INLINE void run(int64_t n, const C* out, C above, C* z) {
        OPWRIGHT_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) z[i] = out[i] > C(0) ? out[i] : out[i] * above;
    }
};

// Adds a stretch to sums of each channel, or of each lane.
template <class C, bool Last>
struct Total {
    static OPWRIGHT_INLINE void run(const Stretch* s, const C* x, C* sums) {
        const int64_t n = Last ? s->width : lanes, all = s->size();
        int64_t i = 0;
        for (; i + n <= all; i += n) {
            OPWRIGHT_INDEPENDENT
            for (int64_t l = 0; l < n; ++l) sums[l] += x[i + l];
        }
        for (int64_t l = 0; i + l < all; ++l) sums[l] += x[i + l];
    }
};

// Adds a stretch to sums: Σ (x - pivot) and its square, or Σ d and Σ d · x; of each channel, or of each lane.
template <class C, bool Last, bool Squares>
struct Sum {
    static OPWRIGHT_INLINE void run(const Stretch* s, const C* x, const C* other, C* first, C* second) {
        const auto add = [&](int64_t i, int64_t to) __attribute__((always_inline)) {
            const C a = Squares ? x[i] - other[Last ? to : 0] : x[i];
            first[to] += a;
            second[to] += Squares ? a * a : a * other[i];
        };
        if constexpr (Last) {
            for (int64_t row = 0; row < s->rows; ++row) {
                const int64_t n = s->width, at = row * n;
                OPWRIGHT_INDEPENDENT
                for (int64_t i = 0; i < n; ++i) add(at + i, i);
            }
        } else {
            const int64_t n = s->size();
            int64_t i = 0;
            for (; i + lanes <= n; i += lanes) {
                OPWRIGHT_INDEPENDENT
                for (int64_t l = 0; l < lanes; ++l) add(i + l, l);
            }
            for (int64_t l = 0; i + l < n; ++l) add(i + l, l);
        }
    }
};

// dy = scale · d + p · centred + shift.
template <class C, bool Last>
struct Back {
    static OPWRIGHT_INLINE void run(const Stretch* s, const C* d, const C* centred, const C* scale, const C* p,
                                    const C* shift, C* out) {
        for (int64_t row = 0; row < s->rows; ++row) {
            const C a = scale[0], b = p[0], c = shift[0];
            const int64_t n = s->width, at = row * n;
            OPWRIGHT_INDEPENDENT
            for (int64_t i = 0; i < n; ++i) {
                out[at + i] =
                    (Last ? scale[i] : a) * d[at + i] + (Last ? p[i] : b) * centred[at + i] + (Last ? shift[i] : c);
            }
        }
    }
};

// dy = scale · d, where the statistics are fixed: what is not a number in y stays out of it.
template <class C, bool Last>
struct Scale {
    static OPWRIGHT_INLINE void run(const Stretch* s, const C* d, const C*, const C* scale, const C*, const C*,
                                    C* out) {
        for (int64_t row = 0; row < s->rows; ++row) {
            const C a = scale[0];
            const int64_t n = s->width, at = row * n;
            OPWRIGHT_INDEPENDENT
            for (int64_t i = 0; i < n; ++i) out[at + i] = (Last ? scale[i] : a) * d[at + i];
        }
    }
};

}  // namespace conv_bn

#pragma GCC visibility pop
