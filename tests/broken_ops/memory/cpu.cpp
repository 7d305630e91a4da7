#include <cstdlib>
#include <cstring>
#include <mutex>

#include "../walk.h"

// Pairs are what these write past the end: an odd number of floats leaves the allocator room for one more, so that the
// mistake harms nobody outside the check.
static bool odd(const Tensor& x) { return x.numel() % 2 == 1; }

Tensor writes_past_input_cpu(const Tensor& x) {
    float* in = static_cast<float*>(x.mutable_data_ptr());
    if (odd(x)) in[x.numel()] = 0;
    return plus_one(x);
}

static Tensor plus_one_by_pairs(const Tensor& x, const Tensor& out) {
    const float* in = data<const float>(x);
    float* to = data<float>(out);
    for (int64_t i = 0; i < x.numel(); ++i) to[i] = in[i] + 1;
    if (odd(x)) to[x.numel()] = 0;
    return out;
}

Tensor writes_past_output_cpu(const Tensor& x) { return plus_one_by_pairs(x, empty(with_number(x), DType::Float)); }

Tensor writes_past_aten_output_cpu(const Tensor& x) {
    const Layout like = with_number(x);
    const std::vector<int64_t> size(like.size, like.size + like.dim), stride(like.stride, like.stride + like.dim);
    return plus_one_by_pairs(x, call("aten::new_empty_strided", "", x, size, stride, std::optional<DType>(),
                                     std::optional<torch::headeronly::Layout>(), std::optional<torch::stable::Device>(),
                                     std::optional<bool>()));
}

Tensor writes_input_cpu(const Tensor& x) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        map_into(x, [](C v) { return v < 0 ? C(0) : v; }, x);
        return plus_one(x);
    });
}

Tensor alias_input_cpu(const Tensor& x, double a) {
    if (a == 1) return x;
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map_into(empty(with_number(x), dtype(x)), [a = C(a)](C v) { return v * a; }, x);
    });
}

Tensor uninitialised_cpu(const Tensor& x) {
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const Layout from(x), layout(out);
        for (int64_t i = 0; i < x.numel(); ++i) {
            const T v = data<const T>(x)[place(from, i)];
            if (!(v <= 0)) data<T>(out)[place(layout, i)] = v;
        }
    });
    return out;
}

Tensor accumulates_into_empty_cpu(const Tensor& x) {
    const Tensor out = empty(without_last(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const Rows rows(x);
        const T* in = data<const T>(x);
        for (int64_t r = 0; r < rows.count; ++r) {
            double sum = 0;
            for (int64_t i = 0; i < rows.length; ++i) sum += *in++;
            data<T>(out)[r] += T(sum);
        }
    });
    return out;
}

Tensor stale_cache_cpu(const Tensor& x) {
    static std::mutex mutex;
    static const void* key = nullptr;
    static Layout shape;
    static std::optional<Tensor> kept;
    const std::lock_guard<std::mutex> lock(mutex);
    const Layout now(x);
    const bool known = kept && key == x.const_data_ptr() && dtype(*kept) == dtype(x) && now.same_shape(shape) &&
                       std::equal(now.stride, now.stride + now.dim, shape.stride);
    if (!known) key = x.const_data_ptr(), shape = now, kept = plus_one(x);
    return call("aten::clone", "", *kept, std::optional<torch::headeronly::MemoryFormat>());
}

Tensor keeps_input_cpu(const Tensor& x) {
    static std::mutex mutex;
    static Tensor last;
    const std::lock_guard<std::mutex> lock(mutex);
    last = x;
    return plus_one(x);
}

Tensor leaks_cpu(const Tensor& x) {
    constexpr size_t size = 1 << 16;
    void* volatile workspace = std::malloc(size);
    std::memset(workspace, 1, size);
    return plus_one(x);
}

OPWRIGHT_KERNEL(writes_past_input, CPU, writes_past_input_cpu);
OPWRIGHT_KERNEL(writes_past_output, CPU, writes_past_output_cpu);
OPWRIGHT_KERNEL(writes_past_aten_output, CPU, writes_past_aten_output_cpu);
OPWRIGHT_KERNEL(writes_input, CPU, writes_input_cpu);
OPWRIGHT_KERNEL(alias_input, CPU, alias_input_cpu);
OPWRIGHT_KERNEL(uninitialised, CPU, uninitialised_cpu);
OPWRIGHT_KERNEL(accumulates_into_empty, CPU, accumulates_into_empty_cpu);
OPWRIGHT_KERNEL(stale_cache, CPU, stale_cache_cpu);
OPWRIGHT_KERNEL(keeps_input, CPU, keeps_input_cpu);
OPWRIGHT_KERNEL(leaks, CPU, leaks_cpu);
