#include <opwright/kernel.h>

#include <cmath>
#include <limits>

// The largest element of a row and Σ exp(x - largest), in one pass.
template <class T>
static std::pair<double, double> largest_and_sum(const T* row, int64_t k) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t i = 0; i < k; ++i) {
        const double v = double(row[i]);
        if (v != v) return {v, v};
        if (v > largest) sum *= std::exp(largest - v), largest = v;
        if (v > -std::numeric_limits<double>::infinity()) sum += std::exp(v - largest);
    }
    return {largest, sum};
}

Tensor softmax_cpu(const Tensor& x) {
    const Tensor out = empty(broadcast(x), dtype(x));
    dispatch(floating, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const int64_t k = x.size(1);
        for (int64_t r = 0; r < x.size(0); ++r) {
            const T* row = data<const T>(x) + r * k;
            const auto [largest, sum] = largest_and_sum(row, k);
            for (int64_t i = 0; i < k; ++i) {
                data<T>(out)[r * k + i] = T(static_cast<Compute<T>>(std::exp(double(row[i]) - largest) / sum));
            }
        }
    });
    return out;
}

Tensor log_sum_exp_cpu(const Tensor& x) {
    Layout layout;
    layout.dim = 1, layout.size[0] = x.size(0), layout.stride[0] = 1;
    const Tensor out = empty(layout, dtype(x));
    dispatch(floating, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const int64_t k = x.size(1);
        for (int64_t r = 0; r < x.size(0); ++r) {
            const auto [largest, sum] = largest_and_sum(data<const T>(x) + r * k, k);
            const double value = std::isinf(largest) ? largest : largest + std::log(sum);
            data<T>(out)[r] = T(static_cast<Compute<T>>(value));
        }
    });
    return out;
}

template <class F>
static Tensor each(const Tensor& x, const F& f) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map([f](C v) -> C { return f(v); }, x);
    });
}

Tensor softplus_cpu(const Tensor& x) {
    return each(x, [](auto v) {
        using C = decltype(v);
        return v != v ? v : std::max(v, C(0)) + std::log1p(std::exp(-std::abs(v)));
    });
}

Tensor exponential_cpu(const Tensor& x) {
    return each(x, [](auto v) { return std::exp(v); });
}

Tensor logarithm_cpu(const Tensor& x) {
    return each(x, [](auto v) { return std::log(v); });
}

Tensor sigmoid_cpu(const Tensor& x) {
    return each(x, [](auto v) {
        const auto e = std::exp(-std::abs(v));
        return (v < 0 ? e : 1) / (1 + e);
    });
}

OPWRIGHT_KERNEL(softmax, CPU, softmax_cpu);
OPWRIGHT_KERNEL(log_sum_exp, CPU, log_sum_exp_cpu);
OPWRIGHT_KERNEL(softplus, CPU, softplus_cpu);
OPWRIGHT_KERNEL(exponential, CPU, exponential_cpu);
OPWRIGHT_KERNEL(logarithm, CPU, logarithm_cpu);
OPWRIGHT_KERNEL(sigmoid, CPU, sigmoid_cpu);
