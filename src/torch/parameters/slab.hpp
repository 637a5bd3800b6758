#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/schedule/action.hpp>

#include <autopar/capture/unit_slices.hpp>

namespace autopar {
class InitRecord;
}  // namespace autopar

namespace autopar::parameters {

/// Some of a tensor's elements, in its memory order: the same ranges of each of so many equal blocks, and of these, one
/// behind the other, a part. Those of a flat shard are one block's; those of a tensor shard lie in as many as there are
/// rows before the sliced dim, in several ranges of each where units have several parts, and its replicas may have a
/// part each.
struct Slab {
  std::int64_t blocks = 1;
  std::vector<Interval> ranges{};  ///< ascending
  Interval part{};

  Slab() = default;
  Slab(Interval elements) : Slab(1, {elements}) {}  // NOLINT(google-explicit-constructor)
  Slab(std::int64_t count, std::vector<Interval> of_each)
      : blocks(count), ranges(std::move(of_each)), part{0, count * block_size()} {}

  /// Elements of each block.
  [[nodiscard]] std::int64_t block_size() const {
    return std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                           [](std::int64_t sum, const Interval& range) { return sum + range.size(); });
  }
  [[nodiscard]] std::int64_t size() const { return part.size(); }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] bool is_partial() const { return size() < blocks * block_size(); }
  /// Whether they follow one another in the tensor's memory.
  [[nodiscard]] bool is_one_range() const { return blocks == 1 && ranges.size() == 1; }
  /// Where these elements lie in a whole tensor without gaps, one view behind the other: [blocks, elements of each]
  /// where blocks have one range, else flat.
  [[nodiscard]] std::vector<at::Tensor> views(const at::Tensor& whole) const;
  /// These elements: the view, if one is enough; else a copy, flat.
  [[nodiscard]] at::Tensor of(const at::Tensor& whole) const;
  /// Writes them. @param own  as many elements, without gaps
  void put(const at::Tensor& own, const at::Tensor& whole) const;

  friend bool operator==(const Slab&, const Slab&) = default;
};

/// These elements of a tensor that is made of placeholders, flat and without the part; nothing if they cannot be made
/// without the others. @cost like `InitRecord::part`, for each range
[[nodiscard]] std::optional<at::Tensor> made_alone(InitRecord& record, const at::Tensor& placeholder, const Slab& slab);

/// What one of `shards` has of a tensor of these sizes.
[[nodiscard]] Slab slab_of(const UnitSlices& slices, const std::vector<std::int64_t>& sizes, int shards, int place);

/// Sizes of the slice.
[[nodiscard]] std::vector<std::int64_t> sliced_sizes(const UnitSlices& slices, std::vector<std::int64_t> sizes,
                                                     int shards, int place);

}  // namespace autopar::parameters
