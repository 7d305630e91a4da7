// Where elements lie. The operators here are wrong in one thing each; this is what they have right.
#pragma once

#include <opwright/kernel.h>

constexpr Types<float, double> singles_and_doubles;

// The offset of the i-th element in row-major order.
inline int64_t place(const Layout& x, int64_t i) {
    int64_t offset = 0;
    for (int d = x.dim - 1; d >= 0; --d) {
        offset += i % x.size[d] * x.stride[d];
        i /= x.size[d];
    }
    return offset;
}

// x as its rows: all dimensions but the last, and the last.
struct Rows {
    int64_t count = 1, length;
    explicit Rows(const Layout& x) : length(x.size[x.dim - 1]) {
        for (int d = 0; d + 1 < x.dim; ++d) count *= x.size[d];
    }
};

// The layout of x without its last dimension, dense: that of x.sum(-1) where x is contiguous.
inline Layout without_last(Layout x) {
    --x.dim;
    x.make_contiguous();
    return x;
}

// x + 1, right for every layout.
inline Tensor plus_one(const Tensor& x) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map_into(empty(with_number(x), dtype(x)), [](C v) { return v + 1; }, x);
    });
}
