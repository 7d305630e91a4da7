// Whether a kernel's domain holds a call.

#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string>

#include "wire.h"

namespace opwright {

bool takes(const Route& route, at::ArrayRef<c10::IValue> values);

// Why it does not, of a call that it does not hold: the argument, and what it is.
std::string refusal(const Route& route, const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> values);

}  // namespace opwright
