#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/core/ids.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/torch/checkpoint_format.hpp>
#include <autopar/torch/load_options.hpp>

#include "torch/checkpoint/kept_values.hpp"
#include "torch/fp8/layers.hpp"
#include "torch/gradients/loss_scaler.hpp"
#include "torch/parameters/optimizer_state.hpp"
#include "torch/parameters/shard_slices.hpp"

namespace autopar::checkpoint {

/// A parameter or buffer and the ranks whose handle holds its data. All ranks have the same list in the same order.
struct ShardedTensorMetadata {
  std::string name;
  at::Tensor handle;                  ///< has the right dtype everywhere, data only on holders
  std::vector<Rank> holders;          ///< ascending, not empty; their data are equal, or shards
  std::vector<std::int64_t> sizes{};  ///< of the unsharded tensor, if holders have shards
  /// By holder: its elements; together they are all. Empty: every holder has the whole tensor.
  std::vector<parameters::ShardSlices> shards{};
  std::vector<std::string> aliases{};  ///< other names of a tied tensor
};

/// The contents of a checkpoint besides tensors.
struct CheckpointInfo {
  std::uint64_t seed = 0;                                ///< of random numbers
  std::int64_t calls = 0;                                ///< number of calls of the model
  std::optional<gradients::LossScaler::State> scaler{};  ///< with precision = fp16
  std::map<std::string, fp8::History> fp8{};             ///< with precision = fp8, by name of the weight
};

/// Writes every tensor with its checksum, and the optimizers' state and hyper-parameters, to `folder`. The checkpoint
/// appears completely or not at all, and every rank learns which. Files that killed saves left in the folder are
/// removed. Collective; no micro-batch may be in flight.
/// @param kept  from KeptValues::collect
/// @throws CheckpointError, on every rank, if one cannot write, or a hyper-parameter has a value that load refuses
void save_checkpoint(World& world, CheckpointFormat format, const std::filesystem::path& folder,
                     const std::vector<ShardedTensorMetadata>& tensors,
                     const std::vector<torch::optim::Optimizer*>& optimizers, const CheckpointInfo& info,
                     const std::map<std::string, KeptValue>& kept = {});

/// What a load found.
struct LoadedCheckpoint {
  std::optional<CheckpointInfo> info;  ///< empty if autopar did not write the file
  LoadReport report;
};

/// Reads a checkpoint that save_checkpoint wrote under any plan and number of ranks, or another program's safetensors
/// file with names as in `tensors`. Optimizers get the state and hyper-parameters of the file, as when torch::optim
/// loads. Without `optimizers`, their state in the file is ignored.
///
/// The whole file is read and verified before anything is changed. Until all ranks have agreed that it is valid, each
/// rank holds its part twice. The copies of parameters and buffers are in host memory, those of optimizer state on the
/// state's device. Files that killed saves left in the folder are removed. Collective.
/// @param kept  the objects that get the values of the file
/// @throws CheckpointError, on every rank, with what is missing, unknown, damaged or of another size; tensors,
/// optimizers and the world are then unchanged
[[nodiscard]] LoadedCheckpoint load_checkpoint(World& world, const std::filesystem::path& folder,
                                               const std::vector<ShardedTensorMetadata>& tensors,
                                               const std::vector<torch::optim::Optimizer*>& optimizers,
                                               const LoadOptions& options = {}, const KeptValues& kept = {});

/// An optimizer like `optimizer` with the unsharded state of its parameters on rank 0's CPU; null on other ranks. Its
/// state is not shared, and `torch::save` writes it as in a program without autopar. State of parameters that are not
/// in `tensors` is rank 0's. Collective.
[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> gather_optimizer(
    World& world, const std::vector<ShardedTensorMetadata>& tensors, torch::optim::Optimizer& optimizer);

/// Copies of all tensors on rank 0's CPU, in order; empty on other ranks. Collective.
[[nodiscard]] std::vector<at::Tensor> gather_tensors(World& world, const std::vector<ShardedTensorMetadata>& tensors);

/// A copy of one tensor on every rank's CPU. Collective.
[[nodiscard]] at::Tensor gather_tensor(World& world, const ShardedTensorMetadata& tensor);

}  // namespace autopar::checkpoint
