#include "../walk.h"

constexpr int64_t lanes = 8;

Tensor tail_dropped_cpu(const Tensor& x) {
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const T* in = data<const T>(x);
        T* to = data<T>(out);
        const int64_t n = x.numel(), whole = n / lanes * lanes;
        std::fill_n(to, n, T(0));
        for (int64_t i = 0; i < whole; ++i) to[i] = in[i] + 1;
        for (int64_t i = whole + 1; i < n; ++i) to[i] = in[i] + 1;
    });
    return out;
}

Tensor full_block_masked_cpu(const Tensor& x) {
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const T* in = data<const T>(x);
        T* to = data<T>(out);
        const int64_t n = x.numel();
        std::fill_n(to, n, T(0));
        for (int64_t begin = 0; begin < n; begin += lanes) {
            const int64_t active = begin + lanes < n ? lanes : n % lanes;
            for (int64_t i = begin; i < begin + active; ++i) to[i] = in[i] + 1;
        }
    });
    return out;
}

Tensor row_tails_cpu(const Tensor& x) {
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const Rows rows(x);
        const T* in = data<const T>(x);
        T* to = data<T>(out);
        std::fill_n(to, x.numel(), T(0));
        const int64_t whole = rows.length / lanes * lanes;
        for (int64_t r = 0; r < rows.count; ++r) {
            const int64_t end = r + 1 < rows.count ? whole : rows.length;
            for (int64_t i = r * rows.length; i < r * rows.length + end; ++i) to[i] = in[i] + 1;
        }
    });
    return out;
}

Tensor reads_past_end_cpu(const Tensor& x) {
    const Tensor out = empty(broadcast(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const T* in = data<const T>(x);
        T* to = data<T>(out);
        for (int64_t i = 0; i < x.numel(); ++i) to[i] = in[i] + in[i + 1];
    });
    return out;
}

Tensor stale_lanes_cpu(const Tensor& x) {
    const Tensor out = empty(without_last(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const Rows rows(x);
        const T* in = data<const T>(x);
        T* to = data<T>(out);
        for (int64_t r = 0; r < rows.count; ++r, in += rows.length) {
            T vector[lanes] = {};
            double sum = 0;
            for (int64_t begin = 0; begin < rows.length; begin += lanes) {
                std::copy_n(in + begin, std::min(lanes, rows.length - begin), vector);
                for (T lane : vector) sum += lane;
            }
            to[r] = T(sum);
        }
    });
    return out;
}

OPWRIGHT_KERNEL(tail_dropped, CPU, tail_dropped_cpu);
OPWRIGHT_KERNEL(full_block_masked, CPU, full_block_masked_cpu);
OPWRIGHT_KERNEL(row_tails, CPU, row_tails_cpu);
OPWRIGHT_KERNEL(reads_past_end, CPU, reads_past_end_cpu);
OPWRIGHT_KERNEL(stale_lanes, CPU, stale_lanes_cpu);
