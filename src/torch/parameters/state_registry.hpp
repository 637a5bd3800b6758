#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/core/ids.hpp>

#include <autopar/capture/unit_slices.hpp>
#include "torch/parameters/slab.hpp"

namespace torch::nn {
class Module;
}

namespace autopar::parameters {

/// A parameter or buffer of the user's module: one tensor, all its names, and where it lives.
struct StateTensor {
  std::vector<std::string> names;   ///< in the module's order; several when tied
  at::Tensor handle;                ///< the user's; its data are flat where it is held in shards, a slice where
                                    ///< tensor shards have one each
  std::vector<std::int64_t> sizes;  ///< of the whole
  bool is_parameter = true;
  std::vector<StageId> stages;  ///< that hold it, ascending; set at deployment
  std::vector<Rank> holders;    ///< ranks that hold it, or shards of it, ascending; set at deployment
  /// By tensor shard of its stage, the replicas of that shard, ascending; set at deployment, empty where there is one
  std::vector<std::vector<Rank>> replicas_of_shard;
  std::optional<UnitSlices> slices;  ///< which each of these shards has; nothing: all have the whole
  /// By tensor shard, or one: units of flat shards, or of what is offloaded, that what it has is in; empty: in none
  std::vector<int> units;

  [[nodiscard]] const std::string& name() const { return names.front(); }
  /// Tensor shards of its stage.
  [[nodiscard]] int shards() const { return std::max(1, static_cast<int>(replicas_of_shard.size())); }
  /// Ranks that have what one of these has, ascending.
  [[nodiscard]] const std::vector<Rank>& holders_of_shard(int shard) const {
    return replicas_of_shard.empty() ? holders : replicas_of_shard[static_cast<std::size_t>(shard)];
  }
  /// Of what one of these has.
  [[nodiscard]] std::vector<std::int64_t> sizes_of_shard(int shard) const {
    return slices ? sliced_sizes(*slices, sizes, shards(), shard) : sizes;
  }
};

/// Parameters, then buffers, of a module, in its own order: the same on every rank.
class StateRegistry {
 public:
  explicit StateRegistry(const torch::nn::Module& module);

  [[nodiscard]] std::vector<StateTensor>& tensors() { return tensors_; }
  [[nodiscard]] const std::vector<StateTensor>& tensors() const { return tensors_; }
  /// @throws InvalidArgument if the module has no such parameter or buffer
  [[nodiscard]] const StateTensor& named(const std::string& name) const;
  [[nodiscard]] StateTensor& named(const std::string& name);
  [[nodiscard]] StateTensor& of(const at::Tensor& handle);
  [[nodiscard]] const StateTensor& of(const at::Tensor& handle) const;
  [[nodiscard]] bool has(const at::Tensor& handle) const;

 private:
  std::vector<StateTensor> tensors_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::unordered_map<const void*, std::size_t> by_impl_;
};

}  // namespace autopar::parameters
