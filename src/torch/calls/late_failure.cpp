#include "torch/calls/late_failure.hpp"

#include <cstddef>

#include <autopar/core/error.hpp>

#include "torch/ranks/collective_try.hpp"

namespace autopar::calls {

void LateFailure::begin() {
  const std::lock_guard lock(mutex_);
  message_.clear();
  is_thrown_ = false;
}

void LateFailure::put(const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (message_.empty() && !is_thrown_) message_ = message;
}

std::string LateFailure::look() const {
  const std::lock_guard lock(mutex_);
  return message_;
}

void LateFailure::set_thrown() {
  const std::lock_guard lock(mutex_);
  message_.clear();
  is_thrown_ = true;
}

bool LateFailure::is_thrown() const {
  const std::lock_guard lock(mutex_);
  return is_thrown_;
}

void require_no_late_failure(ranks::Ranks& ranks, LateFailure& failure) {
  const auto messages = ranks.all_gather(ranks::blob_of(failure.look()), "errors of a save");
  for (std::size_t r = 0; r < messages.size(); ++r) {
    if (messages[r].empty()) continue;
    failure.set_thrown();
    throw CheckpointError("rank " + std::to_string(r) + " " + ranks::text_of(messages[r]));
  }
}

}  // namespace autopar::calls
