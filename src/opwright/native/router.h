// What chooses between an operator's kernels on one device.

#pragma once

#include <optional>
#include <string>

#include "wire.h"

namespace opwright {

// Puts these routes into force, in place of those before.
void install(Routing routing);

// Takes all routes of an operator away: what calls it comes back to Python, by these ways where they are new.
void unroute(const std::string& op, std::optional<int64_t> reference = std::nullopt,
             std::optional<int64_t> rejecting = std::nullopt);

}  // namespace opwright
