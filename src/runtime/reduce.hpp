#pragma once

#include <cstddef>
#include <span>

#include <autopar/core/dtype.hpp>

namespace autopar::detail {

/// Element types that `add_in_order` takes.
[[nodiscard]] bool can_reduce(DType dtype);

/// out[i] = addends[0][i] + addends[1][i] + …, in this order, so that the bits do not depend on who adds or on how the
/// buffer is cut. 16-bit types are added in fp32 and rounded once. `out` may be one of the addends.
/// @pre can_reduce(dtype); every pointer has room for `elements`.
void add_in_order(std::byte* out, std::span<const std::byte* const> addends, std::size_t elements, DType dtype);

}  // namespace autopar::detail
