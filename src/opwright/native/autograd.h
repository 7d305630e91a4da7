// What records an operator's calls for autograd.

#pragma once

#include <string>

#include "wire.h"

namespace opwright {

// Puts what was written of an operator behind it; the first time, the recorder goes to the operator's autograd keys.
void record(Recorded recorded);

// Lets Python be asked for it anew.
void forget(const std::string& op);

}  // namespace opwright
