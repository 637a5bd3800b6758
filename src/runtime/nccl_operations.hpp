#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <autopar/runtime/any_transport.hpp>

#include "health.hpp"
#include "nccl_communicator.hpp"
#include "nccl_recording.hpp"

namespace autopar::detail {

/// An operation on a communicator's stream, until it has ended on the device.
struct NcclOperation final : Operation {
  NcclOperation(Rank self, std::string what, Buffer memory, Rank other)
      : event(self),
        action(std::move(what)),
        buffer(std::move(memory)),
        peer(other),
        begin(std::chrono::steady_clock::now()) {}

  Event event;  ///< passed when the operation has ended on the device
  std::string action;
  Buffer buffer;  ///< kept until then, or until the compute stream waits for it: what takes the memory comes later
  Rank peer;
  std::chrono::steady_clock::time_point begin;
  bool warned = false, is_captured = false;
};

/// A run of captured operations that may not have ended.
struct NcclReplay {
  NcclReplay(Rank self, std::shared_ptr<NcclRecording> its) : end(self), recording(std::move(its)) {}

  Event end;
  std::shared_ptr<NcclRecording> recording;
};

/// What the device has been given and may not have ended. Thread-safe; owners of buffers are released on the thread of
/// `release_ended`.
class NcclOperations {
 public:
  NcclOperations(std::shared_ptr<Health> health, Logger logger)
      : health_(std::move(health)), logger_(std::move(logger)) {}

  void add(cudaStream_t stream, std::shared_ptr<NcclOperation> operation);
  void add(std::unique_ptr<NcclReplay> replay);
  /// Gives back the buffers of operations that have ended. On the caller's thread: memory is freed where it was made.
  /// A stream's end in order, so this asks of each stream for one that has not ended: a host that runs ahead has
  /// hundreds under way, and a step may ask thousands of times.
  void release_ended();
  /// What waits for long is logged, then a failure of the world.
  void report_stalls();
  /// Whether everything ends in time. The transport is ending: who has not waited for it does not need it.
  [[nodiscard]] bool all_arrive();
  void clear();

 private:
  void drop_ended_replays();
  void judge_stall(const std::string& action, Rank peer, Seconds age, bool& warned) const;

  const std::shared_ptr<Health> health_;
  const Logger logger_;
  std::mutex mutex_;
  std::map<cudaStream_t, std::deque<std::shared_ptr<NcclOperation>>> operations_;  ///< in their order
  std::deque<std::unique_ptr<NcclReplay>> replays_;                                ///< likewise
};

}  // namespace autopar::detail
