// What records an operator's calls for autograd.

#pragma once

#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <string>

#include "wire.h"

namespace opwright {

// Puts what was written of an operator behind it; the first time, the recorder goes to the operator's autograd keys.
void record(Recorded recorded);

// Lets Python be asked for it anew.
void forget(const std::string& op);

// Records a call of an operator for autograd, as its autograd key would; false: that key has to see it. `serve` may run
// the form that is recorded; false: the keys find who does.
bool record_directly(const Recorded& recorded, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                     c10::function_ref<bool(const c10::OperatorHandle&)> serve);

// What is behind an operator's name, changing with it.
const std::atomic<const Recorded*>* recorded_of(const std::string& op);

}  // namespace opwright
