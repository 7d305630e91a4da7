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
// The parameters are those of the schema: const Tensor& (or Tensor&, for one that is written to), int64_t, double
// (float, or a number), bool, std::string, DType, std::optional<Tensor>, std::vector<int64_t>, Wanted; several results
// are a std::tuple, none is void. The reference has made the checks, and the declared domain has been asked, before a
// kernel runs. In files built with abi="aten" they may be of ATen's types as well: at::Tensor, at::IntArrayRef, …
#pragma once

#ifdef OPWRIGHT_CUDA  // set by the build for kernels of the GPU, in .cu files and in .cpp files beside them
#include <opwright/device.h>
#endif
#include <opwright/call.h>
#include <opwright/crossing.h>
#include <opwright/dispatch.h>
#include <opwright/layout.h>
#include <opwright/lent.h>
#include <opwright/signature.h>
#include <opwright/tensor.h>
#ifndef OPWRIGHT_CUDA
#include <opwright/map.h>
#include <opwright/reduce.h>
#include <opwright/rows.h>
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
    static void run(const char* op, StableIValue* stack, uint64_t arguments, uint64_t results) {
        // Python has compared the types. That there are as many is what memory safety needs.
        const bool fits = is_list ? results > 0 : results == Results<R>::count;
        check(arguments == sizeof...(A) && fits, op, ": the kernel has ", sizeof...(A), " parameters and ",
              Results<R>::count, " results, its schema ", arguments, " and ", results);
        run(op, stack, results, std::index_sequence_for<A...>());
    }

#ifdef OPWRIGHT_CUDA
    // On the device of the first tensor, which becomes the current one: memory, launches and streams are of that.
    static void run_on_device(const char* op, StableIValue* stack, uint64_t arguments, uint64_t results) {
        const OnDevice guard(op, first_tensor<A...>(op, stack));
        run(op, stack, arguments, results);
    }
#endif

  private:
    static constexpr bool is_list = is_list_of_tensors<R>;

    template <size_t... I>
    static void run(const char* op, StableIValue* stack, uint64_t results, std::index_sequence<I...>) {
        if constexpr (std::is_void_v<R>) {
            function(Argument<A>(stack[I]).pass()...);
        } else {
            put(op, stack, results, function(Argument<A>(stack[I]).pass()...));
        }
    }

    template <class T>
    static void put(const char* op, StableIValue* stack, uint64_t results, const T& result) {
        if constexpr (is_list) {
            // As extensions return several results.
            check(results == 1 || results == result.size(), op, ": the kernel returned ", result.size(),
                  " tensors, its schema has ", results, " results");
            if (results > 1)
                return void(std::transform(result.begin(), result.end(), stack, returned<typename T::value_type>));
        }
        stack[0] = returned(result);
    }
    template <class... T>
    static void put(const char*, StableIValue* stack, uint64_t, const std::tuple<T...>& result) {
        std::apply([&](const auto&... each) { ((*stack++ = returned(each)), ...); }, result);
    }
};

}  // namespace ow_inner
}  // namespace opwright

#pragma GCC visibility pop

// Binds a function to an operator on a device, CPU or CUDA. It becomes the overload OP.DEVICE_KEY, where the key of the
// build keeps it apart from earlier builds of the same operator; Python has defined that overload before it is called.
#define OPWRIGHT_KERNEL(op, device, function) \
    OPWRIGHT_CHOOSE(OPWRIGHT_FOR_##device)(OPWRIGHT_NAMESPACE, op, device, OPWRIGHT_KEY, function)
#define OPWRIGHT_BIND(space, op, device, key, function)                                                        \
    OPWRIGHT_RECORD(op, device, function);                                                                     \
    STABLE_TORCH_LIBRARY_IMPL(space, device, library) {                                                        \
        library.impl(C10_STRINGIZE(op) "." OPWRIGHT_ON_##device "_" C10_STRINGIZE(key),                        \
                     [](StableIValue* stack, uint64_t arguments, uint64_t results) {                           \
                         opwright::ow_inner::Boxed<&function>::OPWRIGHT_RUN_##device(C10_STRINGIZE(op), stack, \
                                                                                     arguments, results);      \
                     });                                                                                       \
        static opwright::ow_inner::Offered offered = {                                                         \
            C10_STRINGIZE(space) "::" C10_STRINGIZE(op) "." OPWRIGHT_ON_##device "_" C10_STRINGIZE(key),       \
            [](const opwright::ow_inner::Lent& call) {                                                         \
                opwright::ow_inner::Lending<&function>::OPWRIGHT_RUN_##device(C10_STRINGIZE(op), call);        \
            },                                                                                                 \
            nullptr};                                                                                          \
        opwright::ow_inner::offer<&function>(offered);                                                         \
    }                                                                                                          \
    static_assert(true, "")
#define OPWRIGHT_RUN_CPU run
#define OPWRIGHT_RUN_CUDA run_on_device
#define OPWRIGHT_ON_CPU "cpu"
#define OPWRIGHT_ON_CUDA "cuda"

// What OPWRIGHT_KERNEL becomes: the second of two words where there is such a device, and else a sentence.
#define OPWRIGHT_CHOOSE(...) OPWRIGHT_SECOND(__VA_ARGS__, OPWRIGHT_NO_DEVICE, )
#define OPWRIGHT_SECOND(first, second, ...) second
#define OPWRIGHT_FOR_CPU , OPWRIGHT_BIND
#ifdef OPWRIGHT_CUDA
#define OPWRIGHT_FOR_CUDA , OPWRIGHT_BIND
#else
#define OPWRIGHT_FOR_CUDA , OPWRIGHT_NO_CUDA
#endif
#define OPWRIGHT_NO_DEVICE(space, op, device, key, function) \
    static_assert(false, C10_STRINGIZE(op) ": the device must be CPU or CUDA, got " C10_STRINGIZE(device))
#define OPWRIGHT_NO_CUDA(space, op, device, key, function) \
    static_assert(false, C10_STRINGIZE(op) ": this file is built for the CPU; kernels for CUDA stand in a .cu file")

using namespace opwright;
