// PyTorch's threads and PyTorch's operators.
#pragma once

#include <dlfcn.h>
#include <opwright/tensor.h>
#include <torch/csrc/stable/stableivalue_conversions.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <tuple>

// The check mode of parallel loops, set from outside (opwright check): 0 is off. A seed makes a loop run its chunks
// singly, in an order and in sizes drawn from it, and call `between` after each (with -1 before the first; `above` is
// where the stack of the loop's callers begins, whose variables chunks share); with the highest bit, in small pieces on
// all threads at once. Neither is defined twice: each library has its own.
extern "C" {
__attribute__((visibility("default"), weak)) uint64_t opwright_check_seed = 0;
__attribute__((visibility("default"), weak)) void (*opwright_check_between)(int64_t chunk, const void* above) = nullptr;
}

#pragma GCC visibility push(hidden)

namespace opwright {

namespace ow_inner {

// A loop in check mode.
__attribute__((noinline, cold)) inline void parallel_checked(int64_t begin, int64_t end, ParallelFunc part,
                                                             void* context) {
    uint64_t state = opwright_check_seed;
    if (state >> 63) {
        struct Crowd {
            ParallelFunc part;
            void* context;
            std::atomic<int> arrived;
        } crowd{part, context, {0}};
        const ParallelFunc pieces = [](int64_t b, int64_t e, void* given) {
            Crowd& c = *static_cast<Crowd*>(given);
            // They begin together, or when the others do not come: a short loop would be over before.
            ++c.arrived;
            for (int i = 0; i < 1 << 16 && c.arrived < 2; ++i) std::this_thread::yield();
            const int64_t step = std::max<int64_t>(1, (e - b) / 256);
            for (; b < e; b += step) c.part(b, std::min(b + step, e), c.context);
        };
        TORCH_ERROR_CODE_CHECK(torch_parallel_for(begin, end, 1, pieces, &crowd));
        return;
    }
    const auto draw = [&](uint64_t below) {  // splitmix64
        uint64_t z = state += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return static_cast<int64_t>((z ^ (z >> 31)) % below);
    };
    std::vector<int64_t> cuts = {begin, end};
    const int64_t more = std::min<int64_t>(end - begin - 1, 1 + draw(8));
    for (int64_t i = 0; i < more; ++i) cuts.push_back(begin + 1 + draw(static_cast<uint64_t>(end - begin - 1)));
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<size_t> order(cuts.size() - 1);
    for (size_t i = 0; i < order.size(); ++i) {
        order[i] = i;
        std::swap(order[i], order[static_cast<size_t>(draw(i + 1))]);
    }
    const void* const above = __builtin_frame_address(0);
    if (opwright_check_between) opwright_check_between(-1, above);
    for (const size_t i : order) {
        part(cuts[i], cuts[i + 1], context);
        if (opwright_check_between) opwright_check_between(static_cast<int64_t>(i), above);
    }
}

}  // namespace ow_inner

// What a thread should at least get of work as cheap as an addition: PyTorch's own choice.
constexpr int64_t grain = 32768;

// body(begin, end) over parts of [begin, end) on PyTorch's threads; in this one when there is no more than `grain`.
//
//     parallel(0, rows, grain / columns + 1, [&](int64_t begin, int64_t end) { … });
template <class Body>
void parallel(int64_t begin, int64_t end, int64_t grain, const Body& body) {
    if (begin >= end) return;
    const bool checked = __builtin_expect(opwright_check_seed != 0, false);
    if (end - begin <= grain && !checked) return body(begin, end);
    // PyTorch reports that a body failed, but not why: the first exception is carried past it.
    struct Shared {
        const Body& body;
        std::atomic<bool> failed;
        std::exception_ptr error;
    } shared{body, {}, {}};
    const ParallelFunc part = [](int64_t b, int64_t e, void* context) {
        Shared& s = *static_cast<Shared*>(context);
        try {
            s.body(b, e);
        } catch (...) {
            if (!s.failed.exchange(true)) s.error = std::current_exception();
        }
    };
    if (checked) {
        ow_inner::parallel_checked(begin, end, part, &shared);
    } else {
        TORCH_ERROR_CODE_CHECK(torch_parallel_for(begin, end, grain, part, &shared));
    }
    if (shared.error) std::rethrow_exception(shared.error);
}

namespace ow_inner {

template <class R>
struct Unboxed {
    static constexpr size_t size = 1;
    static R take(StableIValue* stack) { return torch::stable::detail::to<R>(stack[0]); }
};

template <>
struct Unboxed<void> {
    static constexpr size_t size = 0;
    static void take(StableIValue*) {}
};

template <class... R>
struct Unboxed<std::tuple<R...>> {
    static constexpr size_t size = sizeof...(R);
    static std::tuple<R...> take(StableIValue* stack) { return take(stack, std::index_sequence_for<R...>()); }

  private:
    template <size_t... I>
    static std::tuple<R...> take(StableIValue* stack, std::index_sequence<I...>) {
        return {torch::stable::detail::to<R>(stack[I])...};
    }
};

}  // namespace ow_inner

namespace ow_inner {

// Whether PyTorch did it; else raises, with the reason where this torch (2.13 or newer) tells one.
template <class... Name>
OPWRIGHT_INLINE void succeeded(AOTITorchError code, const Name&... name) {
    if (__builtin_expect(code == TORCH_SUCCESS, true)) return;
    using What = const char* (*)();
    void* const found = dlsym(RTLD_DEFAULT, "torch_exception_get_what_without_backtrace");
    const char* const what = found ? reinterpret_cast<What>(found)() : nullptr;
    check(false, name..., " failed", what && *what ? ": " : "", what ? what : "");
}

}  // namespace ow_inner

// Calls an operator of PyTorch with all arguments of its schema, defaults too, each of the schema's type: Tensor,
// int64_t, double, bool, std::vector<int64_t>, DType, or a std::optional of one. A Scalar cannot be passed.
//
//     Tensor product = call("aten::mm", "", a, b);
//     Tensor sums = call("aten::sum", "dim_IntList", x, std::optional(std::vector<int64_t>{0}), false,
//                        std::optional<DType>());
template <class R = Tensor, class... Argument>
R call(const char* op, const char* overload, const Argument&... arguments) {
    constexpr size_t results = ow_inner::Unboxed<R>::size;
    StableIValue stack[std::max(sizeof...(Argument), results) + 1] = {torch::stable::detail::from(arguments)...};
    ow_inner::succeeded(torch_call_dispatcher(op, overload, stack, TORCH_ABI_VERSION), op, *overload ? "." : "",
                        overload);
    return ow_inner::Unboxed<R>::take(stack);
}

}  // namespace opwright

#pragma GCC visibility pop
