// The ways back into Python, for calls that C++ does not serve itself.

#pragma once

#include <ATen/core/stack.h>

namespace opwright {

// The way of operators that were loaded where there is no Python.
constexpr int64_t nowhere = -1;

// Lets Python run a call in one of the ways that it has numbered (ways.py): the arguments are taken off the stack, the
// results put onto it. No operator of its own stands behind a way, which would cost every operator some 30 KiB.
void run_in_python(int64_t way, size_t arguments, torch::jit::Stack* stack);

}  // namespace opwright
