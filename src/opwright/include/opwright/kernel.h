// What a kernel includes. A file with a kernel and one line that binds it is all an operator's folder needs:
//
//     #include <opwright/kernel.h>
//
//     Tensor hypot_cpu(const Tensor& x, const Tensor& y) {
//         return compute(x, [&](auto zero) {
//             using C = decltype(zero);
//             return map([](C a, C b) { return std::sqrt(a * a + b * b); }, x, y);
//         });
//     }
//
//     OPWRIGHT_KERNEL(hypot, CPU, hypot_cpu);
//
// The parameters are those of the schema: const Tensor&, int64_t, double (float, or a number), bool,
// std::optional<Tensor>, std::vector<int64_t>, Wanted; several results are a std::tuple. The reference has made the
// checks, and the declared domain has been asked, before a kernel runs.
#pragma once

#ifdef OPWRIGHT_CUDA  // set by the build for kernels of the GPU, in .cu files and in .cpp files beside them
#include <opwright/device.h>
#endif
#include <opwright/call.h>
#include <opwright/dispatch.h>
#include <opwright/layout.h>
#include <opwright/tensor.h>
#ifndef OPWRIGHT_CUDA
#include <opwright/map.h>
#include <opwright/reduce.h>
#include <opwright/simd.h>
#elif defined(__CUDACC__)
#include <opwright/launch.cuh>
#include <opwright/map.cuh>
#include <opwright/math.cuh>
#include <opwright/reduce.cuh>
#endif
#include <torch/csrc/stable/library.h>

#pragma GCC visibility push(hidden)

namespace opwright {
namespace ow_inner {

// A function as PyTorch calls it, on a stack of arguments that become results. TORCH_BOX does the same with more code
// to compile and more copies.
template <auto function>
struct Boxed;

template <class R, class... A, R (*function)(A...)>
struct Boxed<function> {
    static void run(StableIValue* stack, uint64_t arguments, uint64_t results) {
        check(arguments == sizeof...(A) && results == Unboxed<R>::size, "the kernel must have the ", arguments,
              " parameters and ", results, " results of its schema, got ", sizeof...(A), " and ", Unboxed<R>::size);
        run(stack, std::index_sequence_for<A...>());
    }

#ifdef OPWRIGHT_CUDA
    // On the device of the first tensor, which becomes the current one: memory, launches and streams are of that.
    static void run_on_device(const char* op, StableIValue* stack, uint64_t arguments, uint64_t results) {
        constexpr bool tensor[] = {std::is_same_v<std::decay_t<A>, Tensor>..., false};
        size_t first = 0;
        while (first < sizeof...(A) && !tensor[first]) ++first;
        check(first < sizeof...(A), op, ": a CUDA kernel must take a tensor, whose device it runs on");
        // The stack owns the handle; it is only looked at.
        const OnDevice guard(op, torch::stable::detail::to<AtenTensorHandle>(stack[first]));
        run(stack, arguments, results);
    }
#endif

  private:
    template <size_t... I>
    static void run(StableIValue* stack, std::index_sequence<I...>) {
        if constexpr (std::is_void_v<R>) {
            function(torch::stable::detail::to<std::decay_t<A>>(stack[I])...);
        } else {
            put(stack, function(torch::stable::detail::to<std::decay_t<A>>(stack[I])...));
        }
    }

    template <class T>
    static void put(StableIValue* stack, const T& result) {
        stack[0] = torch::stable::detail::from(result);
    }
    template <class... T>
    static void put(StableIValue* stack, const std::tuple<T...>& result) {
        std::apply([&](const auto&... each) { ((*stack++ = torch::stable::detail::from(each)), ...); }, result);
    }
};

}  // namespace ow_inner
}  // namespace opwright

#pragma GCC visibility pop

// Binds a function to an operator on a device. It becomes the overload OP.DEVICE_KEY, where the key of the build keeps
// it apart from earlier builds of the same operator; Python has defined that overload before it loads the library.
#define OPWRIGHT_KERNEL(op, device, function) OPWRIGHT_BIND(OPWRIGHT_NAMESPACE, op, device, OPWRIGHT_KEY, function)
#define OPWRIGHT_BIND(space, op, device, key, function)                                 \
    STABLE_TORCH_LIBRARY_IMPL(space, device, library) {                                 \
        library.impl(C10_STRINGIZE(op) "." OPWRIGHT_ON_##device "_" C10_STRINGIZE(key), \
                     OPWRIGHT_RUN_##device(op, function));                              \
    }                                                                                   \
    static_assert(true, "")
#define OPWRIGHT_RUN_CPU(op, function) opwright::ow_inner::Boxed<&function>::run
#define OPWRIGHT_RUN_CUDA(op, function)                                                                    \
    [](StableIValue* stack, uint64_t arguments, uint64_t results) {                                        \
        opwright::ow_inner::Boxed<&function>::run_on_device(C10_STRINGIZE(op), stack, arguments, results); \
    }
#define OPWRIGHT_ON_CPU "cpu"
#define OPWRIGHT_ON_CUDA "cuda"

using namespace opwright;
