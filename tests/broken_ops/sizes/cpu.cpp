#include "../walk.h"

Tensor empty_mean_cpu(const Tensor& x) {
    const Tensor out = empty(without_last(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const Rows rows(x);
        const T* in = data<const T>(x);
        for (int64_t r = 0; r < rows.count; ++r) {
            double sum = 0;
            for (int64_t i = 0; i < rows.length; ++i) sum += *in++;
            data<T>(out)[r] = T(sum / std::max<int64_t>(rows.length, 1));
        }
    });
    return out;
}

Tensor single_element_cpu(const Tensor& x) {
    const Tensor out = empty(broadcast(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const Rows rows(x);
        const T* in = data<const T>(x);
        T* to = data<T>(out);
        for (int64_t r = 0; r < rows.count; ++r, in += rows.length, to += rows.length) {
            double sum = 0;
            for (int64_t i = 0; i < rows.length; ++i) sum += in[i];
            const T mean = rows.length == 1 ? T(0) : T(sum / rows.length);
            for (int64_t i = 0; i < rows.length; ++i) to[i] = in[i] - mean;
        }
    });
    return out;
}

Tensor far_stride_cpu(const Tensor& x) {
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const Layout from(x), layout(out);
        for (int64_t i = 0; i < x.numel(); ++i) {
            data<T>(out)[place(layout, i)] = data<const T>(x)[place(from, i) & 0x7fffffff] + 1;
        }
    });
    return out;
}

Tensor short_count_cpu(const Tensor& x) {
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        std::fill_n(data<T>(out), x.numel(), T(0));
        const uint16_t n = static_cast<uint16_t>(x.numel());
        for (int64_t i = 0; i < n; ++i) data<T>(out)[i] = data<const T>(x)[i] + 1;
    });
    return out;
}

Tensor rank_zero_cpu(const Tensor& x) {
    if (x.dim() > 0) return plus_one(x);
    return call("aten::reshape", "", plus_one(x), std::vector<int64_t>{1});
}

Tensor deep_rank_cpu(const Tensor& x) {
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        Layout from(x);
        const Layout layout(out);
        for (int d = from.dim - 5; d >= 0; --d) from.stride[d] = from.stride[d + 1] * from.size[d + 1];
        for (int64_t i = 0; i < x.numel(); ++i) {
            data<T>(out)[place(layout, i)] = data<const T>(x)[place(from, i)] + 1;
        }
    });
    return out;
}

Tensor empty_crash_cpu(const Tensor& x) {
    return dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        volatile T first = *data<const T>(x);
        (void)first;
        return plus_one(x);
    });
}

OPWRIGHT_KERNEL(empty_mean, CPU, empty_mean_cpu);
OPWRIGHT_KERNEL(single_element, CPU, single_element_cpu);
OPWRIGHT_KERNEL(far_stride, CPU, far_stride_cpu);
OPWRIGHT_KERNEL(short_count, CPU, short_count_cpu);
OPWRIGHT_KERNEL(rank_zero, CPU, rank_zero_cpu);
OPWRIGHT_KERNEL(deep_rank, CPU, deep_rank_cpu);
OPWRIGHT_KERNEL(empty_crash, CPU, empty_crash_cpu);
