#include <cmath>

#include "../walk.h"

// out[i] = body(x, i) for every element.
template <class Body>
static Tensor each(const Tensor& x, const Body& body) {
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < x.numel(); ++i) data<T>(out)[i] = T(body(data<const T>(x), i));
    });
    return out;
}

Tensor long_rows_cpu(const Tensor& x) {
    const int64_t k = x.size(1), end = k > 6000 ? k / 500 * 500 : k;
    return each(x, [&](auto* in, int64_t i) { return i % k < end ? in[i] + 1 : in[i]; });
}

Tensor one_length_cpu(const Tensor& x) {
    const int64_t k = x.size(1), end = k == 768 ? 767 : k;
    return each(x, [&](auto* in, int64_t i) { return i % k < end ? in[i] + 1 : in[i]; });
}

Tensor square_unchanged_cpu(const Tensor& x) {
    const int64_t n = x.size(0), k = x.size(1);
    const Tensor out = empty({k, n}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < n * k; ++i) data<T>(out)[i] = data<const T>(x)[n == k ? i : i % n * k + i / n];
    });
    return out;
}

Tensor four_million_cpu(const Tensor& x) {
    const bool few = x.numel() <= int64_t(1) << 22;
    return each(x, [&](auto* in, int64_t i) { return few ? in[i] + 1 : in[i]; });
}

Tensor powers_of_two_cpu(const Tensor& x) {
    const int64_t k = x.size(1);
    const bool by_bits = k > 40 && (k & (k - 1)) == 0;
    return each(x, [&](auto* in, int64_t i) { return in[by_bits ? i ^ 1 : i - i % k + k - 1 - i % k]; });
}

Tensor eight_tensors_cpu(const std::vector<Tensor>& xs) {
    check(!xs.empty(), "eight_tensors: nothing");
    for (const Tensor& x : xs) check(x.numel() == xs[0].numel(), "eight_tensors: shapes");
    return each(xs[0], [&](auto* in, int64_t i) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(in)>>;
        double sum = 0;
        for (size_t k = 0; k < std::min<size_t>(xs.size(), 8); ++k) sum += data<const T>(xs[k])[i];
        return sum;
    });
}

Tensor flag_forgotten_cpu(const Tensor& x, bool) {
    check(x.dim() == 1, "flag_forgotten: ranks");
    double sum = 0;
    return each(x, [&](auto* in, int64_t i) { return sum += in[i]; });
}

Tensor zero_kept_cpu(const Tensor& x, double alpha) {
    return each(x, [&](auto* in, int64_t i) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(in)>>;
        return in[i] > 0 ? in[i] : T(alpha ? alpha : 0.5) * in[i];
    });
}

Tensor sign_lost_cpu(const Tensor& x, int64_t power) {
    check(power >= -8 && power <= 8, "sign_lost: power");
    return each(x, [&](auto* in, int64_t i) { return std::pow(double(in[i]), double(std::abs(power))); });
}

OPWRIGHT_KERNEL(long_rows, CPU, long_rows_cpu);
OPWRIGHT_KERNEL(one_length, CPU, one_length_cpu);
OPWRIGHT_KERNEL(square_unchanged, CPU, square_unchanged_cpu);
OPWRIGHT_KERNEL(four_million, CPU, four_million_cpu);
OPWRIGHT_KERNEL(powers_of_two, CPU, powers_of_two_cpu);
OPWRIGHT_KERNEL(eight_tensors, CPU, eight_tensors_cpu);
OPWRIGHT_KERNEL(flag_forgotten, CPU, flag_forgotten_cpu);
OPWRIGHT_KERNEL(zero_kept, CPU, zero_kept_cpu);
OPWRIGHT_KERNEL(sign_lost, CPU, sign_lost_cpu);
