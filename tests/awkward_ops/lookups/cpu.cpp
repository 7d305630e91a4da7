#include <opwright/kernel.h>

#include <limits>

constexpr Types<float, double> singles_and_doubles;

static void bounded(const Tensor& index, int64_t least, int64_t end) {
    const int64_t* at = data<const int64_t>(index);
    for (int64_t i = 0; i < index.numel(); ++i) check(at[i] >= least && at[i] < end, "index ", at[i], " of ", end);
}

Tensor bag_cpu(const Tensor& weight, const Tensor& index, const Tensor& offsets) {
    check(weight.dim() == 2 && index.dim() == 1 && offsets.dim() == 1, "bag: ranks");
    const int64_t bags = offsets.size(0), k = weight.size(1), n = index.size(0);
    const int64_t *at = data<const int64_t>(index), *from = data<const int64_t>(offsets);
    bounded(index, 0, weight.size(0));
    bounded(offsets, 0, n + 1);
    check(bags > 0 && from[0] == 0, "bag: the first offset must be 0");
    for (int64_t b = 1; b < bags; ++b) check(from[b] >= from[b - 1], "bag: offsets must not decrease");
    const Tensor out = empty({bags, k}, dtype(weight));
    dispatch(singles_and_doubles, dtype(weight), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t b = 0; b < bags; ++b) {
            T* to = data<T>(out) + b * k;
            std::fill_n(to, k, T(0));
            const int64_t end = b + 1 < bags ? from[b + 1] : n;
            for (int64_t i = from[b]; i < end; ++i) {
                for (int64_t j = 0; j < k; ++j) to[j] += data<const T>(weight)[at[i] * k + j];
            }
        }
    });
    return out;
}

Tensor segments_cpu(const Tensor& x, const Tensor& segment, int64_t count) {
    check(x.dim() == 2 && segment.dim() == 1 && segment.size(0) == x.size(0) && count >= 0, "segments: shapes");
    bounded(segment, 0, count);
    const int64_t k = x.size(1);
    const Tensor out = empty({count, k}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        std::fill_n(data<T>(out), count * k, T(0));
        for (int64_t i = 0; i < x.size(0); ++i) {
            T* to = data<T>(out) + data<const int64_t>(segment)[i] * k;
            for (int64_t j = 0; j < k; ++j) to[j] += data<const T>(x)[i * k + j];
        }
    });
    return out;
}

Tensor segment_top_cpu(const Tensor& x, const Tensor& segment, int64_t count) {
    check(x.dim() == 1 && segment.dim() == 1 && segment.size(0) == x.size(0) && count >= 0, "segment_top: shapes");
    bounded(segment, 0, count);
    const Tensor out = empty({count}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        std::fill_n(data<T>(out), count, -std::numeric_limits<T>::infinity());
        for (int64_t i = 0; i < x.size(0); ++i) {
            T& to = data<T>(out)[data<const int64_t>(segment)[i]];
            const T v = data<const T>(x)[i];
            if (v > to || v != v) to = v;  // NaN stays: nothing is larger
        }
    });
    return out;
}

Tensor take_cpu(const Tensor& x, const Tensor& index) {
    check(x.dim() == 2 && index.dim() == 1, "take: ranks");
    const int64_t n = x.size(0), k = x.size(1);
    bounded(index, -n, n);
    const Tensor out = empty({index.size(0), k}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < index.size(0); ++i) {
            const int64_t at = data<const int64_t>(index)[i];
            std::copy_n(data<const T>(x) + (at < 0 ? at + n : at) * k, k, data<T>(out) + i * k);
        }
    });
    return out;
}

Tensor pick_cpu(const Tensor& x, const Tensor& index) {
    check(x.dim() == 2 && index.dim() == 2 && index.size(0) <= x.size(0), "pick: shapes");
    const int64_t k = x.size(1), m = index.size(1);
    bounded(index, 0, k);
    const Tensor out = empty({index.size(0), m}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < index.size(0) * m; ++i) {
            data<T>(out)[i] = data<const T>(x)[i / m * k + data<const int64_t>(index)[i]];
        }
    });
    return out;
}

Tensor histogram_cpu(const Tensor& index, int64_t bins) {
    check(index.dim() == 1 && bins >= 0, "histogram: shapes");
    bounded(index, 0, bins);
    const Tensor out = empty({bins}, dtype(index));
    std::fill_n(data<int64_t>(out), bins, 0);
    for (int64_t i = 0; i < index.size(0); ++i) ++data<int64_t>(out)[data<const int64_t>(index)[i]];
    return out;
}

Tensor ragged_mean_cpu(const Tensor& x, const Tensor& lengths) {
    check(x.dim() == 2 && lengths.dim() == 1 && lengths.size(0) == x.size(0), "ragged_mean: shapes");
    const int64_t k = x.size(1);
    const Tensor out = empty({x.size(0)}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t r = 0; r < x.size(0); ++r) {
            const int64_t n = std::clamp<int64_t>(data<const int64_t>(lengths)[r], 0, k);
            double sum = 0;
            for (int64_t i = 0; i < n; ++i) sum += data<const T>(x)[r * k + i];
            data<T>(out)[r] = T(sum / double(std::max<int64_t>(n, 1)));
        }
    });
    return out;
}

Tensor spread_cpu(const Tensor& x, const Tensor& lengths) {
    check(x.dim() == 1 && lengths.dim() == 1 && lengths.size(0) == x.size(0), "spread: shapes");
    const int64_t* times = data<const int64_t>(lengths);
    int64_t total = 0;
    for (int64_t i = 0; i < x.size(0); ++i) {
        check(times[i] >= 0 && times[i] < (int64_t(1) << 40), "spread: lengths");
        total += times[i];
    }
    const Tensor out = empty({total}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        T* to = data<T>(out);
        for (int64_t i = 0; i < x.size(0); ++i) to = std::fill_n(to, times[i], data<const T>(x)[i]);
    });
    return out;
}

OPWRIGHT_KERNEL(bag, CPU, bag_cpu);
OPWRIGHT_KERNEL(segments, CPU, segments_cpu);
OPWRIGHT_KERNEL(segment_top, CPU, segment_top_cpu);
OPWRIGHT_KERNEL(take, CPU, take_cpu);
OPWRIGHT_KERNEL(pick, CPU, pick_cpu);
OPWRIGHT_KERNEL(histogram, CPU, histogram_cpu);
OPWRIGHT_KERNEL(ragged_mean, CPU, ragged_mean_cpu);
OPWRIGHT_KERNEL(spread, CPU, spread_cpu);
