// One tile of a step, in vectors.
#pragma once

#include <opwright/tile.h>

#include "steps.h"

namespace lltm {

// One tile of a step: up to `rows` rows of the batch, times the hidden units of one vector (forward) or two
// (backward). Where fewer rows are left, the last stands for the missing ones: it is computed again and written again,
// the same, since a tile reads all before it writes.
template <class C, int bytes, int rows>
struct Tile {
    using V = typename Vectors<C, bytes>::type;
    static constexpr int W = Vectors<C, bytes>::lanes;

    const Steps<C>& q;
    const int64_t H = q.hidden, step;
    int64_t position[rows], at[rows];  // in the sorted order; in matrices of steps · batch rows
    C* own;

    OPWRIGHT_INLINE Tile(const Steps<C>& q, int64_t step, int64_t first, int64_t end, C* own)
        : q(q), step(step), own(own) {
        for (int r = 0; r < rows; ++r) {
            position[r] = std::min<int64_t>(first + r, end - 1);
            at[r] = q.row(position[r], step);
        }
    }

    // --- between memory and numbers ---------------------------------------------------------------------------

    OPWRIGHT_INLINE void load(C* to, const char* base, int64_t index, int64_t n) const {
        const char* from = base + index * q.bytes;
        if (__builtin_expect(n == W && q.direct(), true)) {
            std::memcpy(to, from, sizeof(V));
        } else {
            q.load(to, from, n);
        }
    }

    OPWRIGHT_INLINE void store(char* base, int64_t index, const C* from, int64_t n) const {
        char* to = base + index * q.bytes;
        if (__builtin_expect(n == W && q.direct(), true)) {
            std::memcpy(to, from, sizeof(V));
        } else {
            q.store(to, from, n);
        }
    }

    static OPWRIGHT_INLINE V& vector(C* x) { return *reinterpret_cast<V*>(x); }

    // --- the gates --------------------------------------------------------------------------------------------

    // i and o after their functions, g before it: elu' of a rounded elu would have lost its digits near -1.
    struct Gates {
        alignas(64) C i[rows * W], o[rows * W], g[rows * W];
    };

    static OPWRIGHT_INLINE void activate(Gates& z) {
        OPWRIGHT_INDEPENDENT
        for (int l = 0; l < rows * W; ++l) {
            z.i[l] = simd::sigmoid(z.i[l]);
            z.o[l] = simd::sigmoid(z.o[l]);
        }
    }

    static OPWRIGHT_INLINE C elu(C x) {
        const C below = simd::expm1_negative(x);
        return x > C(0) ? x : below;
    }

    // What the step before left in h. On the way back it may have to be widened.
    OPWRIGHT_INLINE void before(const C* (&a)[rows]) const {
        for (int r = 0; r < rows; ++r) {
            if (step == 0) {
                a[r] = q.h_0 ? q.h_0 + q.order[position[r]] * H : q.zeros;
                continue;
            }
            const int64_t index = q.row(position[r], step - 1) * H;
            if (q.direct()) {
                a[r] = reinterpret_cast<const C*>(q.output) + index;
            } else if (own) {
                q.convert.widen(reinterpret_cast<char*>(own + r * H), q.output + index * q.bytes, H);
                a[r] = own + r * H;
            } else {
                a[r] = q.scratch + ((step - 1) % 2 * q.batch + position[r]) * H;
            }
        }
    }

    // The pre-activations of one block of units: products with h, the part from the input, the biases.
    OPWRIGHT_INLINE void pre_activations(Gates& z, const C* const* a, int64_t u, const char* from) const {
        V sums[rows][3] = {};
        multiply<V, rows, 3>(sums, a, q.panel + u * H * 3 * W, H);
        const int64_t n = std::min<int64_t>(W, H - u * W);
        alignas(64) C x[3][W] = {};
        if (q.bias) {
            for (int g = 0; g < 3; ++g) std::memcpy(x[g], q.bias + g * H + u * W, static_cast<size_t>(n) * sizeof(C));
        }
        const V bias[3] = {vector(x[0]), vector(x[1]), vector(x[2])};
        for (int r = 0; r < rows; ++r) {
            for (int g = 0; g < 3; ++g) load(x[g], from, at[r] * 3 * H + g * H + u * W, n);
            vector(z.i + r * W) = sums[r][0] + vector(x[0]) + bias[0];
            vector(z.o + r * W) = sums[r][1] + vector(x[1]) + bias[1];
            vector(z.g + r * W) = sums[r][2] + vector(x[2]) + bias[2];
        }
    }

