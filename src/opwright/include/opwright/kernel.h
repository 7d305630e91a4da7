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

#include <opwright/call.h>
#include <opwright/dispatch.h>
#include <opwright/layout.h>
#include <opwright/map.h>
#include <opwright/reduce.h>
#include <opwright/simd.h>
#include <opwright/tensor.h>
#include <torch/csrc/stable/library.h>

// Binds a function to an operator on a device. It becomes the overload OP.DEVICE_KEY, where the key of the build keeps
// it apart from earlier builds of the same operator; Python has defined that overload before it loads the library.
#define OPWRIGHT_KERNEL(op, device, function) OPWRIGHT_BIND(OPWRIGHT_NAMESPACE, op, device, OPWRIGHT_KEY, function)
#define OPWRIGHT_BIND(space, op, device, key, function)                                                        \
    STABLE_TORCH_LIBRARY_IMPL(space, device, library) {                                                        \
        library.impl(C10_STRINGIZE(op) "." OPWRIGHT_ON_##device "_" C10_STRINGIZE(key), TORCH_BOX(&function)); \
    }                                                                                                          \
    static_assert(true, "")
#define OPWRIGHT_ON_CPU "cpu"
#define OPWRIGHT_ON_CUDA "cuda"

using namespace opwright;
