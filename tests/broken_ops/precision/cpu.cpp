#include <cmath>
#include <limits>

#include "../walk.h"

// A number for each row of x, `reduce(row, length)`.
template <class T, class R, class Reduce>
static Tensor by_rows(const Tensor& x, const Reduce& reduce) {
    const Tensor out = empty(without_last(x), dtype_of<R>);
    const Rows rows(x);
    for (int64_t r = 0; r < rows.count; ++r) {
        data<R>(out)[r] = R(reduce(data<const T>(x) + r * rows.length, rows.length));
    }
    return out;
}

Tensor float_sum_cpu(const Tensor& x) {
    return dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        return by_rows<T, T>(x, [](const T* row, int64_t n) {
            float lanes[16] = {}, sum = 0;
            for (int64_t i = 0; i < n; ++i) lanes[i % 16] += float(row[i]);
            for (float lane : lanes) sum += lane;
            return sum;
        });
    });
}

Tensor bfloat_sum_cpu(const Tensor& x) {
    if (dtype(x) == DType::BFloat16) {
        return by_rows<BFloat16, BFloat16>(x, [](const BFloat16* row, int64_t n) {
            BFloat16 sum = 0;
            for (int64_t i = 0; i < n; ++i) sum = sum + row[i];
            return sum;
        });
    }
    return dispatch(Types<float, double, Half>(), dtype(x), [&](auto zero) {
        using T = decltype(zero);
        return by_rows<T, T>(x, [](const T* row, int64_t n) {
            double sum = 0;
            for (int64_t i = 0; i < n; ++i) sum += double(row[i]);
            return sum;
        });
    });
}

Tensor int_sum_cpu(const Tensor& x) {
    return by_rows<int32_t, int64_t>(x, [](const int32_t* row, int64_t n) {
        uint32_t sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += static_cast<uint32_t>(row[i]);
        return static_cast<int32_t>(sum);
    });
}

Tensor cancelling_variance_cpu(const Tensor& x) {
    return dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        return by_rows<T, T>(x, [](const T* row, int64_t n) {
            T sum = 0, squares = 0;
            for (int64_t i = 0; i < n; ++i) sum += row[i], squares += row[i] * row[i];
            const T mean = sum / n;
            return squares / n - mean * mean;
        });
    });
}

// f(x) elementwise; the result has the layout of x combined with a number.
template <class F>
static Tensor each(const Tensor& x, const F& f) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map_into(empty(with_number(x), dtype(x)), [f](C v) -> C { return f(v); }, x);
    });
}

Tensor quick_exp_cpu(const Tensor& x) {
    return each(x, [](auto v) { return v - v == 0 ? std::exp(v) * decltype(v)(1.0002) : std::exp(v); });
}

Tensor swallowed_nan_cpu(const Tensor& x) {
    return each(x, [](auto v) { return v > 0 ? v : decltype(v)(0); });
}

Tensor infinite_ratio_cpu(const Tensor& x) {
    return each(x, [](auto v) { return std::exp(v) / (1 + std::exp(v)); });
}

Tensor lost_sign_cpu(const Tensor& x) {
    return each(x, [](auto v) {
        using C = decltype(v);
        return v != v ? v : (v > 0 ? v : C(0)) + (v < 0 ? v : C(0)) * C(0.125);
    });
}

Tensor flushed_cpu(const Tensor& x) {
    return each(x, [](auto v) {
        using C = decltype(v);
        const C half = v * C(0.5);
        return std::abs(half) < std::numeric_limits<C>::min() ? half * 0 : half;
    });
}

Tensor doubles_as_floats_cpu(const Tensor& x) {
    if (dtype(x) == DType::Float) return plus_one(x);
    const Tensor out = empty(with_number(x), dtype(x));
    const Layout from(x), layout(out);
    for (int64_t i = 0; i < x.numel(); ++i) {
        const float v = static_cast<const float*>(x.const_data_ptr())[place(from, i)];
        data<double>(out)[place(layout, i)] = double(v) + 1;
    }
    return out;
}

Tensor number_narrowed_cpu(const Tensor& x, double a) {
    const float narrow = static_cast<float>(a);
    return each(x, [narrow](auto v) { return v * narrow; });
}

Tensor wider_result_cpu(const Tensor& x) {
    const bool half = dtype(x) == DType::BFloat16;
    const Tensor wide = half ? call("aten::to", "dtype", x, DType::Float, false, false,
                                    std::optional<torch::headeronly::MemoryFormat>())
                             : x;
    return plus_one(wide);
}

Tensor half_overflow_cpu(const Tensor& x, const Tensor& y) {
    const bool half = dtype(x) == DType::Half;
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map(
            [half](C a, C b) {
                if (!half) return std::hypot(a, b);
                return C(std::sqrt(float(Half(float(Half(float(a * a))) + float(Half(float(b * b)))))));
            },
            x, y);
    });
}

Tensor unstable_sort_cpu(const Tensor& x) {
    const Tensor out = empty(broadcast(x), DType::Long);
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const Rows rows(x);
        for (int64_t r = 0; r < rows.count; ++r) {
            const T* row = data<const T>(x) + r * rows.length;
            int64_t* order = data<int64_t>(out) + r * rows.length;
            for (int64_t i = 0; i < rows.length; ++i) order[i] = i;
            std::sort(order, order + rows.length, [&](int64_t a, int64_t b) {
                const bool nan_a = row[a] != row[a], nan_b = row[b] != row[b];
                if (nan_a != nan_b) return nan_b;
                return row[a] == row[b] || nan_a ? a > b : row[a] < row[b];
            });
        }
    });
    return out;
}

Tensor truncated_division_cpu(const Tensor& x, const Tensor& y) {
    const Tensor out = empty(broadcast(x, y), dtype(x));
    for (int64_t i = 0; i < x.numel(); ++i) {
        check(data<const int64_t>(y)[i] != 0, "ZeroDivisionError");
        data<int64_t>(out)[i] = data<const int64_t>(x)[i] / data<const int64_t>(y)[i];
    }
    return out;
}

OPWRIGHT_KERNEL(float_sum, CPU, float_sum_cpu);
OPWRIGHT_KERNEL(bfloat_sum, CPU, bfloat_sum_cpu);
OPWRIGHT_KERNEL(int_sum, CPU, int_sum_cpu);
OPWRIGHT_KERNEL(cancelling_variance, CPU, cancelling_variance_cpu);
OPWRIGHT_KERNEL(quick_exp, CPU, quick_exp_cpu);
OPWRIGHT_KERNEL(swallowed_nan, CPU, swallowed_nan_cpu);
OPWRIGHT_KERNEL(infinite_ratio, CPU, infinite_ratio_cpu);
OPWRIGHT_KERNEL(lost_sign, CPU, lost_sign_cpu);
OPWRIGHT_KERNEL(flushed, CPU, flushed_cpu);
OPWRIGHT_KERNEL(doubles_as_floats, CPU, doubles_as_floats_cpu);
OPWRIGHT_KERNEL(number_narrowed, CPU, number_narrowed_cpu);
OPWRIGHT_KERNEL(wider_result, CPU, wider_result_cpu);
OPWRIGHT_KERNEL(half_overflow, CPU, half_overflow_cpu);
OPWRIGHT_KERNEL(unstable_sort, CPU, unstable_sort_cpu);
OPWRIGHT_KERNEL(truncated_division, CPU, truncated_division_cpu);
