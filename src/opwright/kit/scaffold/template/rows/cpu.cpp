#include <opwright/kernel.h>

template <class C>
OPWRIGHT_INLINE C scale_of(const C* x, int64_t n, double eps) {
    const double squares = sum_over(n, [&](int64_t i) { return double(x[i]) * double(x[i]); });
    return C(1 / std::sqrt(squares / double(n) + eps));
}

// Row by row, whatever the strides. C is what is computed in: half and bfloat16 become float on the way.
Tensor ${name}_cpu(const Tensor& x, double eps) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        const auto row = [eps](C* out, const C* x, int64_t n) {
            const C r = scale_of(x, n, eps);
            for (int64_t i = 0; i < n; ++i) out[i] = x[i] * r;
        };
        return map_rows(row, x);
    });
}

// The gradient takes what its formula in op.py takes. Operands stand in the order of the formula: it decides the strides.
Tensor ${name}_backward_cpu(const Tensor& grad, const Tensor& x, double eps, const Wanted&) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        const auto row = [eps](C* out, const C* grad, const C* x, int64_t n) {
            const C r = scale_of(x, n, eps);
            const double both = sum_over(n, [&](int64_t i) { return double(grad[i]) * double(x[i]); });
            const C along = C(double(r) * double(r) * (both / double(n)));
            for (int64_t i = 0; i < n; ++i) out[i] = (grad[i] - x[i] * along) * r;
        };
        return map_rows(row, grad, x);
    });
}

OPWRIGHT_KERNEL($name, CPU, ${name}_cpu);
OPWRIGHT_KERNEL(${name}_backward, CPU, ${name}_backward_cpu);
