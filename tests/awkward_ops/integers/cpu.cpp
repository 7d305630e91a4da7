#include <opwright/kernel.h>

#include <cmath>

template <class F>
static Tensor pairwise(const Tensor& x, const Tensor& y, const F& f) {
    const Tensor out = empty(broadcast(x, y), dtype(x));
    dispatch(integers, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const T *a = data<const T>(x), *b = data<const T>(y);
        for (int64_t i = 0; i < x.numel(); ++i) data<T>(out)[i] = static_cast<T>(f(int64_t(a[i]), int64_t(b[i])));
    });
    return out;
}

// The smallest integer has no opposite; unsigned arithmetic wraps where signed overflow would be undefined.
static int64_t negative(int64_t v) { return static_cast<int64_t>(-static_cast<uint64_t>(v)); }

Tensor floor_divide_cpu(const Tensor& x, const Tensor& y) {
    return pairwise(x, y, [](int64_t a, int64_t b) {
        check(b != 0, "ZeroDivisionError");
        if (b == -1) return negative(a);
        return a / b - (a % b != 0 && (a < 0) != (b < 0));
    });
}

Tensor remainder_cpu(const Tensor& x, const Tensor& y) {
    return pairwise(x, y, [](int64_t a, int64_t b) {
        check(b != 0, "ZeroDivisionError");
        if (b == -1) return int64_t(0);
        const int64_t rest = a % b;
        return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    });
}

Tensor wrapped_product_cpu(const Tensor& x, const Tensor& y) {
    return pairwise(x, y, [](int64_t a, int64_t b) {
        return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    });
}

OPWRIGHT_KERNEL(floor_divide, CPU, floor_divide_cpu);
OPWRIGHT_KERNEL(remainder, CPU, remainder_cpu);
OPWRIGHT_KERNEL(wrapped_product, CPU, wrapped_product_cpu);
