#pragma once

#include <string>
#include <vector>

#include <autopar/core/split.hpp>
#include <autopar/shard/group.hpp>

namespace autopar {

/// A sharded parameter; this rank has one slice.
struct ShardedParameter {
  std::string name;  ///< in its module, or with the module's path for a whole model
  Group group;
  int dim = 0;
  Split split{{0}};
};

/// Implemented by modules with shards, so that saving, loading and norms find the shards.
class HasShards {
 public:
  virtual ~HasShards() = default;
  /// The shards of the module itself, not of its children.
  [[nodiscard]] virtual std::vector<ShardedParameter> shards() const = 0;
};

}  // namespace autopar
