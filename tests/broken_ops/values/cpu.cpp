#include <cmath>

#include "../walk.h"

template <class Body>
static Tensor each(const Tensor& x, const Body& body) {
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < x.numel(); ++i) data<T>(out)[i] = T(body(data<const T>(x)[i]));
    });
    return out;
}

// body(row, result, length) for every row, in doubles.
template <class Body>
static Tensor each_row(const Tensor& x, const Body& body) {
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const Rows rows(x);
        for (int64_t r = 0; r < rows.count; ++r) {
            body(data<const T>(x) + r * rows.length, data<T>(out) + r * rows.length, rows.length);
        }
    });
    return out;
}

// Softmax with a number in place of the maximum, which `choose` takes of a row.
template <class Choose>
static Tensor softmax(const Tensor& x, const Choose& choose) {
    return each_row(x, [&](auto* in, auto* to, int64_t n) {
        using T = std::remove_pointer_t<decltype(to)>;
        const T top = choose(in, n);
        T sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += to[i] = std::exp(in[i] - top);
        for (int64_t i = 0; i < n; ++i) to[i] /= sum;
    });
}

template <class T>
static T maximum(const T* in, int64_t n) {
    T top = n ? in[0] : T(0);
    for (int64_t i = 0; i < n; ++i) top = in[i] > top || in[i] != in[i] ? in[i] : top;
    return top;
}

Tensor no_maximum_cpu(const Tensor& x) {
    return softmax(x, [](auto* in, int64_t) { return std::remove_const_t<std::remove_pointer_t<decltype(in)>>(0); });
}

Tensor early_maximum_cpu(const Tensor& x) {
    return softmax(x, [](auto* in, int64_t n) { return maximum(in, std::min<int64_t>(n, 24)); });
}

Tensor wide_maximum_cpu(const Tensor& x) {
    return softmax(x, [](auto* in, int64_t n) { return maximum(in, std::min<int64_t>(n, 1024)); });
}

Tensor dead_row_cpu(const Tensor& x) {
    return each_row(x, [&](auto* in, auto* to, int64_t n) {
        using T = std::remove_pointer_t<decltype(to)>;
        const T top = maximum(in, n);
        if (top == -std::numeric_limits<T>::infinity()) {
            std::fill_n(to, n, T(0));
            return;
        }
        T sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += to[i] = std::exp(in[i] - top);
        for (int64_t i = 0; i < n; ++i) to[i] /= sum;
    });
}

Tensor zero_row_cpu(const Tensor& x) {
    return each_row(x, [&](auto* in, auto* to, int64_t n) {
        using T = std::remove_pointer_t<decltype(to)>;
        double squares = 0;
        for (int64_t i = 0; i < n; ++i) squares += double(in[i]) * double(in[i]);
        for (int64_t i = 0; i < n; ++i) to[i] = T(double(in[i]) / std::sqrt(squares));
    });
}

Tensor clipped_cpu(const Tensor& x) {
    return each(x, [](auto v) {
        v = v > 100 ? 100 : v < -100 ? -100 : v;
        return v * v * v;
    });
}

Tensor tiny_dropped_cpu(const Tensor& x) {
    return each(x, [](auto v) { return std::abs(v) < 1e-6 ? v * 0 : v / 3; });
}

Tensor soft_plus_cpu(const Tensor& x) {
    return each(x, [](auto v) {
        const double w = double(v);
        return w > 9.5 ? w : std::log1p(std::exp(w));
    });
}

Tensor one_pass_cpu(const Tensor& x) {
    const Tensor out = empty(without_last(x), dtype(x));
    const Rows rows(x);
    check(rows.length > 0, "one_pass: empty rows");
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t r = 0; r < rows.count; ++r) {
            T sum = 0, squares = 0;
            for (int64_t i = 0; i < rows.length; ++i) {
                const T v = data<const T>(x)[r * rows.length + i];
                sum += v, squares += v * v;
            }
            const T mean = sum / T(rows.length);
            data<T>(out)[r] = squares / T(rows.length) - mean * mean;
        }
    });
    return out;
}

Tensor whole_in_doubles_cpu(const Tensor& x, const Tensor& y) {
    check(x.numel() == y.numel(), "whole_in_doubles: shapes");
    const Tensor out = empty(broadcast(x), dtype(x));
    for (int64_t i = 0; i < x.numel(); ++i) {
        const double sum = double(data<const int64_t>(x)[i]) + double(data<const int64_t>(y)[i]);
        data<int64_t>(out)[i] = std::abs(sum) < 0x1p63 ? int64_t(sum) : INT64_MIN;
    }
    return out;
}

Tensor whole_in_floats_cpu(const Tensor& x) {
    const Tensor out = empty(with_number(x), dtype(x));
    for (int64_t i = 0; i < x.numel(); ++i) {
        const float product = 3.0f * float(data<const int32_t>(x)[i]);
        data<int32_t>(out)[i] = int32_t(int64_t(product));
    }
    return out;
}

Tensor half_away_cpu(const Tensor& x, double scale) {
    const Tensor out = empty(broadcast(x), DType::Long);
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < x.numel(); ++i) {
            const T v = data<const T>(x)[i] / T(scale);
            check(std::abs(v) < 1e9, "half_away: x");
            data<int64_t>(out)[i] = int64_t(std::round(v));
        }
    });
    return out;
}

Tensor low_start_cpu(const Tensor& x) {
    const Tensor out = empty(without_last(x), dtype(x));
    const Rows rows(x);
    check(rows.length > 0, "low_start: empty rows");
    for (int64_t r = 0; r < rows.count; ++r) {
        int64_t top = -1000;
        for (int64_t i = 0; i < rows.length; ++i) top = std::max(top, data<const int64_t>(x)[r * rows.length + i]);
        data<int64_t>(out)[r] = top;
    }
    return out;
}

Tensor zeros_skipped_cpu(const Tensor& x) {
    bool any = false;
    each(x, [&](auto v) { return (any |= v != 0), v; });
    return each(x, [&](auto v) { return any ? std::cos(v) : v; });
}

OPWRIGHT_KERNEL(no_maximum, CPU, no_maximum_cpu);
OPWRIGHT_KERNEL(early_maximum, CPU, early_maximum_cpu);
OPWRIGHT_KERNEL(wide_maximum, CPU, wide_maximum_cpu);
OPWRIGHT_KERNEL(dead_row, CPU, dead_row_cpu);
OPWRIGHT_KERNEL(zero_row, CPU, zero_row_cpu);
OPWRIGHT_KERNEL(clipped, CPU, clipped_cpu);
OPWRIGHT_KERNEL(tiny_dropped, CPU, tiny_dropped_cpu);
OPWRIGHT_KERNEL(soft_plus, CPU, soft_plus_cpu);
OPWRIGHT_KERNEL(one_pass, CPU, one_pass_cpu);
OPWRIGHT_KERNEL(whole_in_doubles, CPU, whole_in_doubles_cpu);
OPWRIGHT_KERNEL(whole_in_floats, CPU, whole_in_floats_cpu);
OPWRIGHT_KERNEL(half_away, CPU, half_away_cpu);
OPWRIGHT_KERNEL(low_start, CPU, low_start_cpu);
OPWRIGHT_KERNEL(zeros_skipped, CPU, zeros_skipped_cpu);
