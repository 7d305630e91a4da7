#include "../walk.h"

Tensor rejects_valid_cpu(const Tensor& x) {
    check(x.numel() % 4 == 0, "rejects_valid: x must have a multiple of 4 elements, got ", shape(x));
    return plus_one(x);
}

// x + y, as far as x goes.
static Tensor sum(const Tensor& x, const Tensor& y) {
    const Tensor out = empty(broadcast(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const T* b = static_cast<const T*>(y.const_data_ptr());
        for (int64_t i = 0; i < x.numel(); ++i) data<T>(out)[i] = data<const T>(x)[i] + b[i];
    });
    return out;
}

Tensor accepts_invalid_cpu(const Tensor& x, const Tensor& y) {
    check(x.numel() <= y.numel(), "accepts_invalid: x and y must have one shape, got ", shape(x), " and ", shape(y));
    return sum(x, y);
}

Tensor wild_index_cpu(const Tensor& x, const Tensor& index) {
    const Tensor out = empty(broadcast(index), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const int64_t* at = data<const int64_t>(index);
        for (int64_t i = 0; i < index.numel(); ++i) data<T>(out)[i] = data<const T>(x)[at[i]];
    });
    return out;
}

Tensor zero_division_cpu(const Tensor& x, const Tensor& y) {
    const Tensor out = empty(broadcast(x, y), dtype(x));
    for (int64_t i = 0; i < x.numel(); ++i) {
        data<int64_t>(out)[i] = data<const int64_t>(x)[i] / data<const int64_t>(y)[i];
    }
    return out;
}

Tensor mixed_dtypes_cpu(const Tensor& x, const Tensor& y) {
    if (dtype(x) == DType::Float && dtype(y) == DType::Double) return sum(y, x);
    return sum(x, y);
}

OPWRIGHT_KERNEL(rejects_valid, CPU, rejects_valid_cpu);
OPWRIGHT_KERNEL(accepts_invalid, CPU, accepts_invalid_cpu);
OPWRIGHT_KERNEL(wild_index, CPU, wild_index_cpu);
OPWRIGHT_KERNEL(zero_division, CPU, zero_division_cpu);
OPWRIGHT_KERNEL(mixed_dtypes, CPU, mixed_dtypes_cpu);
