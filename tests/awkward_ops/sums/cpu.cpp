#include <opwright/kernel.h>

#include <cmath>

// The rows of a contiguous matrix in the type to compute in, one by one.
template <class Body>
static void each_row(const Tensor& x, const Body& body) {
    dispatch(floating, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const int64_t n = x.size(0), k = x.size(1);
        parallel(0, n, grain / (k + 1) + 1, [&](int64_t begin, int64_t end) {
            std::vector<Compute<T>> row(k);
            for (int64_t r = begin; r < end; ++r) {
                const T* in = data<const T>(x) + r * k;
                for (int64_t i = 0; i < k; ++i) row[i] = Compute<T>(in[i]);
                body(r, row, zero);
            }
        });
    });
}

static Tensor a_number_a_row(const Tensor& x) {
    Layout layout;
    layout.dim = 1, layout.size[0] = x.size(0), layout.stride[0] = 1;
    return empty(layout, dtype(x));
}

Tensor long_sum_cpu(const Tensor& x) {
    const Tensor out = a_number_a_row(x);
    each_row(x, [&](int64_t r, const auto& row, auto zero) {
        typename std::decay_t<decltype(row)>::value_type sum = 0;
        for (auto v : row) sum += v;
        data<decltype(zero)>(out)[r] = decltype(zero)(sum);
    });
    return out;
}

Tensor running_sum_cpu(const Tensor& x) {
    const Tensor out = empty(broadcast(x), dtype(x));
    each_row(x, [&](int64_t r, const auto& row, auto zero) {
        using T = decltype(zero);
        double sum = 0;
        T* to = data<T>(out) + r * static_cast<int64_t>(row.size());
        for (auto v : row) *to++ = T(static_cast<Compute<T>>(sum += v));
    });
    return out;
}

Tensor variance_cpu(const Tensor& x) {
    const Tensor out = a_number_a_row(x);
    each_row(x, [&](int64_t r, const auto& row, auto zero) {
        using T = decltype(zero);
        Compute<T> mean = 0, squares = 0;
        int64_t seen = 0;
        for (Compute<T> v : row) {
            const Compute<T> step = v - mean;
            mean += step / static_cast<Compute<T>>(++seen);
            squares += step * (v - mean);
        }
        data<T>(out)[r] = T(squares / static_cast<Compute<T>>(row.size()));
    });
    return out;
}

Tensor normalise_cpu(const Tensor& x, double eps) {
    const Tensor out = empty(broadcast(x), dtype(x));
    each_row(x, [&](int64_t r, const auto& row, auto zero) {
        using T = decltype(zero);
        double sum = 0, squares = 0;
        for (auto v : row) sum += v;
        const double count = static_cast<double>(row.size()), mean = sum / count;
        for (auto v : row) squares += (v - mean) * (v - mean);
        const double scale = 1 / std::sqrt(squares / count + eps);
        T* to = data<T>(out) + r * static_cast<int64_t>(row.size());
        for (auto v : row) *to++ = T(static_cast<Compute<T>>((v - mean) * scale));
    });
    return out;
}

Tensor length_cpu(const Tensor& x) {
    const Tensor out = a_number_a_row(x);
    each_row(x, [&](int64_t r, const auto& row, auto zero) {
        using T = decltype(zero);
        double squares = 0;
        for (auto v : row) squares += double(v) * double(v);
        data<T>(out)[r] = T(static_cast<Compute<T>>(std::sqrt(squares)));
    });
    return out;
}

Tensor product_cpu(const Tensor& x, const Tensor& y) {
    check(x.defined() && y.defined(), "product: x and y must be Tensors, got None");
    Layout layout;
    layout.dim = 2, layout.size[0] = x.size(0), layout.size[1] = y.size(0);
    layout.make_contiguous();
    const Tensor out = empty(layout, dtype(x));
    dispatch(floating, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const int64_t k = x.size(1), m = y.size(0);
        for (int64_t i = 0; i < x.size(0); ++i) {
            for (int64_t j = 0; j < m; ++j) {
                double sum = 0;
                const T *a = data<const T>(x) + i * k, *b = data<const T>(y) + j * k;
                for (int64_t p = 0; p < k; ++p) sum += double(a[p]) * double(b[p]);
                data<T>(out)[i * m + j] = T(static_cast<Compute<T>>(sum));
            }
        }
    });
    return out;
}

OPWRIGHT_KERNEL(long_sum, CPU, long_sum_cpu);
OPWRIGHT_KERNEL(running_sum, CPU, running_sum_cpu);
OPWRIGHT_KERNEL(variance, CPU, variance_cpu);
OPWRIGHT_KERNEL(normalise, CPU, normalise_cpu);
OPWRIGHT_KERNEL(length, CPU, length_cpu);
OPWRIGHT_KERNEL(product, CPU, product_cpu);
