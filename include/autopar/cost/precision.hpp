#pragma once

#include <string_view>
#include <utility>

#include <autopar/core/cluster.hpp>

namespace autopar {

/// The cluster as a model sees it that runs with `Options::precision`: "tf32" has products of float32 at the rate of
/// TF32. Other element types than the module's are in the captured graph itself.
[[nodiscard]] inline Cluster at_precision(Cluster cluster, std::string_view precision) {
  if (precision == "tf32") cluster.device.f32 = cluster.device.tf32;
  return cluster;
}

}  // namespace autopar
