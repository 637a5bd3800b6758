#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/schedule/action.hpp>

#include "torch/tensor_parallel/unit_slices.hpp"

namespace autopar {

/// Some of a tensor's elements, in its memory order: the same range of each of so many equal blocks. Those of a flat
/// shard are one block's; those of a tensor shard lie in as many as there are rows before the sliced dim.
struct Slab {
  std::int64_t blocks = 1;
  Interval range{};

  Slab() = default;
  Slab(Interval elements) : range(elements) {}  // NOLINT(google-explicit-constructor)
  Slab(std::int64_t count, Interval of_each) : blocks(count), range(of_each) {}

  [[nodiscard]] std::int64_t size() const { return blocks * range.size(); }
  [[nodiscard]] bool empty() const { return size() == 0; }
  /// These elements of a whole tensor without gaps: a view, [blocks, elements of each].
  [[nodiscard]] at::Tensor of(const at::Tensor& whole) const;
};

/// What one of `shards` has of a tensor of these sizes.
[[nodiscard]] Slab slab_of(const UnitSlices& slices, const std::vector<std::int64_t>& sizes, int shards, int place);

/// Sizes of the slice.
[[nodiscard]] std::vector<std::int64_t> sliced_sizes(const UnitSlices& slices, std::vector<std::int64_t> sizes,
                                                     int shards, int place);

}  // namespace autopar
