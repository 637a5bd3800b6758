#pragma once

#include <string>
#include <vector>

#include <autopar/plan/options.hpp>

/// Plans under which tests load checkpoints.
namespace loading {

struct Way {
  std::string name;
  autopar::Options options;
  int ranks = 1;
};

/// @param replicas  of each stage
/// @param tensor    shards of each replica
inline Way way(const std::string& name, std::vector<int> replicas, int zero, int tensor = 1) {
  autopar::Options options{.stages = static_cast<int>(replicas.size()), .zero = zero, .replicas = replicas};
  if (tensor > 1) options.tensor_parallel = tensor;
  int ranks = 0;
  for (const auto count : replicas) ranks += count * tensor;
  return {name, options, ranks};
}

inline std::vector<Way> ways() {
  return {way("one rank", {1}, 0),
          way("2 replicas", {2}, 0),
          way("ZeRO 1 on 3", {3}, 1),
          way("ZeRO 2 on 2", {2}, 2),
          way("ZeRO 3 on 2", {2}, 3),
          way("2 stages", {1, 1}, 0),
          way("2 stages of ZeRO 3", {2, 2}, 3),
          way("2 slices", {1}, 0, 2),
          way("2 slices of ZeRO 2", {2}, 2, 2)};
}

}  // namespace loading
