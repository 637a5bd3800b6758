#pragma once

#include <string>

#include <autopar/core/assert.hpp>

namespace autopar {

/// How the ranks of one axis of a mesh hold a tensor, as in PyTorch's DTensor (torch.distributed.tensor).
///
///     Placement::shard(0)   // each rank has some of the rows; joined along dim 0 they are the tensor
class Placement {
 public:
  /// Each rank holds the whole tensor.
  [[nodiscard]] static constexpr Placement replicate() { return Placement(kReplicate); }

  /// Each rank holds a slice. The slices, joined along `dim` (≥ 0) in rank order, are the tensor. Their lengths may
  /// differ and may be 0.
  [[nodiscard]] static constexpr Placement shard(int dim) {
    AUTOPAR_ASSERT(dim >= 0, "a placement shards a dim counted from the front");
    return Placement(dim);
  }

  /// Each rank holds an addend; the tensor is the sum of all ranks' addends.
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