    // --- forward ----------------------------------------------------------------------------------------------

    OPWRIGHT_INLINE void forward(int64_t u) const {
        const C* a[rows];
        before(a);
        Gates z;
        pre_activations(z, a, u, q.gates);
        activate(z);
        alignas(64) C c[rows * W], h[rows * W];
        for (int r = 0; r < rows; ++r) std::memcpy(c + r * W, q.c + position[r] * q.padded + u * W, sizeof(V));
        OPWRIGHT_INDEPENDENT
        for (int l = 0; l < rows * W; ++l) {
            c[l] += elu(z.g[l]) * z.i[l];
            h[l] = simd::tanh(c[l]) * z.o[l];
        }
        const int64_t n = std::min<int64_t>(W, H - u * W);
        for (int r = 0; r < rows; ++r) {
            std::memcpy(q.c + position[r] * q.padded + u * W, c + r * W, sizeof(V));
            store(q.output, at[r] * H + u * W, h + r * W, n);
            if (q.keep_gates) {
                store(q.gates, at[r] * 3 * H + u * W, z.i + r * W, n);
                store(q.gates, at[r] * 3 * H + H + u * W, z.o + r * W, n);
                store(q.gates, at[r] * 3 * H + 2 * H + u * W, z.g + r * W, n);
            }
            if (q.kept_c) store(q.kept_c, at[r] * H + u * W, c + r * W, n);
            if (q.cells) store(q.cells, at[r] * H + u * W, c + r * W, n);
            if (q.wide_cells) {
                std::memcpy(reinterpret_cast<C*>(q.wide_cells) + at[r] * H + u * W, c + r * W,
                            static_cast<size_t>(n) * sizeof(C));
            }
            if (q.direct()) continue;
            // The next step sees h as it was rounded.
            C* next = q.scratch + (step % 2 * q.batch + position[r]) * H + u * W;
            q.convert.widen(reinterpret_cast<char*>(next), q.output + (at[r] * H + u * W) * q.bytes, n);
        }
    }

    // --- backward ---------------------------------------------------------------------------------------------

    // The gradients of the gates one step later, 3 H numbers a row; false where there are none.
    OPWRIGHT_INLINE bool after(const C* (&a)[rows]) const {
        const int64_t n = step + 1 < q.steps ? q.active[step + 1] : 0;
        if (position[0] >= n) return false;
        for (int r = 0; r < rows; ++r) {
            if (position[r] >= n) {
                a[r] = q.zeros;
            } else if (q.direct()) {
                a[r] = reinterpret_cast<const C*>(q.grad_gates) + q.row(position[r], step + 1) * 3 * H;
            } else {
                a[r] = q.scratch + ((step + 1) % 2 * q.batch + position[r]) * 3 * H;
            }
        }
        return true;
    }

    OPWRIGHT_INLINE void backward(int64_t pair) const {
        const C* a[rows];
        V sums[rows][2] = {};
        if (after(a)) multiply<V, rows, 2>(sums, a, q.backward_panel + pair * 3 * H * 2 * W, 3 * H);
        if (q.recompute) before(a);
        alignas(64) C dh[2][rows * W];
        const int64_t later = step + 1 < q.steps ? q.active[step + 1] : 0;
        for (int r = 0; r < rows; ++r) {
            // Zeros times a weight that is not finite would not be zero.
            vector(dh[0] + r * W) = position[r] < later ? sums[r][0] : V{};
            vector(dh[1] + r * W) = position[r] < later ? sums[r][1] : V{};
        }
        for (int64_t u = 2 * pair; u * W < H && u < 2 * pair + 2; ++u) gates_backward(u, dh[u % 2], a);
    }

