#include <opwright/kernel.h>

#include <algorithm>

// Whether a comes before b in ascending order; NaN is the largest.
template <class C>
static bool before(C a, C b) {
    return a < b || (b != b && a == a);
}

std::tuple<Tensor, Tensor> ranked_cpu(const Tensor& x) {
    const Tensor values = empty(broadcast(x), dtype(x)), order = empty(broadcast(x), DType::Long);
    dispatch(floating, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        using C = Compute<T>;
        const int64_t k = x.size(1);
        for (int64_t r = 0; r < x.size(0); ++r) {
            const T* row = data<const T>(x) + r * k;
            int64_t* at = data<int64_t>(order) + r * k;
            for (int64_t i = 0; i < k; ++i) at[i] = i;
            std::stable_sort(at, at + k, [&](int64_t a, int64_t b) { return before(C(row[a]), C(row[b])); });
            for (int64_t i = 0; i < k; ++i) data<T>(values)[r * k + i] = row[at[i]];
        }
    });
    return {values, order};
}

OPWRIGHT_KERNEL(ranked, CPU, ranked_cpu);
