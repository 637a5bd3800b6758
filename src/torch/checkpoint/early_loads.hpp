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

/// Loads of a model that is not deployed yet, so that nobody knows which rank will hold what. Hyper-parameters, and
/// tensors that have memory, are loaded at once. Tensors of a recorded construction have none: their data come at
/// deployment, from the file that was opened, to their place in the recording, so that what is recorded after the load
/// goes on from them. State of optimizers comes at deployment as well, where it fits. Several loads add up.
///
///   loads.add(world, single_file(), "run/step-1000", tensors, {&optimizer}, {}, init);
///   torch::nn::init::zeros_(net->head->weight);   // stays
///   loads.bring(placed, init);                    // places are known, values are not made yet
///   init->materialise(…);
///   const auto info = loads.take_over(init);      // values are made
class EarlyLoads {
 public:
  /// Collective. @param tensors  of the model; who holds them is not looked at. @param init  null: they all have memory
  /// @throws CheckpointError on every rank, naming what is missing, unknown, damaged or of another size; nothing has
  ///         changed, unless the disk failed between checking and reading
  void add(World& world, const CheckpointFormat& format, const std::filesystem::path& folder,
           std::vector<PlacedTensor> tensors, const std::vector<torch::optim::Optimizer*>& optimizers,
           const LoadOptions& options, InitRecord* init);
  [[nodiscard]] bool empty() const { return loads_.empty(); }
  /// Of an optimizer that is attached after it was loaded. Does not communicate.
  /// @throws CheckpointError if it has other groups than the file any more
  void require_same_groups(const torch::optim::Optimizer& optimizer) const;

  /// Reads what is still to come; collective. What goes wrong is thrown by `take_over`, and the model is made as if
  /// nothing had been loaded but what `add` took.
  void bring(World& world, const std::vector<PlacedTensor>& placed, InitRecord* init);
  /// Puts it into handles and optimizers, which have data where this rank holds them, and forgets all loads.
  /// Collective.
  /// @return of the last file that autopar wrote; nothing if there is none
  /// @throws CheckpointError on every rank if some could not read
  [[nodiscard]] std::optional<CheckpointInfo> take_over(InitRecord* init);

 private:
  struct Load;
  void take_at_once(World& world, Load& load, const std::vector<char>& has_memory);
  void bring_recorded(World& world, InitRecord& init);
  void bring_state();
  void forget_data(InitRecord* init) const;

  std::vector<std::shared_ptr<Load>> loads_;
  std::exception_ptr failure_;  ///< of `bring`
};

}  // namespace autopar::checkpoint
