#pragma once

#include <string>
#include <vector>

#include <autopar/core/split.hpp>
#include <autopar/shard/group.hpp>

namespace autopar {

/// A parameter of which this rank has a slice.
struct ShardedParameter {
  std::string name;  ///< in its module; with the module's path where a whole model is meant
  Group group;
  int dim = 0;
  Split split{{0}};
};

/// What a module with shards is beside a torch::nn::Module, so that saving, loading and norms know which they are.
class HasShards {
 public:
  virtual ~HasShards() = default;
  /// Of its own parameters, not of its children's.
  [[nodiscard]] virtual std::vector<ShardedParameter> shards() const = 0;
};

}  // namespace autopar
