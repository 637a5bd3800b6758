#pragma once

#include <string_view>
#include <utility>

#include <autopar/core/cluster.hpp>

namespace autopar {

/// The cluster for a model with `Options::precision`: with "tf32", float32 products run at the rate of TF32. Other
/// element types appear in the captured graph.
[[nodiscard]] inline Cluster at_precision(Cluster cluster, std::string_view precision) {
  if (precision == "tf32") cluster.device.f32 = cluster.device.tf32;
  return cluster;
}

}  // namespace autopar
