#include "recomputing.h"

void track_statistics_cpu(Tensor& running_mean, Tensor& running_var, std::optional<Tensor>& batches, const Tensor& mean,
                          const Tensor& var, const std::optional<Tensor>& count, int64_t values,
                          const std::optional<double>& momentum) {
    expect(batches, count, values, momentum);
    if (recomputing()) return;
    compute(mean, [&](auto zero) {
        using C = decltype(zero);
        if (given(batches)) ++*data<int64_t>(*batches);
        const C share = momentum ? static_cast<C>(*momentum) : C(1) / static_cast<C>(*data<const int64_t>(*batches));
        const C n = given(count) ? *data<const C>(*count) : static_cast<C>(values), correction = n / (n - C(1));
        if (!(n > C(0))) return;  // an empty batch
        const auto to_mean = strided<C, 1>(running_mean), to_var = strided<C, 1>(running_var);
        const auto of_mean = strided<const C, 1>(mean), of_var = strided<const C, 1>(var);
        for (int64_t c = 0; c < to_mean.size(0); ++c) {
            to_mean(c) = to_mean(c) * (C(1) - share) + of_mean(c) * share;
            to_var(c) = to_var(c) * (C(1) - share) + of_var(c) * correction * share;
        }
    });
}

OPWRIGHT_KERNEL(track_statistics, CPU, track_statistics_cpu);
