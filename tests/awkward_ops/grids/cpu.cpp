#include <opwright/kernel.h>

#include <cmath>

constexpr Types<float, double> singles_and_doubles;

Tensor nearest_cpu(const Tensor& x, int64_t scale) {
    check(x.dim() == 4 && scale > 0 && scale < 1 << 16, "nearest: shapes");
    const int64_t planes = x.size(0) * x.size(1), h = x.size(2), w = x.size(3), wide = w * scale;
    const Tensor out = empty({x.size(0), x.size(1), h * scale, wide}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        T* to = data<T>(out);
        for (int64_t r = 0; r < planes * h * scale; ++r) {
            for (int64_t j = 0; j < wide; ++j) *to++ = data<const T>(x)[r / scale * w + j / scale];
        }
    });
    return out;
}

struct Between {
    int64_t low, high;
    double share;
};

// The two pixels that a place of the result lies between.
static Between between(int64_t at, int64_t from, int64_t to) {
    const double place = std::max((double(at) + 0.5) * double(from) / double(to) - 0.5, 0.0);
    const int64_t low = std::min(int64_t(place), from - 1);
    return {low, std::min(low + 1, from - 1), place - double(low)};
}

Tensor bilinear_cpu(const Tensor& x, int64_t height, int64_t width) {
    check(x.dim() == 4 && height > 0 && width > 0 && x.size(2) > 0 && x.size(3) > 0, "bilinear: shapes");
    check(x.size(1) > 0 && height < 1 << 20 && width < 1 << 20, "bilinear: shapes");
    const int64_t planes = x.size(0) * x.size(1), h = x.size(2), w = x.size(3);
    const Tensor out = empty({x.size(0), x.size(1), height, width}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        T* to = data<T>(out);
        for (int64_t p = 0; p < planes; ++p) {
            const T* from = data<const T>(x) + p * h * w;
            for (int64_t i = 0; i < height; ++i) {
                const Between row = between(i, h, height);
                for (int64_t j = 0; j < width; ++j) {
                    const Between column = between(j, w, width);
                    const auto mixed = [&](int64_t r) {
                        return from[r * w + column.low] * (1 - column.share) + from[r * w + column.high] * column.share;
                    };
                    *to++ = T(mixed(row.low) * (1 - row.share) + mixed(row.high) * row.share);
                }
            }
        }
    });
    return out;
}

Tensor depthwise_cpu(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
    check(x.dim() == 3 && weight.dim() == 2 && weight.size(0) == x.size(1) && weight.size(1) > 0 && x.size(2) > 0,
          "depthwise");
    if (given(bias)) check(bias->dim() == 1 && bias->size(0) == x.size(1), "depthwise: bias");
    const int64_t channels = x.size(1), n = x.size(2), taps = weight.size(1);
    const Tensor out = empty({x.size(0), channels, n}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t r = 0; r < x.size(0) * channels; ++r) {
            const T *in = data<const T>(x) + r * n, *w = data<const T>(weight) + r % channels * taps;
            for (int64_t t = 0; t < n; ++t) {
                double sum = 0;
                for (int64_t k = 0; k < taps; ++k) {
                    const int64_t at = t - taps + 1 + k;
                    sum += (at < 0 ? 0.0 : double(in[at])) * double(w[k]);
                }
                data<T>(out)[r * n + t] = T(given(bias) ? T(sum) + data<const T>(*bias)[r % channels] : sum);
            }
        }
    });
    return out;
}

Tensor pooled_cpu(const Tensor& x, int64_t window) {
    check(x.dim() == 2 && window > 0 && window <= x.size(1), "pooled: shapes");
    const int64_t n = x.size(1) / window;
    const Tensor out = empty({x.size(0), n}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < x.size(0) * n; ++i) {
            double sum = 0;
            for (int64_t k = 0; k < window; ++k) sum += data<const T>(x)[i / n * x.size(1) + i % n * window + k];
            data<T>(out)[i] = T(sum / double(window));
        }
    });
    return out;
}

Tensor distances_cpu(const Tensor& x, const Tensor& y) {
    check(x.dim() == 2 && y.dim() == 2 && x.size(1) == y.size(1), "distances: shapes");
    const int64_t n = x.size(0), m = y.size(0), k = x.size(1);
    const Tensor out = empty({n, m}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < n * m; ++i) {
            double sum = 0;
            for (int64_t p = 0; p < k; ++p) {
                const double d = double(data<const T>(x)[i / m * k + p]) - double(data<const T>(y)[i % m * k + p]);
                sum += d * d;
            }
            data<T>(out)[i] = T(sum);
        }
    });
    return out;
}

Tensor alike_cpu(const Tensor& x, const Tensor& y, double eps) {
    check(x.dim() == 2 && y.dim() == 2 && x.size(0) == y.size(0) && x.size(1) == y.size(1), "alike: shapes");
    check(eps > 0, "alike: eps");
    const int64_t k = x.size(1);
    const Tensor out = empty({x.size(0)}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t r = 0; r < x.size(0); ++r) {
            const T *a = data<const T>(x) + r * k, *b = data<const T>(y) + r * k;
            T both = 0, one = 0, other = 0;
            for (int64_t i = 0; i < k; ++i) both += a[i] * b[i], one += a[i] * a[i], other += b[i] * b[i];
            const auto at_least = [&](T v) { return v < T(eps) ? T(eps) : v; };  // NaN stays
            data<T>(out)[r] = both / (at_least(std::sqrt(one)) * at_least(std::sqrt(other)));
        }
    });
    return out;
}

Tensor int8_codes_cpu(const Tensor& x, double scale, int64_t zero_point) {
    check(scale > 0, "int8_codes: scale");
    const Tensor out = empty(broadcast(x), DType::Char);
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < x.numel(); ++i) {
            const T v = data<const T>(x)[i];
            const T code = std::nearbyint(v / T(scale)) + T(zero_point);
            data<int8_t>(out)[i] = std::isnan(code) ? int8_t(0) : int8_t(std::min(std::max(code, T(-128)), T(127)));
        }
    });
    return out;
}

Tensor restore_cpu(const Tensor& code, double scale, int64_t zero_point) {
    const Tensor out = empty(broadcast(code), DType::Float);
    for (int64_t i = 0; i < code.numel(); ++i) {
        data<float>(out)[i] = (float(data<const int8_t>(code)[i]) - float(zero_point)) * float(scale);
    }
    return out;
}

Tensor nibbles_cpu(const Tensor& code) {
    check(code.dim() == 1 && code.size(0) % 2 == 0, "nibbles: pairs");
    const Tensor out = empty({code.size(0) / 2}, DType::Byte);
    const uint8_t* in = data<const uint8_t>(code);
    for (int64_t i = 0; i < out.numel(); ++i) data<uint8_t>(out)[i] = uint8_t((in[2 * i] & 15) | (in[2 * i + 1] << 4));
    return out;
}

OPWRIGHT_KERNEL(nearest, CPU, nearest_cpu);
OPWRIGHT_KERNEL(bilinear, CPU, bilinear_cpu);
OPWRIGHT_KERNEL(depthwise, CPU, depthwise_cpu);
OPWRIGHT_KERNEL(pooled, CPU, pooled_cpu);
OPWRIGHT_KERNEL(distances, CPU, distances_cpu);
OPWRIGHT_KERNEL(alike, CPU, alike_cpu);
OPWRIGHT_KERNEL(int8_codes, CPU, int8_codes_cpu);
OPWRIGHT_KERNEL(restore, CPU, restore_cpu);
OPWRIGHT_KERNEL(nibbles, CPU, nibbles_cpu);
