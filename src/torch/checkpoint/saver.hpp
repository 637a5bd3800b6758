#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <autopar/io/folder_lock.hpp>
#include <autopar/torch/checkpoint_format.hpp>
#include <autopar/torch/saved_parts.hpp>

#include "torch/calls/late_failure.hpp"
#include "torch/checkpoint/background_save.hpp"
#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/saving.hpp"
#include "torch/ranks/ranks.hpp"

namespace autopar::checkpoint {

/// The saves of a model, of which at most one goes on in the background. Rank 0 keeps the folder of the latest locked,
/// so that no other job saves there.
class Saver {
 public:
  /// @param failure  gets errors of background saves; both outlive this
  Saver(ranks::WorldRanks& ranks, calls::LateFailure& failure);
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;
  /// Ends a background save within seconds: completes it if it can, else abandons it. The log says which.
  ~Saver();

  /// Collective. @throws CheckpointError, on every rank
  void save(const std::filesystem::path& folder, const SaveOptions& options,
            const std::vector<ShardedTensorMetadata>& tensors, const std::vector<torch::optim::Optimizer*>& optimizers,
            const CheckpointInfo& info, const std::map<std::string, KeptValue>& kept);
  /// Writes this rank's part of a checkpoint, beside a background save, see ParallelModule::save_parts. Collective.
  /// @throws CheckpointError, on every rank
  [[nodiscard]] SavedParts save_parts(const std::filesystem::path& folder, const AcceptParts& accept,
                                      const std::vector<ShardedTensorMetadata>& tensors,
                                      const std::vector<torch::optim::Optimizer*>& optimizers,
                                      const CheckpointInfo& info, const std::map<std::string, KeptValue>& kept);
  /// Waits for the background save, if there is one. Collective.
  /// @throws CheckpointError, on every rank, if it failed and no call has said so
  void wait();

 private:
  void lock(const std::filesystem::path& folder);
  void continue_in_background(Saving& saving, c10::Device device);
  void require_host_memory(const SavePlan& plan);
  [[nodiscard]] std::vector<at::Tensor> memory_for(const SavePlan& plan, c10::Device device);
  /// Until all ranks' background saves answer true; ranks stay in touch meanwhile.
  void wait_until(bool (BackgroundSave::*is_done)(std::chrono::milliseconds));

  class Claim;
  ranks::WorldRanks& ranks_;
  calls::LateFailure& failure_;
  std::optional<FolderLock> lock_;  ///< on rank 0
  std::filesystem::path locked_;
  at::Tensor memory_;             ///< bytes in host memory for copies, kept from save to save
  std::unique_ptr<Claim> claim_;  ///< on rank 0, while a background save goes on
  std::unique_ptr<BackgroundSave> background_;
};

}  // namespace autopar::checkpoint
