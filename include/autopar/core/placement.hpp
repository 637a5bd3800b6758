#pragma once

#include <string>

#include <autopar/core/assert.hpp>

namespace autopar {

/// How a tensor lies on the ranks of one axis of a mesh, as in PyTorch's DTensor (torch.distributed.tensor).
///
///     Placement::shard(0)   // each rank has some of the rows; joined along dim 0 they are the tensor
class Placement {
 public:
  /// The same tensor on each rank.
  [[nodiscard]] static constexpr Placement replicate() { return Placement(kReplicate); }

  /// Slices of the tensor: joined along `dim` (≥ 0) in the order of the ranks, they are the tensor. Slices may be of
  /// unlike lengths, and empty.
  [[nodiscard]] static constexpr Placement shard(int dim) {
    AUTOPAR_ASSERT(dim >= 0, "a placement shards a dim counted from the front");
    return Placement(dim);
  }

  /// Terms of a sum: the tensor is what the ranks hold, added up.
  [[nodiscard]] static constexpr Placement partial() { return Placement(kPartial); }

  [[nodiscard]] constexpr bool is_replicate() const { return value_ == kReplicate; }
  [[nodiscard]] constexpr bool is_shard() const { return value_ >= 0; }
  [[nodiscard]] constexpr bool is_shard(int dim) const { return value_ == dim && is_shard(); }
  [[nodiscard]] constexpr bool is_partial() const { return value_ == kPartial; }

  /// \pre is_shard()
  [[nodiscard]] constexpr int dim() const {
    AUTOPAR_ASSERT(is_shard(), "only a sharded placement has a dim");
    return value_;
  }

  friend constexpr bool operator==(Placement, Placement) = default;

 private:
  static constexpr int kReplicate = -1;
  static constexpr int kPartial = -2;

  explicit constexpr Placement(int value) : value_(value) {}

  int value_;
};

/// As DTensor prints it: "Replicate()", "Shard(0)", "Partial()".
[[nodiscard]] inline std::string to_string(Placement placement) {
  if (placement.is_replicate()) return "Replicate()";
  if (placement.is_partial()) return "Partial()";
  return "Shard(" + std::to_string(placement.dim()) + ")";
}

}  // namespace autopar
