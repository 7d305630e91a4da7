// Two copies of this library may meet in one process: a program's own, and Python's. The first serves both, and the
// other defines nothing.

#pragma once

#include <torch/library.h>

namespace opwright {

// Whether this copy was first.
bool is_first();

}  // namespace opwright

// Defines operators of the namespace opwright_native, once in a process.
#define OPWRIGHT_OPERATORS(library)                                                                             \
    void define_operators(torch::Library& library);                                                             \
    const std::unique_ptr<torch::Library> operators = [] {                                                      \
        if (!opwright::is_first()) return std::unique_ptr<torch::Library>();                                    \
        auto made = std::make_unique<torch::Library>(torch::Library::FRAGMENT, "opwright_native", std::nullopt, \
                                                     __FILE__, __LINE__);                                       \
        define_operators(*made);                                                                                \
        return made;                                                                                            \
    }();                                                                                                        \
    void define_operators(torch::Library& library)
