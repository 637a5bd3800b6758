#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/schedule/action.hpp>

#include "torch/tensor_parallel/unit_slices.hpp"

namespace autopar {

/// Some of a tensor's elements, in its memory order: the same range of each of so many equal blocks, and of these, one
/// behind the other, a part. Those of a flat shard are one block's; those of a tensor shard lie in as many as there are
/// rows before the sliced dim, of which its replicas may have a part each.
struct Slab {
  std::int64_t blocks = 1;
  Interval range{};
  Interval part{};

  Slab() = default;
  Slab(Interval elements) : Slab(1, elements) {}  // NOLINT(google-explicit-constructor)
  Slab(std::int64_t count, Interval of_each) : blocks(count), range(of_each), part{0, count * of_each.size()} {}

  [[nodiscard]] std::int64_t size() const { return part.size(); }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] bool is_partial() const { return size() < blocks * range.size(); }
  /// Where these elements lie in a whole tensor without gaps, one view behind the other: [blocks, elements of each], of
  /// one block flat.
  [[nodiscard]] std::vector<at::Tensor> views(const at::Tensor& whole) const;
  /// These elements: the view, if one is enough; else a copy, flat.
  [[nodiscard]] at::Tensor of(const at::Tensor& whole) const;
  /// Writes them. @param own  as many elements, without gaps
  void put(const at::Tensor& own, const at::Tensor& whole) const;
};

/// What one of `shards` has of a tensor of these sizes.
[[nodiscard]] Slab slab_of(const UnitSlices& slices, const std::vector<std::int64_t>& sizes, int shards, int place);

/// Sizes of the slice.
[[nodiscard]] std::vector<std::int64_t> sliced_sizes(const UnitSlices& slices, std::vector<std::int64_t> sizes,
                                                     int shards, int place);

}  // namespace autopar