    OPWRIGHT_INLINE void gates_backward(int64_t u, C* dh, const C* const* a) const {
        const int64_t n = std::min<int64_t>(W, H - u * W);
        Gates z = {};
        alignas(64) C c[rows * W] = {}, dc[rows * W], more[W] = {};
        if (q.recompute) {
            pre_activations(z, a, u, q.grad_gates);
            activate(z);
        }
        for (int r = 0; r < rows; ++r) {
            if (!q.recompute) {
                load(z.i + r * W, q.gates, at[r] * 3 * H + u * W, n);
                load(z.o + r * W, q.gates, at[r] * 3 * H + H + u * W, n);
                load(z.g + r * W, q.gates, at[r] * 3 * H + 2 * H + u * W, n);
            }
            load(c + r * W, q.kept_c, at[r] * H + u * W, n);
            std::memcpy(dc + r * W, q.c + position[r] * q.padded + u * W, sizeof(V));
            if (q.grad_output) load(more, q.grad_output, at[r] * H + u * W, n), vector(dh + r * W) += vector(more);
            if (q.grad_cells) {
                std::memcpy(more, q.grad_cells + at[r] * H + u * W, static_cast<size_t>(n) * sizeof(C));
                vector(dc + r * W) += vector(more);
            }
            if (q.grad_h_n && step + 1 == q.length[position[r]]) {
                const C* last = q.grad_h_n + q.order[position[r]] * H + u * W;
                for (int64_t l = 0; l < n; ++l) dh[r * W + l] += last[l];
            }
        }
        OPWRIGHT_INDEPENDENT
        for (int l = 0; l < rows * W; ++l) {
            const C i = z.i[l], o = z.o[l], g = z.g[l], t = simd::tanh(c[l]), slope = simd::exp(g > C(0) ? C(0) : g);
            dc[l] += dh[l] * o * (C(1) - t * t);
            z.i[l] = dc[l] * elu(g) * i * (C(1) - i);
            z.o[l] = dh[l] * t * o * (C(1) - o);
            z.g[l] = dc[l] * i * slope;
        }
        for (int r = 0; r < rows; ++r) {
            std::memcpy(q.c + position[r] * q.padded + u * W, dc + r * W, sizeof(V));
            store(q.grad_gates, at[r] * 3 * H + u * W, z.i + r * W, n);
            store(q.grad_gates, at[r] * 3 * H + H + u * W, z.o + r * W, n);
            store(q.grad_gates, at[r] * 3 * H + 2 * H + u * W, z.g + r * W, n);
            if (q.direct()) continue;
            C* next = q.scratch + (step % 2 * q.batch + position[r]) * 3 * H + u * W;
            std::memcpy(next, z.i + r * W, static_cast<size_t>(n) * sizeof(C));
            std::memcpy(next + H, z.o + r * W, static_cast<size_t>(n) * sizeof(C));
            std::memcpy(next + 2 * H, z.g + r * W, static_cast<size_t>(n) * sizeof(C));
        }
    }
};

template <class C, int bytes, int rows>
struct TileForward {
    static OPWRIGHT_INLINE void run(const Steps<C>* q, int64_t step, int64_t first, int64_t end, int64_t u, C* own) {
        Tile<C, bytes, rows>(*q, step, first, end, own).forward(u);
    }
};

template <class C, int bytes, int rows>
struct TileBackward {
    static OPWRIGHT_INLINE void run(const Steps<C>* q, int64_t step, int64_t first, int64_t end, int64_t pair, C* own) {
        Tile<C, bytes, rows>(*q, step, first, end, own).backward(pair);
    }
};

#if defined(__x86_64__)
template <class Loop, class C>
typename Tiles<C>::Function avx512() {
    return ow_inner::run_avx512<Loop, const Steps<C>*, int64_t, int64_t, int64_t, int64_t, C*>;
}
template <class Loop, class C>
typename Tiles<C>::Function avx2() {
    return ow_inner::run_avx2<Loop, const Steps<C>*, int64_t, int64_t, int64_t, int64_t, C*>;
}
#endif

// The tiles for the processor at hand.
template <class C, template <class, int, int> class Loop>
Tiles<C> choose() {
    constexpr int64_t size = sizeof(C);
#if defined(__x86_64__)
    if (simd_level() == Simd::avx512) {
        return {8, 64 / size, avx512<Loop<C, 64, 8>, C>(), avx512<Loop<C, 64, 4>, C>(), avx512<Loop<C, 64, 1>, C>()};
    }
    if (simd_level() == Simd::avx2) {
        return {4, 32 / size, avx2<Loop<C, 32, 4>, C>(), avx2<Loop<C, 32, 4>, C>(), avx2<Loop<C, 32, 1>, C>()};
    }
#endif
    const auto base = ow_inner::run_base<Loop<C, 16, 2>, const Steps<C>*, int64_t, int64_t, int64_t, int64_t, C*>;
    return {2, 16 / size, base, base, base};
}

}  // namespace lltm
