#pragma once

#include <cstdint>
#include <string_view>

namespace autopar {

/// Operators that treat each element by itself, joined: pointwise(inputs, program) gives the results that the text of
/// a program names (fused/pointwise/program.hpp), all of the sizes that the inputs broadcast to. No program is
/// captured with it; `fold_pointwise` puts it there.
inline constexpr std::string_view kJoinedPointwise = "autopar::pointwise";

/// Its arguments.
struct PointwiseArgument {
  enum : std::int32_t { kInputs, kProgram, kCount };
};

}  // namespace autopar
