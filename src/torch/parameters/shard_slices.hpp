#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/core/element_slices.hpp>

#include <autopar/capture/unit_slices.hpp>

namespace autopar {
class InitRecord;
}  // namespace autopar

namespace autopar::parameters {

/// Some of a tensor's elements in its memory order. A flat shard (ZeRO) is a range of one block. A tensor shard has as
/// many blocks as there are rows before the sliced dim. It has several ranges in each if units have several parts
/// (fused projections). With ZeRO, its replicas own a part each.
struct ShardSlices : ElementSlices {
  ShardSlices() = default;
  ShardSlices(ElementSlices elements) : ElementSlices(std::move(elements)) {}  // NOLINT(google-explicit-constructor)
  ShardSlices(Interval elements) : ShardSlices(1, {elements}) {}               // NOLINT(google-explicit-constructor)
  ShardSlices(std::int64_t count, std::vector<Interval> of_each) : ElementSlices{count, std::move(of_each), {}} {
    part = {0, count * block_size()};
  }

  /// Number of elements in each block.
  [[nodiscard]] std::int64_t block_size() const {
    return std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                           [](std::int64_t sum, const Interval& range) { return sum + range.size(); });
  }
  [[nodiscard]] std::int64_t size() const { return part.size(); }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] bool is_partial() const { return size() < blocks * block_size(); }
  /// Whether the elements are contiguous in the tensor's memory.
  [[nodiscard]] bool is_one_range() const { return blocks == 1 && ranges.size() == 1; }
  /// Views of these elements of a whole tensor without gaps, in order: [blocks, elements of each] if blocks have one
  /// range, otherwise flat.
  [[nodiscard]] std::vector<at::Tensor> views(const at::Tensor& whole) const;
  /// These elements: one view if possible, otherwise a flat copy.
  [[nodiscard]] at::Tensor of(const at::Tensor& whole) const;
  /// Writes these elements.
  /// @param own  as many elements, without gaps
  void put(const at::Tensor& own, const at::Tensor& whole) const;

  friend bool operator==(const ShardSlices&, const ShardSlices&) = default;
};

/// These elements of a tensor that consists of placeholders, flat and without `part`. Empty if they cannot be made
/// without the other elements.
/// @cost as `InitRecord::part`, for each range
[[nodiscard]] std::optional<at::Tensor> made_alone(InitRecord& record, const at::Tensor& placeholder,
                                                   const ShardSlices& slices);

/// The elements of one of `shards` tensor shards in a tensor of these sizes.
[[nodiscard]] ShardSlices slices_of_shard(const UnitSlices& slices, const std::vector<std::int64_t>& sizes, int shards,
                                          int place);

/// Sizes of a tensor shard's slice.
[[nodiscard]] std::vector<std::int64_t> sliced_sizes(const UnitSlices& slices, std::vector<std::int64_t> sizes,
                                                     int shards, int place);

}  // namespace autopar::parameters
