#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/core/ids.hpp>
#include <autopar/runtime/world.hpp>
#include <autopar/torch/load_options.hpp>

#include "torch/gradients/loss_scaler.hpp"
#include "torch/parameters/optimizer_state.hpp"
#include "torch/parameters/slab.hpp"

namespace autopar::checkpoint {

/// A parameter or buffer and the ranks whose handle holds its data; the same list, in the same order, on all ranks.
struct PlacedTensor {
  std::string name;
  at::Tensor handle;                  ///< dtype is right everywhere, data only on holders
  std::vector<Rank> holders;          ///< ascending, at least one; their data are equal, or shards
  std::vector<std::int64_t> sizes{};  ///< of the whole, where holders have shards
  /// By holder: elements that it has, which together are all; empty: every holder has the whole.
  std::vector<parameters::Slab> shards{};
};

/// What a checkpoint says besides tensors.
struct CheckpointInfo {
  std::uint64_t seed = 0;                                ///< of random draws
  std::int64_t calls = 0;                                ///< of the model so far
  std::optional<gradients::LossScaler::State> scaler{};  ///< with precision = fp16
};

/// Of a checkpoint, in its folder.
inline constexpr const char* kCheckpointFile = "model.safetensors";

class CheckpointFormat;  // checkpoint/format.hpp

/// Writes every tensor with its checksum, the optimizers' state and hyper-parameters to `folder`. The checkpoint
/// appears complete or not at all; every rank learns which. What earlier saves that were killed left in the folder is
/// removed. Collective; no micro-batch may be in flight.
/// @throws CheckpointError on every rank when one cannot write, or a hyper-parameter has a value that load refuses
void save_checkpoint(World& world, const CheckpointFormat& format, const std::filesystem::path& folder,
                     const std::vector<PlacedTensor>& tensors, const std::vector<torch::optim::Optimizer*>& optimizers,
                     const CheckpointInfo& info);

/// Reads what save_checkpoint wrote under any plan and number of ranks, or what another program wrote as safetensors,
/// with names as in `tensors`. Optimizers get the state and the
/// hyper-parameters of the file, as when torch::optim loads. Without `optimizers`, those of the file are passed over.
///
/// All of the file is read and verified before anything is changed: until all ranks have agreed that it is good, each
/// has what it holds a second time, parameters and buffers in host memory, state where it stays.
/// What killed saves left in the folder is removed. Collective.
/// @return nothing if autopar did not write the file
/// @throws CheckpointError on every rank, naming what is missing, unknown, damaged or of another size; then tensors,
///         optimizers and the world are as they were
[[nodiscard]] std::optional<CheckpointInfo> load_checkpoint(World& world, const CheckpointFormat& format,
                                                            const std::filesystem::path& folder,
                                                            const std::vector<PlacedTensor>& tensors,
                                                            const std::vector<torch::optim::Optimizer*>& optimizers,
                                                            const LoadOptions& options = {});

/// An optimizer like `optimizer` with the whole state of its parameters in memory of its own on rank 0's CPU, as
/// `torch::save` of a program without autopar would find it; null on other ranks. What it steps besides `tensors` comes
/// with rank 0's state. Collective.
[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> gather_optimizer(World& world,
                                                                        const std::vector<PlacedTensor>& tensors,
                                                                        torch::optim::Optimizer& optimizer);

/// Copies of all tensors on rank 0's CPU, in order; empty on other ranks. Collective.
[[nodiscard]] std::vector<at::Tensor> gather_tensors(World& world, const std::vector<PlacedTensor>& tensors);

/// A copy of one tensor on every rank's CPU. Collective.
[[nodiscard]] at::Tensor gather_tensor(World& world, const PlacedTensor& tensor);

}  // namespace autopar::checkpoint
