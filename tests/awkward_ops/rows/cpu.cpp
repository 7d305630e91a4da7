#include <opwright/kernel.h>

#include <cmath>
#include <limits>

constexpr double infinity = std::numeric_limits<double>::infinity();

// The rows of a contiguous matrix, one by one: body(row number, its first element).
template <class Types, class Body>
static void each_row(Types types, const Tensor& x, const Body& body) {
    dispatch(types, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const int64_t k = x.size(1);
        parallel(0, x.size(0), grain / (k + 1) + 1, [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r) body(r, data<const T>(x) + r * k);
        });
    });
}

template <class T>
static double wide(T x) {
    return static_cast<double>(static_cast<Compute<T>>(x));
}

template <class T>
static T narrow(double x) {
    return T(static_cast<Compute<T>>(x));
}

struct Summary {
    double top, total;
};

// The maximum of a row, and the sum of exp(x - maximum), in one pass: where the maximum grows, the sum is rescaled.
template <class T>
static Summary summarise(const T* row, int64_t k) {
    Summary s{-infinity, 0};
    for (int64_t i = 0; i < k; ++i) {
        const double v = wide(row[i]);
        if (std::isnan(v)) return {v, v};
        if (v == infinity) return {v, v - v};  // softmax is NaN then, in the whole row
        if (v > s.top) {
            s.total = s.total * (s.top == -infinity ? 0 : std::exp(s.top - v)) + 1;
            s.top = v;
        } else {
            s.total += v == -infinity && s.top == -infinity ? 1 : std::exp(v - s.top);
        }
    }
    return s;
}

Tensor soft_cpu(const Tensor& x) {
    const Tensor out = empty(broadcast(x), dtype(x));
    const int64_t k = x.size(1);
    each_row(floating, x, [&](int64_t r, auto* row) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(row)>>;
        const Summary s = summarise(row, k);
        for (int64_t i = 0; i < k; ++i) data<T>(out)[r * k + i] = narrow<T>(std::exp(wide(row[i]) - s.top) / s.total);
    });
    return out;
}

Tensor log_soft_cpu(const Tensor& x) {
    const Tensor out = empty(broadcast(x), dtype(x));
    const int64_t k = x.size(1);
    each_row(floating, x, [&](int64_t r, auto* row) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(row)>>;
        const Summary s = summarise(row, k);
        const double log_of_total = std::log(s.total);
        for (int64_t i = 0; i < k; ++i) data<T>(out)[r * k + i] = narrow<T>(wide(row[i]) - s.top - log_of_total);
    });
    return out;
}

Tensor log_total_cpu(const Tensor& x) {
    const int64_t k = x.size(1);
    check(k > 0, "log_total: empty rows");
    const Tensor out = empty({x.size(0)}, dtype(x));
    each_row(floating, x, [&](int64_t r, auto* row) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(row)>>;
        const Summary s = summarise(row, k);
        data<T>(out)[r] = narrow<T>(std::isinf(s.top) ? s.top : s.top + std::log(s.total));
    });
    return out;
}

Tensor rms_cpu(const Tensor& x, const Tensor& weight, double eps) {
    const Tensor out = empty(broadcast(x), dtype(x));
    const int64_t k = x.size(1);
    each_row(floating, x, [&](int64_t r, auto* row) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(row)>>;
        double squares = 0;
        for (int64_t i = 0; i < k; ++i) squares += wide(row[i]) * wide(row[i]);
        const double scale = 1 / std::sqrt(squares / double(k) + eps);
        for (int64_t i = 0; i < k; ++i) {
            data<T>(out)[r * k + i] = narrow<T>(wide(row[i]) * scale * wide(data<const T>(weight)[i]));
        }
    });
    return out;
}

Tensor layer_cpu(const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, double eps) {
    const int64_t k = x.size(1);
    for (const auto* t : {&weight, &bias}) {
        if (given(*t)) check((*t)->dim() == 1 && (*t)->size(0) == k, "layer: weight and bias must fit x");
    }
    check(eps > 0, "layer: eps");
    const Tensor out = empty(broadcast(x), dtype(x));
    each_row(floating, x, [&](int64_t r, auto* row) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(row)>>;
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < k; ++i) sum += wide(row[i]);
        const double mean = sum / double(k);
        for (int64_t i = 0; i < k; ++i) squares += (wide(row[i]) - mean) * (wide(row[i]) - mean);
        const double scale = 1 / std::sqrt(squares / double(k) + eps);
        for (int64_t i = 0; i < k; ++i) {
            double v = (wide(row[i]) - mean) * scale;
            if (given(weight)) v *= wide(data<const T>(*weight)[i]);
            if (given(bias)) v += wide(data<const T>(*bias)[i]);
            data<T>(out)[r * k + i] = narrow<T>(v);
        }
    });
    return out;
}

