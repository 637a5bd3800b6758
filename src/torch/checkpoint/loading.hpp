#pragma once

#include <cstddef>
#include <filesystem>
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
#include "torch/checkpoint/format.hpp"
#include "torch/checkpoint/metadata.hpp"
#include "torch/checkpoint/rows.hpp"

namespace autopar::checkpoint {

/// A load in steps that all ranks take; after each all know whether it went well on all, and throw CheckpointError if
/// not. What changes something begins with `take`. The checkpoint stays open while this lives, and what was opened is
/// what is read, whatever becomes of its name.
class Loading {
 public:
  /// @param tensors  of which the holders, sizes and slabs need not be known before something is transferred
  Loading(World& world, const CheckpointFormat& format, std::filesystem::path folder, std::vector<PlacedTensor> tensors,
          std::vector<torch::optim::Optimizer*> optimizers, const LoadOptions& options);
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

  void read_header();
  /// Names, sizes and types, and hyper-parameters of optimizers.
  void match();
  /// Rank 0 reads all that will be asked for, once more than is needed, to find damage before anything is changed.
  void verify();

  /// What is to be loaded, in the order of the file; the same on all ranks.
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
  [[nodiscard]] bool is_there(std::size_t row) const { return there_[row] == '1'; }
  /// Which ranks hold what, the tensors in the same order.
  void place(const std::vector<PlacedTensor>& tensors);
  [[nodiscard]] const std::vector<PlacedTensor>& tensors() const { return tensors_; }

  /// What this rank holds of these rows, on the CPU, undefined of others; all of it is good.
  [[nodiscard]] std::vector<at::Tensor> transfer(const std::vector<std::size_t>& rows);
  /// The same for other holders, who get whole tensors. @param holders  by row, maybe none
  [[nodiscard]] std::vector<at::Tensor> transfer_whole(const std::vector<std::size_t>& rows,
                                                       const std::vector<std::vector<Rank>>& holders);
  /// Brings state to the devices of its parameters. @param arrived  by row, as `transfer` gave it
  void fit_state(const std::vector<std::size_t>& rows, std::vector<at::Tensor>& arrived);

  /// Of parameters and buffers. Does not communicate.
  void take_values(const std::vector<std::size_t>& rows, const std::vector<at::Tensor>& arrived) const;
  /// Of parameters that `is_kept` does not name; those that the file has no state of lose theirs. Does not communicate.
  void take_state(const std::vector<std::size_t>& rows, const std::vector<at::Tensor>& arrived,
                  const std::set<const void*>& kept = {}) const;
  /// Does not communicate, throws nothing.
  void take_options() const;

  [[nodiscard]] std::optional<CheckpointInfo> info() const {
    return saved_ ? std::optional(saved_->info) : std::nullopt;
  }
  /// Those whose options and state the file has.
  [[nodiscard]] std::span<torch::optim::Optimizer* const> loaded() const {
    return std::span(optimizers_).first(new_options_.size());
  }
  /// @throws CheckpointError if the optimizer is among those that are loaded, and has other groups than the file
  void require_same_groups(const torch::optim::Optimizer& optimizer) const;
  [[nodiscard]] const std::string& subject() const { return subject_; }

 private:
  void match_optimizers();
  void find_entries();
  [[nodiscard]] bool named_as_in_the_model() const;
  void require_known_entries() const;
  [[nodiscard]] std::vector<at::Tensor> receive(const std::vector<Row>& rows, const std::vector<std::size_t>& numbers);

  World& world_;
  const CheckpointFormat& format_;
  std::filesystem::path folder_;
  std::string subject_;
  std::vector<PlacedTensor> tensors_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  LoadOptions options_;
  std::unique_ptr<CheckpointReader> reader_;
  std::optional<SavedInfo> saved_;  ///< nothing: the file is of another writer
  /// By optimizer, of those that are in the file.
  std::vector<std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>> new_options_;
  std::vector<Row> rows_;
  std::vector<std::string> names_;  ///< rank 0: by row, in the file; empty: it is not there
  std::string there_;               ///< by row: whether it is in the file, '1' or '0'
};

}  // namespace autopar::checkpoint
