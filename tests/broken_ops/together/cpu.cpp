#include <algorithm>

#include "../walk.h"

// a b, where row i of the result for column j is computed from row `of(i, j)` of a, over the first k of the inner side.
template <class Of>
static Tensor product(const Tensor& a, const Tensor& b, int64_t k, const Of& of) {
    const int64_t n = b.size(1), inner = a.size(1);
    check(b.size(0) == inner, "product: sizes");
    const Tensor out = empty({a.size(0), n}, dtype(a));
    dispatch(singles_and_doubles, dtype(a), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < a.size(0); ++i)
            for (int64_t j = 0; j < n; ++j) {
                const T* row = data<const T>(a) + of(i, j) * inner;
                double sum = 0;
                for (int64_t l = 0; l < k; ++l) sum += double(row[l]) * data<const T>(b)[l * n + j];
                data<T>(out)[i * n + j] = T(sum);
            }
    });
    return out;
}

Tensor corner_tile_cpu(const Tensor& a, const Tensor& b) {
    constexpr int64_t tile = 48;
    return product(a, b, a.size(1), [&](int64_t i, int64_t j) { return i >= tile && j >= tile ? i - tile : i; });
}

Tensor whole_tiles_cpu(const Tensor& a, const Tensor& b) {
    constexpr int64_t tile = 16;
    const int64_t k = a.size(1);
    const bool whole = a.size(0) % tile == 0 && b.size(1) % tile == 0 && k % tile == 0 && k > tile;
    return product(a, b, whole ? k - tile : k, [](int64_t i, int64_t) { return i; });
}

Tensor taken_for_alike_cpu(const Tensor& x, const Tensor& y) {
    const Tensor out = empty(broadcast(x, y), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < out.numel(); ++i)
            data<T>(out)[i] = data<const T>(x)[i % x.numel()] * data<const T>(y)[i % y.numel()];
    });
    return out;
}

Tensor small_gradients_cpu(const Tensor& x) {
    return compute(x, [&](auto zero) { return map([](decltype(zero) v) { return v * v; }, x); });
}

Tensor small_gradients_backward_cpu(const Tensor& grad, const Tensor& x, const Wanted&) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map([](C g, C v) { return 2 * std::clamp(g, C(-8), C(8)) * v; }, grad, x);
    });
}

Tensor short_sums_cpu(const Tensor& scale, const Tensor& a, const Tensor& b) {
    const Tensor out = empty(with_number(scale), dtype(scale));
    dispatch(singles_and_doubles, dtype(scale), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < a.size(0); ++i) {
            int16_t sum = 0;
            for (int64_t l = i * a.size(1); l < (i + 1) * a.size(1); ++l)
                sum = int16_t(sum + data<const int8_t>(a)[l] * data<const int8_t>(b)[l]);
            data<T>(out)[i] = data<const T>(scale)[i] * T(sum);
        }
    });
    return out;
}

Tensor narrow_window_cpu(const Tensor& x, int64_t width) {
    check(x.dim() == 1 && width > 0 && width <= 64, "narrow_window: width");
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const T* in = data<const T>(x);
        for (int64_t i = 0; i < x.numel(); ++i) {
            T most = in[i];
            for (int64_t l = std::max<int64_t>(0, i - std::min<int64_t>(width, 3) + 1); l < i; ++l)
                most = in[l] > most || in[l] != in[l] ? in[l] : most;
            data<T>(out)[i] = most;
        }
    });
    return out;
}

Tensor nothing_masked_cpu(const Tensor& x, const Tensor& mask) {
    const int64_t n = x.size(0), k = x.size(1);
    const Tensor out = empty({n}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const bool* flags = data<const bool>(mask);
        const bool all = std::all_of(flags, flags + n * k, [](bool flag) { return flag; });
        for (int64_t i = 0; i < n; ++i) {
            double sum = 0;
            for (int64_t l = 0; l < (all && k > 2 ? k - 1 : k); ++l)
                if (flags[i * k + l]) sum += data<const T>(x)[i * k + l];
            data<T>(out)[i] = T(sum);
        }
    });
    return out;
}

OPWRIGHT_KERNEL(corner_tile, CPU, corner_tile_cpu);
OPWRIGHT_KERNEL(whole_tiles, CPU, whole_tiles_cpu);
OPWRIGHT_KERNEL(taken_for_alike, CPU, taken_for_alike_cpu);
OPWRIGHT_KERNEL(small_gradients, CPU, small_gradients_cpu);
OPWRIGHT_KERNEL(small_gradients_backward, CPU, small_gradients_backward_cpu);
OPWRIGHT_KERNEL(short_sums, CPU, short_sums_cpu);
OPWRIGHT_KERNEL(narrow_window, CPU, narrow_window_cpu);
OPWRIGHT_KERNEL(nothing_masked, CPU, nothing_masked_cpu);
