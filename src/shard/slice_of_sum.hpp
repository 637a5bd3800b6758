#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include <autopar/core/split.hpp>
#include <autopar/shard/group.hpp>

namespace autopar::detail {

/// This rank's slice of the sum of what all members have. Without autograd.
/// @param term       let go of when it was read
/// @param meanwhile  called while the sum is under way, see GroupState
[[nodiscard]] at::Tensor slice_of_sum(at::Tensor term, const Group& group, int dim, const Split& split,
                                      const std::function<void()>& meanwhile = {});

}  // namespace autopar::detail
