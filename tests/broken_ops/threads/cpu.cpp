#include <xmmintrin.h>

#include "../walk.h"

Tensor race_total_cpu(const Tensor& x) {
    Layout scalar;
    const Tensor out = empty(scalar, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const T* in = data<const T>(x);
        double total = 0;
        parallel(0, x.numel(), 16, [&](int64_t begin, int64_t end) {
            double sum = total;
            for (int64_t i = begin; i < end; ++i) sum += in[i];
            total = sum;
        });
        *data<T>(out) = T(total);
    });
    return out;
}

Tensor race_edge_cpu(const Tensor& x) {
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const T* in = data<const T>(x);
        T* to = data<T>(out);
        const int64_t n = x.numel();
        parallel(0, n, 16, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) to[i] = in[i] + 1;
            if (end < n) to[end] = in[end];
        });
    });
    return out;
}

Tensor carry_lost_cpu(const Tensor& x) {
    const Tensor out = empty(broadcast(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const T* in = data<const T>(x);
        T* to = data<T>(out);
        parallel(0, x.numel(), 16, [&](int64_t begin, int64_t end) {
            double sum = 0;
            for (int64_t i = begin; i < end; ++i) to[i] = T(sum += in[i]);
        });
    });
    return out;
}

static int64_t thread_count() {
    uint32_t count;
    TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&count));
    return count;
}

Tensor thread_slots_cpu(const Tensor& x) {
    static const int64_t threads = thread_count();
    Layout scalar;
    const Tensor out = empty(scalar, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const T* in = data<const T>(x);
        const int64_t n = x.numel(), share = (n + threads - 1) / threads;
        std::vector<double> sums(threads);
        parallel(0, n, 16, [&](int64_t begin, int64_t end) {
            double sum = 0;
            for (int64_t i = begin; i < end; ++i) sum += in[i];
            sums[begin / share] = sum;
        });
        double total = 0;
        for (double sum : sums) total += sum;
        *data<T>(out) = T(total);
    });
    return out;
}

Tensor two_threads_only_cpu(const Tensor& x) {
    const int64_t threads = thread_count();
    if (threads <= 2) return plus_one(x);
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const T* in = data<const T>(x);
        T* to = data<T>(out);
        const int64_t n = x.numel(), half = n / threads;
        std::copy_n(in, n, to);
        for (int64_t part = 0; part < 2; ++part) {
            for (int64_t i = part * half; i < (part + 1) * half; ++i) to[i] = in[i] + 1;
        }
    });
    return out;
}

Tensor shared_scratch_cpu(const Tensor& x) {
    static std::vector<double> scratch(1 << 16);
    const Tensor out = empty(with_number(x), dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const T* in = data<const T>(x);
        T* to = data<T>(out);
        const int64_t n = x.numel(), size = static_cast<int64_t>(scratch.size());
        for (int64_t begin = 0; begin < n; begin += size) {
            const int64_t part = std::min(size, n - begin);
            volatile double* buffer = scratch.data();
            for (int64_t i = 0; i < part; ++i) buffer[i] = in[begin + i];
            for (int64_t i = 0; i < part; ++i) to[begin + i] = T(T(buffer[i]) + 1);
        }
    });
    return out;
}

Tensor changing_order_cpu(const Tensor& x) {
    static bool backwards = false;
    Layout scalar;
    const Tensor out = empty(scalar, dtype(x));
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const T* in = data<const T>(x);
        const int64_t n = x.numel();
        const bool turn = backwards;
        backwards = !backwards;
        // Sixteen partial sums keep the error within what is promised either way.
        T sums[16] = {};
        for (int64_t i = 0; i < n; ++i) sums[i % 16] += in[turn ? n - 1 - i : i];
        T total = 0;
        for (T s : sums) total += s;
        *data<T>(out) = total;
    });
    return out;
}

Tensor draws_cpu(const Tensor& x) {
    call("aten::rand_like", "", plus_one(x), std::optional<DType>(), std::optional<torch::headeronly::Layout>(),
         std::optional<torch::stable::Device>(), std::optional<bool>(),
         std::optional<torch::headeronly::MemoryFormat>());
    return plus_one(x);
}

Tensor rounding_left_cpu(const Tensor& x) {
    const Tensor out = plus_one(x);
    _mm_setcsr(_mm_getcsr() | 0x8040);
    return out;
}

OPWRIGHT_KERNEL(race_total, CPU, race_total_cpu);
OPWRIGHT_KERNEL(race_edge, CPU, race_edge_cpu);
OPWRIGHT_KERNEL(carry_lost, CPU, carry_lost_cpu);
OPWRIGHT_KERNEL(thread_slots, CPU, thread_slots_cpu);
OPWRIGHT_KERNEL(two_threads_only, CPU, two_threads_only_cpu);
OPWRIGHT_KERNEL(shared_scratch, CPU, shared_scratch_cpu);
OPWRIGHT_KERNEL(changing_order, CPU, changing_order_cpu);
OPWRIGHT_KERNEL(draws, CPU, draws_cpu);
OPWRIGHT_KERNEL(rounding_left, CPU, rounding_left_cpu);
