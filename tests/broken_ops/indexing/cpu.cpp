#include "../walk.h"

static void bounded(const Tensor& index, int64_t least, int64_t end) {
    const int64_t* at = data<const int64_t>(index);
    for (int64_t i = 0; i < index.numel(); ++i) check(at[i] >= least && at[i] < end, "index ", at[i], " of ", end);
}

Tensor sorted_only_cpu(const Tensor& x, const Tensor& segment) {
    check(x.dim() == 1 && segment.dim() == 1 && x.size(0) == segment.size(0), "sorted_only: shapes");
    bounded(segment, 0, 8);
    const Tensor out = empty({8}, dtype(x));
    const int64_t* of = data<const int64_t>(segment);
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        std::fill_n(data<T>(out), 8, T(0));
        T sum = 0;
        for (int64_t i = 0; i < x.size(0); ++i) {
            sum += data<const T>(x)[i];
            if (i + 1 < x.size(0) && of[i + 1] == of[i]) continue;
            data<T>(out)[of[i]] = sum;
            sum = 0;
        }
    });
    return out;
}

Tensor last_wins_cpu(const Tensor& x, const Tensor& index) {
    check(x.dim() == 2 && index.dim() == 1 && x.size(0) == index.size(0), "last_wins: shapes");
    bounded(index, 0, 8);
    const int64_t k = x.size(1);
    const Tensor out = empty({8, k}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        std::fill_n(data<T>(out), 8 * k, T(0));
        for (int64_t i = 0; i < x.size(0); ++i) {
            std::copy_n(data<const T>(x) + i * k, k, data<T>(out) + data<const int64_t>(index)[i] * k);
        }
    });
    return out;
}

// Elements of a vector, each where `place` says.
template <class Place>
static Tensor elements(const Tensor& x, const Tensor& index, const Place& place) {
    check(x.dim() == 1 && index.dim() == 1 && (x.size(0) > 0 || index.size(0) == 0), "elements: shapes");
    const Tensor out = empty({index.size(0)}, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < index.size(0); ++i) {
            data<T>(out)[i] = data<const T>(x)[place(data<const int64_t>(index)[i])];
        }
    });
    return out;
}

Tensor negative_as_zero_cpu(const Tensor& x, const Tensor& index) {
    check(x.dim() == 1, "negative_as_zero: ranks");
    bounded(index, -x.size(0), x.size(0));
    return elements(x, index, [](int64_t i) { return std::max<int64_t>(i, 0); });
}

Tensor wraps_around_cpu(const Tensor& x, const Tensor& index) {
    check(x.dim() == 1, "wraps_around: ranks");
    const int64_t n = x.size(0);
    return elements(x, index, [&](int64_t i) { return (i % n + n) % n; });
}

Tensor ignored_counted_cpu(const Tensor& x, const Tensor& target, int64_t ignore) {
    check(x.dim() == 2 && target.dim() == 1 && x.size(0) == target.size(0), "ignored_counted: shapes");
    const int64_t* at = data<const int64_t>(target);
    for (int64_t r = 0; r < x.size(0); ++r) {
        check(at[r] == ignore || (at[r] >= 0 && at[r] < x.size(1)), "ignored_counted: target");
    }
    Layout number;
    number.dim = 0;
    const Tensor out = empty(number, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        double sum = 0;
        for (int64_t r = 0; r < x.size(0); ++r) {
            if (at[r] != ignore) sum -= data<const T>(x)[r * x.size(1) + at[r]];
        }
        data<T>(out)[0] = T(sum / double(x.size(0)));
    });
    return out;
}

Tensor empty_bag_cpu(const Tensor& weight, const Tensor& index, const Tensor& offsets) {
    check(weight.dim() == 2 && index.dim() == 1 && offsets.dim() == 1, "empty_bag: ranks");
    const int64_t bags = offsets.size(0), k = weight.size(1), n = index.size(0);
    const int64_t *at = data<const int64_t>(index), *from = data<const int64_t>(offsets);
    bounded(index, 0, weight.size(0));
    bounded(offsets, 0, n + 1);
    check(bags > 0 && from[0] == 0, "empty_bag: the first offset must be 0");
    for (int64_t b = 1; b < bags; ++b) check(from[b] >= from[b - 1], "empty_bag: offsets must not decrease");
    const Tensor out = empty({bags, k}, dtype(weight));
    dispatch(singles_and_doubles, dtype(weight), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t b = 0; b < bags; ++b) {
            T* to = data<T>(out) + b * k;
            std::fill_n(to, k, T(0));
            int64_t i = from[b];
            const int64_t end = b + 1 < bags ? from[b + 1] : n;
            while (i < n) {
                for (int64_t j = 0; j < k; ++j) to[j] += data<const T>(weight)[at[i] * k + j];
                if (++i >= end) break;
            }
        }
    });
    return out;
}

OPWRIGHT_KERNEL(sorted_only, CPU, sorted_only_cpu);
OPWRIGHT_KERNEL(last_wins, CPU, last_wins_cpu);
OPWRIGHT_KERNEL(negative_as_zero, CPU, negative_as_zero_cpu);
OPWRIGHT_KERNEL(wraps_around, CPU, wraps_around_cpu);
OPWRIGHT_KERNEL(ignored_counted, CPU, ignored_counted_cpu);
OPWRIGHT_KERNEL(empty_bag, CPU, empty_bag_cpu);
