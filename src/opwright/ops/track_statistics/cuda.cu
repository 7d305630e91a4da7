#include "recomputing.h"

namespace {

template <class C>
__global__ void __launch_bounds__(256)
    track(Packed<C, 1> to_mean, Packed<C, 1> to_var, Packed<const C, 1> of_mean, Packed<const C, 1> of_var,
          int64_t* batches, const C* count, C values, bool cumulative, C momentum) {
    // One block: all read how many batches there were before one counts up.
    const C seen = batches ? static_cast<C>(*batches + 1) : C(0);
    const C share = cumulative ? C(1) / seen : momentum;
    const C n = count ? *count : values, correction = n / (n - C(1));
    for (int64_t c = threadIdx.x; n > C(0) && c < to_mean.size(0); c += 256) {  // of an empty batch nothing
        to_mean(c) = to_mean(c) * (C(1) - share) + of_mean(c) * share;
        to_var(c) = to_var(c) * (C(1) - share) + of_var(c) * correction * share;
    }
    __syncthreads();
    if (batches && threadIdx.x == 0) ++*batches;
}

}  // namespace

void track_statistics_cuda(Tensor& running_mean, Tensor& running_var, std::optional<Tensor>& batches,
                           const Tensor& mean, const Tensor& var, const std::optional<Tensor>& count, int64_t values,
                           const std::optional<double>& momentum) {
    expect(batches, count, values, momentum);
    if (recomputing()) return;
    dispatch(Types<float, double>(), dtype(mean), [&](auto zero) {
        using C = decltype(zero);
        launch(track<C>, {1, 256}, packed<C, 1>(running_mean), packed<C, 1>(running_var), packed<const C, 1>(mean),
               packed<const C, 1>(var), given(batches) ? data<int64_t>(*batches) : nullptr,
               given(count) ? data<const C>(*count) : nullptr, static_cast<C>(values), !momentum,
               static_cast<C>(momentum.value_or(0)));
    });
}

OPWRIGHT_KERNEL(track_statistics, CUDA, track_statistics_cuda);
