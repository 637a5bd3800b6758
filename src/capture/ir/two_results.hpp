#pragma once

#include <string_view>

#include "capture/ir/batch_norm_relu.hpp"
#include "capture/ir/max_pool.hpp"

namespace autopar {

/// Whether the operator returns its one result twice: the same numbers, for two readers, so that its backward gets a
/// gradient from each. Both may be one memory: nothing writes to either. Graphs name the first alone.
[[nodiscard]] inline bool hands_out_twice(std::string_view name) { return name == kBatchNormRelu || name == kMaxPool; }

}  // namespace autopar
