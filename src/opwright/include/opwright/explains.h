// For a kernel that chooses between ways of its own: a function that says which one a call would take, and why. It has
// the kernel's parameters, and computes nothing; ow.explain shows what it returns beside the kernel's name.
//
//     std::string explain_scan(const Tensor& x, int64_t dim) {
//         return x.size(dim) < 1024 ? "one block a row" : "two passes, since rows have 1024 elements or more";
//     }
//
//     OPWRIGHT_KERNEL(scan, CPU, scan_cpu);
//     OPWRIGHT_EXPLAINS(scan, CPU, scan_cpu, explain_scan);
#pragma once

#include <opwright/kernel.h>

namespace opwright::ow_inner {

// Whether a function says something of a kernel: the kernel's types are held against the schema, and it has the same.
template <class Kernel, class Function>
constexpr bool explains = false;
template <class R, class... A>
constexpr bool explains<R (*)(A...), std::string (*)(A...)> = true;

}  // namespace opwright::ow_inner

#define OPWRIGHT_EXPLAINS(op, device, kernel, function) \
    OPWRIGHT_BIND_WORDS(OPWRIGHT_NAMESPACE, op, device, OPWRIGHT_KEY, kernel, function)
#define OPWRIGHT_BIND_WORDS(space, op, device, key, kernel, function)                                          \
    static_assert(opwright::ow_inner::explains<decltype(&kernel), decltype(&function)>,                        \
                  #function ": it must take what " #kernel " takes, and return std::string");                  \
    STABLE_TORCH_LIBRARY_IMPL(space, device, library) {                                                        \
        library.impl(C10_STRINGIZE(op) "." OPWRIGHT_ON_##device "_" C10_STRINGIZE(key) "_explains",            \
                     [](StableIValue* stack, uint64_t arguments, uint64_t results) {                           \
                         opwright::ow_inner::Boxed<&function>::OPWRIGHT_RUN_##device(C10_STRINGIZE(op), stack, \
                                                                                     arguments, results);      \
                     });                                                                                       \
    }                                                                                                          \
    static_assert(true, "")
