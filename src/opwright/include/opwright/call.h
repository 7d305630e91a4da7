// PyTorch's threads and PyTorch's operators.
#pragma once

#include <opwright/tensor.h>
#include <torch/csrc/stable/stableivalue_conversions.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <tuple>

#pragma GCC visibility push(hidden)

namespace opwright {

// What a thread should at least get of work as cheap as an addition: PyTorch's own choice.
constexpr int64_t grain = 32768;

// body(begin, end) over parts of [begin, end) on PyTorch's threads; in this one when there is no more than `grain`.
//
//     parallel(0, rows, grain / columns + 1, [&](int64_t begin, int64_t end) { … });
template <class Body>
void parallel(int64_t begin, int64_t end, int64_t grain, const Body& body) {
    if (begin >= end) return;
    if (end - begin <= grain) return body(begin, end);
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
    TORCH_ERROR_CODE_CHECK(torch_parallel_for(begin, end, grain, part, &shared));
    if (shared.error) std::rethrow_exception(shared.error);
}

namespace detail {

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

}  // namespace detail

// Calls an operator of PyTorch with all arguments of its schema, defaults too, each of the schema's type: Tensor,
// int64_t, double, bool, std::vector<int64_t>, DType, or a std::optional of one. A Scalar cannot be passed.
//
//     Tensor product = call("aten::mm", "", a, b);
//     Tensor sums = call("aten::sum", "dim_IntList", x, std::optional(std::vector<int64_t>{0}), false,
//                        std::optional<DType>());
template <class R = Tensor, class... Argument>
R call(const char* op, const char* overload, const Argument&... arguments) {
    constexpr size_t results = detail::Unboxed<R>::size;
    StableIValue stack[std::max(sizeof...(Argument), results) + 1] = {torch::stable::detail::from(arguments)...};
    check(torch_call_dispatcher(op, overload, stack, TORCH_ABI_VERSION) == TORCH_SUCCESS, op, *overload ? "." : "",
          overload, " failed");
    return detail::Unboxed<R>::take(stack);
}

}  // namespace opwright

#pragma GCC visibility pop
