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
#include "torch/parameters/shard_slices.hpp"

namespace torch::nn {
class Module;
}

namespace autopar::parameters {

/// The place of a parameter or buffer among those of the module: equal on all ranks, and in every program. Handles are
/// what users have, names what files have; inside the library this is the one identity.
using StateId = Index<struct StateTag>;

/// A parameter or buffer of the user's module: one tensor, all its names, and its holders.
struct ManagedTensor {
  StateId id;
  std::vector<std::string> names;   ///< in the module's order; several if it is tied
  at::Tensor handle;                ///< the user's tensor; its data are flat if it is sharded (ZeRO), or a slice
                                    ///< (tensor parallelism)
  std::vector<std::int64_t> sizes;  ///< of the unsharded tensor
  bool is_parameter = true;
  std::vector<StageId> stages;  ///< stages that hold it, ascending; set at deployment
  std::vector<Rank> holders;    ///< ranks that hold it, or shards of it, ascending; set at deployment
  /// By tensor shard of its stage, the replicas of that shard, ascending. Set at deployment; empty if there is one
  /// shard.
  std::vector<std::vector<Rank>> replicas_of_shard;
  std::optional<UnitSlices> slices;  ///< the slices of the tensor shards; empty: each shard has the whole tensor
  /// By tensor shard, or one entry: the ZeRO or offload unit that contains the shard's part. Empty: in no unit.
  std::vector<int> units;

  [[nodiscard]] const std::string& name() const { return names.front(); }
  /// Number of tensor shards of its stage.
  [[nodiscard]] int shards() const { return std::max(1, static_cast<int>(replicas_of_shard.size())); }
  /// Ranks that hold a tensor shard's part, ascending.
  [[nodiscard]] const std::vector<Rank>& holders_of_shard(int shard) const {
    return replicas_of_shard.empty() ? holders : replicas_of_shard[static_cast<std::size_t>(shard)];
  }
  /// Sizes of a tensor shard's part.
  [[nodiscard]] std::vector<std::int64_t> sizes_of_shard(int shard) const {
    return slices ? sliced_sizes(*slices, sizes, shards(), shard) : sizes;
  }
};

/// The parameters, then the buffers, of a module in the module's order: the same on every rank.
class StateRegistry {
 public:
  explicit StateRegistry(const torch::nn::Module& module);

  [[nodiscard]] std::vector<ManagedTensor>& tensors() { return tensors_; }
  [[nodiscard]] const std::vector<ManagedTensor>& tensors() const { return tensors_; }
  /// @pre id.valid()
  [[nodiscard]] const ManagedTensor& at(StateId id) const { return tensors_.at(id.index()); }
  /// @throws InvalidArgument if the module has no such parameter or buffer
  [[nodiscard]] const ManagedTensor& named(const std::string& name) const;
  [[nodiscard]] ManagedTensor& named(const std::string& name);
  [[nodiscard]] ManagedTensor& of(const at::Tensor& handle);
  [[nodiscard]] const ManagedTensor& of(const at::Tensor& handle) const;
  [[nodiscard]] bool has(const at::Tensor& handle) const;

 private:
  std::vector<ManagedTensor> tensors_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::unordered_map<const void*, std::size_t> by_impl_;
};

}  // namespace autopar::parameters
