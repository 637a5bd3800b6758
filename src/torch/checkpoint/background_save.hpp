#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torch/calls/late_failure.hpp"
#include "torch/checkpoint/rank_files.hpp"

namespace autopar::checkpoint {

/// A thread that writes this rank's files of a checkpoint; on rank 0 it then waits for the files of all ranks and makes
/// the checkpoint visible. It does not communicate: files appear in the common folder when they are complete.
class BackgroundSave {
 public:
  /// @param copies   this rank's pieces in order, in host memory
  /// @param arrived  waits until the copies are complete; called by the thread
  /// @param failure  gets the thread's error, with the plan's folder; outlives this
  BackgroundSave(SavePlan plan, Rank self, std::vector<at::Tensor> copies, std::function<void()> arrived,
                 calls::LateFailure& failure);
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;
  /// Abandons what is not done.
  ~BackgroundSave();

  /// @return whether it is done after this time at most
  [[nodiscard]] bool has_written(std::chrono::milliseconds within);  ///< this rank's files, or failed
  [[nodiscard]] bool has_ended(std::chrono::milliseconds within);
  /// Empty if nothing has failed so far.
  [[nodiscard]] std::string error() const;
  [[nodiscard]] const std::filesystem::path& folder() const { return plan_.folder; }
  /// The thread ends soon; the previous checkpoint stays.
  void abandon() { abandoned_ = true; }

 private:
  enum class State { kWriting, kWritten, kEnded };
  void work();
  void write();
  void publish_when_all_are_there();
  void enter(State state);
  [[nodiscard]] bool has_reached(State state, std::chrono::milliseconds within);

  const SavePlan plan_;
  const Rank self_;
  std::vector<at::Tensor> copies_;
  const std::function<void()> arrived_;
  calls::LateFailure& failure_;
  std::atomic<bool> abandoned_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kWriting;
  std::string error_;
  std::thread thread_;
};

}  // namespace autopar::checkpoint
