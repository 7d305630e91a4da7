// What chooses between an operator's kernels on one device.

#pragma once

#include <ATen/core/stack.h>

#include <functional>
#include <optional>
#include <string>

#include "wire.h"

namespace opwright {

// Puts these routes into force, in place of those before.
void install(Routing routing);

// Takes all routes of an operator away: what calls it comes back to Python, by these ways where they are new.
void unroute(const std::string& op, std::optional<int64_t> reference = std::nullopt,
             std::optional<int64_t> rejecting = std::nullopt);

// Runs the kernel that takes a call, whose arguments lie on the stack; false: there is none, and nothing was done.
using Serve = std::function<bool(size_t arguments, torch::jit::Stack* stack)>;
// What serves an operator on a device; empty: nobody.
Serve server_of(const std::string& op, const char* device);

}  // namespace opwright
