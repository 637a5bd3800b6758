#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <autopar/runtime/world.hpp>
#include <autopar/torch/load_options.hpp>

#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/checkpoint_items.hpp"
#include "torch/checkpoint/checkpoint_reader.hpp"
#include "torch/checkpoint/metadata.hpp"
#include "torch/checkpoint/name_matching.hpp"

namespace autopar::checkpoint {

/// A load in steps that all ranks take together. After each step all know whether it succeeded on all ranks, and throw
/// CheckpointError if not. Steps that change something begin with `take`. The checkpoint stays open while the object
/// lives, even if the file is renamed.
class Loading {
 public:
  /// @param tensors  their holders, sizes and slices may be set later, before a transfer
  Loading(World& world, std::filesystem::path folder, std::vector<ShardedTensorMetadata> tensors,
          std::vector<torch::optim::Optimizer*> optimizers, const LoadOptions& options);
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

  void read_header();
  /// Matches names, sizes and types, and hyper-parameters of optimizers.
  void match();
  /// Reads everything that will be needed, to find damage before anything is changed. It is read again later.
  void verify();

  /// The items to load, in file order; the same on all ranks.
  [[nodiscard]] const std::vector<CheckpointItem>& items() const { return items_; }
  [[nodiscard]] bool is_there(std::size_t item) const { return !names_[item].empty(); }
  /// Sets the holders of the tensors, which have the same order as before.
  void place(const std::vector<ShardedTensorMetadata>& tensors);
  [[nodiscard]] const std::vector<ShardedTensorMetadata>& tensors() const { return tensors_; }

  /// This rank's parts of these items, on the CPU; undefined for items that it does not hold. All are verified.
  [[nodiscard]] std::vector<at::Tensor> transfer(const std::vector<std::size_t>& items);
  /// Whole tensors of these items for the given holders.
  /// @param holders  by item, may be empty
  [[nodiscard]] std::vector<at::Tensor> transfer_whole(const std::vector<std::size_t>& items,
                                                       const std::vector<std::vector<Rank>>& holders);
  /// Moves state to the devices of its parameters.
  /// @param arrived  by item, as `transfer` returned it
  void fit_state(const std::vector<std::size_t>& items, std::vector<at::Tensor>& arrived);

  /// Sets parameters and buffers. Does not communicate.
  void take_values(const std::vector<std::size_t>& items, const std::vector<at::Tensor>& arrived) const;
  /// Sets the state of parameters that are not in `kept`. Parameters without state in the file lose theirs. Does not
  /// communicate.
  void take_state(const std::vector<std::size_t>& items, const std::vector<at::Tensor>& arrived,
                  const std::set<const void*>& kept = {}) const;
  /// Sets the options of optimizers. Does not communicate, does not throw.
  void take_options() const;

  [[nodiscard]] std::optional<CheckpointInfo> info() const {
    return saved_ ? std::optional(saved_->info) : std::nullopt;
  }
  /// What is loaded, by name; the same on all ranks. @pre `match` succeeded
  [[nodiscard]] const LoadReport& report() const { return report_; }
  /// The kept values of the checkpoint.
  [[nodiscard]] std::map<std::string, KeptValue> kept() const {
    return saved_ ? saved_->kept : std::map<std::string, KeptValue>();
  }
  /// The optimizers whose options and state are in the file.
  [[nodiscard]] std::span<torch::optim::Optimizer* const> loaded() const {
    return std::span(optimizers_).first(new_options_.size());
  }
  /// @throws CheckpointError if the optimizer is being loaded and its groups differ from the file
  void require_same_groups(const torch::optim::Optimizer& optimizer) const;
  [[nodiscard]] const std::string& subject() const { return subject_; }

 private:
  void match_optimizers();
  [[nodiscard]] GroupSizes group_sizes() const;
  [[nodiscard]] ModelNames names_in_model(bool bare) const;
  [[nodiscard]] FileNames names_in_file(bool bare) const;
  [[nodiscard]] bool named_as_in_the_model() const;
  [[nodiscard]] std::vector<at::Tensor> receive(const std::vector<CheckpointItem>& items,
                                                const std::vector<std::size_t>& numbers);

  World& world_;
  std::filesystem::path folder_;
  std::string subject_;
  std::vector<ShardedTensorMetadata> tensors_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  LoadOptions options_;
  std::optional<CheckpointReader> reader_;
  std::optional<SavedInfo> saved_;  ///< empty: another program wrote the file
  /// By optimizer, for those in the file.
  std::vector<std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>> new_options_;
  std::vector<CheckpointItem> items_;
  std::vector<std::string> names_;  ///< by item, its name in the file; empty if it is not in the file
  LoadReport report_;
};

}  // namespace autopar::checkpoint
