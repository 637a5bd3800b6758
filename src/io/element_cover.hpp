#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <autopar/core/element_slices.hpp>

namespace autopar::detail {

/// Checks that parts of a tensor are all its elements, each once. Those of more than one block must have equally many.
/// @return what is wrong; empty: nothing
/// @cost n log n in the number of ranges, whatever the number of blocks
[[nodiscard]] std::string cover_fault(std::int64_t elements, const std::vector<const ElementSlices*>& parts);

}  // namespace autopar::detail
