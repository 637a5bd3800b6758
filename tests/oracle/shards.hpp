#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <autopar/cost/model_profile.hpp>

namespace autopar::oracle {

/// The part of an amount, equal for all units of a region, on the shard with the most units; written independently of
/// `part_of_shard`.
[[nodiscard]] inline std::int64_t sliced(std::int64_t whole, const TensorRegion& region, std::int64_t shards) {
  const std::int64_t most = region.units / shards + (region.units % shards == 0 ? 0 : 1);
  const std::int64_t units = whole / region.units, rest = whole % region.units;
  return units * most + (rest * most) / region.units + ((rest * most) % region.units == 0 ? 0 : 1);
}

/// An atom's bytes on that shard, of which each shard has some whole; written independently of `memory_of_shard`.
[[nodiscard]] inline Bytes sliced(Bytes all, const Affine& each_holds, std::int64_t samples, const TensorRegion& region,
                                  std::int64_t shards) {
  const double most = std::ceil(static_cast<double>(region.units) / static_cast<double>(shards));
  const double part = most / static_cast<double>(region.units);
  const double each = std::max(0.0, each_holds.per_sample * static_cast<double>(samples) + each_holds.fixed);
  return Bytes(static_cast<std::int64_t>(std::ceil(each + (static_cast<double>(all.value()) - each) * part)));
}

}  // namespace autopar::oracle
