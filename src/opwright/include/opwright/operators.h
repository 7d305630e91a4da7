// What a generated header calls operators with, in programs that use PyTorch's C++.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace opwright {

// The operator of this name, looked up once by each function; an error where its library could not bring it along.
template <class Function>
c10::TypedOperatorHandle<Function> find(const char* name, const char* trouble) {
    TORCH_CHECK(trouble == nullptr, "opwright: ", trouble);
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

}  // namespace opwright
