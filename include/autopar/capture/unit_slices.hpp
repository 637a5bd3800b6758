#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <autopar/core/placement.hpp>
#include <autopar/core/split.hpp>

#include <autopar/capture/op_graph.hpp>

namespace autopar {

/// A dim of a tensor as blocks of parts of units: `size[dim] = outer * units * (sum of inner)`. Each tensor shard of a
/// replica has its own units of every part of every block.
///
/// Example: the weight of fused queries, keys and values, [3 * heads * 64, features], is cut in dim 0. It has outer 3,
/// one unit per head, and inner {64}. With 4 query heads per key head and value head, the weight is [6 * heads * 64,
/// features]. It has outer 1, one unit per key head, and inner {256, 64, 64}.
struct UnitSlices {
  std::int32_t dim = 0;
  SizeExpr outer{0, 1};
  std::int64_t units = 1;
  std::vector<std::int64_t> inner{1};  ///< elements of a unit in each part; the shortest list that blocks repeat

  [[nodiscard]] UnitSlices at_dim(std::int64_t other) const {
    return {static_cast<std::int32_t>(other), outer, units, inner};
  }
  /// The slices after each element is repeated `count` times.
  [[nodiscard]] UnitSlices times(std::int64_t count) const;
  /// The inverse of `times`; nullopt if a unit has a remainder.
  [[nodiscard]] std::optional<UnitSlices> over(std::int64_t count) const;
  /// Slices of the dim's elements [begin, begin + length); nullopt unless these are whole parts.
  /// @pre outer does not depend on the batch
  [[nodiscard]] std::optional<UnitSlices> piece(std::int64_t begin, std::int64_t length) const;

  /// Elements of a unit in a block.
  [[nodiscard]] std::int64_t width() const { return std::accumulate(inner.begin(), inner.end(), std::int64_t{0}); }
  /// Whether each element is a unit, so that each shard has consecutive elements.
  [[nodiscard]] bool is_plain() const { return outer == SizeExpr{0, 1} && inner == std::vector<std::int64_t>{1}; }
  /// The units of each shard.
  [[nodiscard]] Split split(int shards) const { return Split::in_packs(units, shards); }
  /// Elements of each block on the shard at `place`: one range [first, second) per part.
  [[nodiscard]] std::vector<std::pair<std::int64_t, std::int64_t>> ranges(int shards, int place) const;
  /// Size of the dim on a shard with `own_units` units.
  [[nodiscard]] SizeExpr size_of(std::int64_t own_units) const {
    const auto each = own_units * width();
    return {outer.per_sample * each, outer.fixed * each};
  }

  friend bool operator==(const UnitSlices&, const UnitSlices&) = default;
};

/// Reduces `parts` to the shortest list that they repeat. @return the number of repetitions
std::int64_t fold_repeated(std::vector<std::int64_t>& parts);

/// Layout of a value on the tensor axis of its stage's mesh.
class TensorLayout {
 public:
  /// The same on every shard.
  [[nodiscard]] static TensorLayout whole() { return {}; }
  [[nodiscard]] static TensorLayout sharded(const UnitSlices& slices) {
    TensorLayout layout;
    layout.slices_ = slices;
    return layout;
  }
  /// In slices of tokens: each shard has its own tokens of every sample. The layout between regions that the shards
  /// compute together (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2).
  [[nodiscard]] static TensorLayout sequence(const UnitSlices& slices) {
    TensorLayout layout = sharded(slices);
    layout.is_sequence_ = true;
    return layout;
  }
  /// Each shard has one term of a sum.
  [[nodiscard]] static TensorLayout partial() {
    TensorLayout layout;
    layout.is_partial_ = true;
    return layout;
  }

  [[nodiscard]] bool is_sharded() const { return slices_.has_value(); }
  [[nodiscard]] bool is_partial() const { return is_partial_; }
  [[nodiscard]] bool is_sequence() const { return is_sequence_; }
  /// @pre is_sharded()
  [[nodiscard]] const UnitSlices& slices() const { return *slices_; }
  [[nodiscard]] Placement placement() const {
    if (is_partial_) return Placement::partial();
    return slices_ ? Placement::shard(slices_->dim) : Placement::replicate();
  }

  friend bool operator==(const TensorLayout&, const TensorLayout&) = default;

 private:
  std::optional<UnitSlices> slices_;
  bool is_partial_ = false, is_sequence_ = false;
};

/// a * b; nullopt if both depend on the batch.
[[nodiscard]] std::optional<SizeExpr> product(SizeExpr a, SizeExpr b);
/// a / b; nullopt if there is a remainder at some batch size.
[[nodiscard]] std::optional<SizeExpr> quotient(SizeExpr a, SizeExpr b);
/// Product of dims [begin, end); nullopt if two of them depend on the batch.
[[nodiscard]] std::optional<SizeExpr> product_of(const std::vector<SizeExpr>& sizes, std::size_t begin,
                                                 std::size_t end);

/// Slices of a value [.., tokens, .., features] with its tokens as units; nullopt if it has none. Every sample has the
/// same number of tokens. If samples and tokens share a dim, each sample is a block.
[[nodiscard]] std::optional<UnitSlices> sequence_slices(const std::vector<SizeExpr>& sizes);

/// The slices after the elements get other dims (view, reshape, flatten); nullopt if they are no longer units of one
/// dim.
[[nodiscard]] std::optional<UnitSlices> reshaped(const UnitSlices& slices, const std::vector<SizeExpr>& from,
                                                 const std::vector<SizeExpr>& to);

}  // namespace autopar
