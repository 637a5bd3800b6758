#pragma once

#include <span>

#include "torch/passes/pass.hpp"

namespace autopar::passes {

/// All passes, in the order in which they run.
[[nodiscard]] std::span<const Pass> pass_list();

}  // namespace autopar::passes
