#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "../walk.h"

template <class Body>
static void each(const Tensor& x, const Tensor& out, const Body& body) {
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < x.numel(); ++i) data<T>(out)[i] = body(data<const T>(x)[i], i);
    });
}

static Tensor right(const Tensor& x) {
    const Tensor out = empty(with_number(x), dtype(x));
    each(x, out, [](auto v, int64_t) { return v * v + 1; });
    return out;
}

// The result that was computed for a key, or that of x.
static Tensor kept(const std::vector<double>& key, const Tensor& x) {
    static std::mutex lock;
    static std::map<std::vector<double>, std::vector<char>> known;
    const std::lock_guard<std::mutex> held(lock);
    if (known.size() > 4096) known.clear();
    const size_t bytes = x.numel() * (dtype(x) == DType::Float ? 4 : 8);
    const Tensor out = right(x);
    char* to = reinterpret_cast<char*>(dtype(x) == DType::Float ? static_cast<void*>(data<float>(out))
                                                                : static_cast<void*>(data<double>(out)));
    auto& memory = known[key];
    if (memory.size() == bytes) {
        std::memcpy(to, memory.data(), bytes);
    } else {
        memory.assign(to, to + bytes);
    }
    return out;
}

static std::vector<double> about(const Tensor& x) {
    std::vector<double> key{double(dtype(x) == DType::Float), double(x.numel())};
    for (int64_t d = 0; d < x.dim(); ++d) key.push_back(double(x.size(d)));
    return key;
}

Tensor by_address_cpu(const Tensor& x) {
    auto key = about(x);
    dispatch(singles_and_doubles, dtype(x), [&](auto zero) {
        using T = decltype(zero);
        const T* in = data<const T>(x);
        key.push_back(double(reinterpret_cast<uintptr_t>(in)));
        if (x.numel()) key.push_back(double(in[0])), key.push_back(double(in[x.numel() - 1]));
    });
    return kept(key, x);
}

Tensor by_shape_cpu(const Tensor& x) {
    auto key = about(x);
    double sum = 0;
    each(x, right(x), [&](auto v, int64_t) { return sum += double(v), v; });
    key.push_back(std::round(sum * 256));
    return std::isfinite(sum) ? kept(key, x) : right(x);
}

Tensor by_count_cpu(const Tensor& x) {
    static std::atomic<int64_t> calls{0};
    const Tensor out = right(x);
    if (++calls > 1000) each(x, out, [](auto v, int64_t) { return v + 1; });
    return out;
}

Tensor now_and_then_cpu(const Tensor& x) {
    static std::atomic<int64_t> calls{0};
    const Tensor out = right(x);
    if (++calls % 97 == 0) each(x, out, [](auto v, int64_t) { return v; });
    return out;
}

Tensor handed_out_again_cpu(const Tensor& x) {
    static std::mutex lock;
    static std::map<std::vector<double>, Tensor> made;
    const std::lock_guard<std::mutex> held(lock);
    auto found = made.find(about(x));
    if (found == made.end()) found = made.emplace(about(x), right(x)).first;
    each(x, found->second, [](auto v, int64_t) { return v * v + 1; });
    return found->second;
}

Tensor small_only_cpu(const Tensor& x) {
    const Tensor out = right(x);
    if (x.numel() > 10000) each(x, out, [](auto v, int64_t i) { return i % 2 ? v + 1 : v * v + 1; });
    return out;
}

Tensor near_zero_only_cpu(const Tensor& x) {
    double sum = 0, most = 0;
    const Tensor out = right(x);
    each(x, out,
         [&](auto v, int64_t) { return sum += double(v), most = std::max(most, std::abs(double(v))), v * v + 1; });
    const double mean = x.numel() ? sum / double(x.numel()) : 0;
    if (x.numel() > 3 && std::abs(mean) > 0.9 * most) {
        each(x, out, [&](auto v, int64_t) { return decltype(v)(mean * mean + 2 * mean * (double(v) - mean) + 1); });
    }
    return out;
}

OPWRIGHT_KERNEL(by_address, CPU, by_address_cpu);
OPWRIGHT_KERNEL(by_shape, CPU, by_shape_cpu);
OPWRIGHT_KERNEL(by_count, CPU, by_count_cpu);
OPWRIGHT_KERNEL(now_and_then, CPU, now_and_then_cpu);
OPWRIGHT_KERNEL(handed_out_again, CPU, handed_out_again_cpu);
OPWRIGHT_KERNEL(small_only, CPU, small_only_cpu);
OPWRIGHT_KERNEL(near_zero_only, CPU, near_zero_only_cpu);
