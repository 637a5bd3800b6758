#include <autopar/runtime/config.hpp>

#if AUTOPAR_HAS_CUDA

#include "nccl_operations.hpp"

#include <algorithm>
#include <thread>
#include <vector>

#include "names.hpp"

namespace autopar::detail {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

void NcclOperations::add(cudaStream_t stream, std::shared_ptr<NcclOperation> operation) {
  const std::lock_guard lock(mutex_);
  operations_[stream].push_back(std::move(operation));
}

void NcclOperations::add(std::unique_ptr<NcclReplay> replay) {
  const std::lock_guard lock(mutex_);
  replays_.push_back(std::move(replay));
}

void NcclOperations::release_ended() {
  std::vector<std::shared_ptr<NcclOperation>> ended;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [stream, operations] : operations_) {
      for (; !operations.empty() && operations.front()->event.passed(); operations.pop_front()) {
        ended.push_back(std::move(operations.front()));
      }
    }
  }
  for (const auto& operation : ended) operation->buffer = {};
}

void NcclOperations::drop_ended_replays() {
  while (!replays_.empty() && replays_.front()->end.passed()) {
    replays_.pop_front();
    if (!replays_.empty()) replays_.front()->recording->restart_watch();
  }
}

bool NcclOperations::all_arrive() {
  const auto is_over = [](const auto& of_stream) {
    return of_stream.second.empty() || of_stream.second.back()->event.passed();
  };
  const auto deadline = Clock::now() + kFlushLimit;
  while (!health_->failed() && Clock::now() < deadline) {
    {
      const std::lock_guard lock(mutex_);
      drop_ended_replays();
      if (replays_.empty() && std::ranges::all_of(operations_, is_over)) return true;
    }
    std::this_thread::sleep_for(100us);
  }
  return false;
}

void NcclOperations::clear() {
  const std::lock_guard lock(mutex_);
  operations_.clear();
  replays_.clear();
}

void NcclOperations::report_stalls() {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  for (const auto& [stream, operations] : operations_) {
    if (operations.empty()) continue;
    auto& operation = *operations.front();  // those behind it wait for it
    const Seconds age{std::chrono::duration<double>(now - operation.begin).count()};
    if (age < health_->limits().warning || operation.event.passed()) continue;
    judge_stall(operation.action, operation.peer, age, operation.warned);
  }
  drop_ended_replays();
  if (replays_.empty()) return;
  NcclRecording& recording = *replays_.front()->recording;
  if (const auto waiting = recording.waiting(now))
    judge_stall(waiting->action, waiting->peer, waiting->age, recording.warned());
}

/// @param age  the operation has waited so long
void NcclOperations::judge_stall(const std::string& action, Rank peer, Seconds age, bool& warned) const {
  const StallLimits limits = health_->limits();
  if (age < limits.warning) return;
  const std::string whom = peer.valid() ? name(peer) : "another member";
  if (!std::exchange(warned, true)) logger_.warn("has waited for " + whom + " in '" + action + "'");
  if (age < limits.timeout) return;
  const Rank self = health_->self();
  health_->report({self, action, name(self) + " gave up waiting for " + whom + " (stall_timeout)", 0});
}

}  // namespace autopar::detail

#endif
