// Whether a kernel's domain holds a call.

#pragma once

#include <ATen/core/ivalue.h>

#include "wire.h"

namespace opwright {

bool takes(const Route& route, at::ArrayRef<c10::IValue> values);

}  // namespace opwright
