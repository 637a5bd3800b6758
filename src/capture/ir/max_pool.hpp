#pragma once

#include <cstdint>
#include <string_view>

namespace autopar {

/// Max-pooling of images that remembers where in its window each maximum was in a byte, not in an int64 index. Its
/// arguments are those of aten::max_pool2d; its result comes twice, see `OpTrait::kDuplicatedOutputs`. No program is
/// captured with it; `fold_max_pools` puts it there.
inline constexpr std::string_view kMaxPool = "autopar::max_pool2d";

/// Its arguments.
struct MaxPoolArgument {
  enum : std::int32_t { kInput, kKernelSize, kStride, kPadding, kDilation, kCeilMode, kCount };
};

/// Positions in a window that a byte tells apart.
inline constexpr std::int64_t kMostPositions = 256;

}  // namespace autopar
