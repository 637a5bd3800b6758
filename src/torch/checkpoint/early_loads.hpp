#pragma once

#include <cstddef>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <torch/optim/optimizer.h>

#include <autopar/capture/init_record.hpp>

#include "torch/checkpoint/loading.hpp"

namespace autopar::checkpoint {

/// Loads of a model that is not deployed yet, when the holders of its tensors are not known. Hyper-parameters, and
/// tensors that have memory, are loaded at once. Tensors of a recorded construction have none: their data are read at
/// deployment, from the file opened here. They take their place in the recording, so that operators recorded after the
/// load continue from them. The state of optimizers is also read at deployment, where it fits. Several loads are
/// applied in their order.
///
///   loads.add(world, single_file(), "run/step-1000", tensors, {&optimizer}, {}, init);
///   torch::nn::init::zeros_(net->head->weight);   // stays
///   loads.bring(placed, init);                    // places are known, values are not made yet
///   init->materialise(…);
///   const auto info = loads.take_over(init);      // values are made
class EarlyLoads {
 public:
  /// Opens, checks and partly loads a checkpoint. Collective.
  /// @param tensors  of the model; their holders are ignored
  /// @param init     null: all tensors have memory
  /// @param kept     the objects that get the values of the file, at once
  /// @return what is or will be loaded
  /// @throws CheckpointError, on every rank, with what is missing, unknown, damaged or of another size. Then nothing
  /// has changed, unless the disk failed between checking and reading.
  LoadReport add(World& world, const std::filesystem::path& folder, std::vector<ShardedTensorMetadata> tensors,
                 const std::vector<torch::optim::Optimizer*>& optimizers, const LoadOptions& options, InitRecord* init,
                 const KeptValues& kept = {});
  [[nodiscard]] bool empty() const { return loads_.empty(); }
  /// For an optimizer that is attached after it was loaded. Does not communicate.
  /// @throws CheckpointError if its groups no longer match the file
  void require_same_groups(const torch::optim::Optimizer& optimizer) const;

  /// Reads the rest. Collective. `take_over` throws the errors; the model is then made with only what `add` loaded.
  void bring(World& world, const std::vector<ShardedTensorMetadata>& placed, InitRecord* init);
  /// Puts the data that were read into handles and optimizers, on the ranks that hold them, and forgets all loads.
  /// Collective.
  /// @return the info of the last file that autopar wrote; empty if there is none
  /// @throws CheckpointError, on every rank, if some could not read
  [[nodiscard]] std::optional<CheckpointInfo> take_over(InitRecord* init);

 private:
  struct Load;
  void take_at_once(World& world, Load& load, const std::vector<char>& has_memory);
  void bring_recorded(World& world, InitRecord& init);
  void bring_unchanged(World& world, Load& load, const std::vector<char>& unchanged);
  void bring_state();
  void forget_data(InitRecord* init) const;

  std::vector<std::shared_ptr<Load>> loads_;
  std::exception_ptr failure_;  ///< of `bring`
};

}  // namespace autopar::checkpoint