Tensor surprise_cpu(const Tensor& x, const Tensor& target) {
    const int64_t k = x.size(1);
    const int64_t* at = data<const int64_t>(target);
    for (int64_t r = 0; r < x.size(0); ++r) {
        check(at[r] == -100 || (at[r] >= 0 && at[r] < k), "surprise: target ", at[r], " is out of bounds");
    }
    const Tensor out = empty({x.size(0)}, dtype(x));
    each_row(floating, x, [&](int64_t r, auto* row) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(row)>>;
        if (at[r] == -100) {
            data<T>(out)[r] = T(0);
            return;
        }
        const Summary s = summarise(row, k);
        data<T>(out)[r] = narrow<T>(-(wide(row[at[r]]) - s.top - std::log(s.total)));
    });
    return out;
}

Tensor rotate_cpu(const Tensor& x, const Tensor& angle) {
    const int64_t k = x.size(1), half = angle.size(1);
    check(angle.size(0) == x.size(0) && 2 * half == k, "rotate: angle must fit x");
    const Tensor out = empty(broadcast(x), dtype(x));
    each_row(Types<float, double>(), x, [&](int64_t r, auto* row) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(row)>>;
        const T* turn = data<const T>(angle) + r * half;
        T* to = data<T>(out) + r * k;
        for (int64_t i = 0; i < half; ++i) {
            const double c = std::cos(double(turn[i])), s = std::sin(double(turn[i]));
            to[2 * i] = T(row[2 * i] * c - row[2 * i + 1] * s);
            to[2 * i + 1] = T(row[2 * i] * s + row[2 * i + 1] * c);
        }
    });
    return out;
}

Tensor gate_cpu(const Tensor& x) {
    const int64_t k = x.size(1), half = k / 2;
    check(k % 2 == 0, "gate: odd rows");
    const Tensor out = empty({x.size(0), half}, dtype(x));
    each_row(floating, x, [&](int64_t r, auto* row) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(row)>>;
        for (int64_t i = 0; i < half; ++i) {
            const double a = wide(row[i]);
            // The reference rounds silu before it multiplies.
            const T silu = narrow<T>(a / (1 + std::exp(-a)));
            data<T>(out)[r * half + i] = narrow<T>(wide(silu) * wide(row[half + i]));
        }
    });
    return out;
}

Tensor bell_cpu(const Tensor& x) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map([](C v) { return C(0.5 * double(v) * std::erfc(-double(v) * 0.70710678118654752440)); }, x);
    });
}

Tensor decay_cpu(const Tensor& x, double keep) {
    const int64_t k = x.size(1);
    check(keep >= 0 && keep <= 1, "decay: keep");
    const Tensor out = empty(broadcast(x), dtype(x));
    each_row(floating, x, [&](int64_t r, auto* row) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(row)>>;
        T state = T(0);
        for (int64_t i = 0; i < k; ++i) {
            state = narrow<T>(wide(narrow<T>(keep * wide(state))) + wide(row[i]));
            data<T>(out)[r * k + i] = state;
        }
    });
    return out;
}

Tensor top_cpu(const Tensor& x) {
    const int64_t k = x.size(1);
    check(k > 0, "top: empty rows");
    const Tensor out = empty({x.size(0)}, dtype(x));
    each_row(Types<int64_t, int32_t, int16_t, int8_t>(), x, [&](int64_t r, auto* row) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(row)>>;
        data<T>(out)[r] = *std::max_element(row, row + k);
    });
    return out;
}

OPWRIGHT_KERNEL(soft, CPU, soft_cpu);
OPWRIGHT_KERNEL(log_soft, CPU, log_soft_cpu);
OPWRIGHT_KERNEL(log_total, CPU, log_total_cpu);
OPWRIGHT_KERNEL(rms, CPU, rms_cpu);
OPWRIGHT_KERNEL(layer, CPU, layer_cpu);
OPWRIGHT_KERNEL(surprise, CPU, surprise_cpu);
OPWRIGHT_KERNEL(rotate, CPU, rotate_cpu);
OPWRIGHT_KERNEL(gate, CPU, gate_cpu);
OPWRIGHT_KERNEL(bell, CPU, bell_cpu);
OPWRIGHT_KERNEL(decay, CPU, decay_cpu);
OPWRIGHT_KERNEL(top, CPU, top_cpu);
