#include "health.hpp"

#include <algorithm>
#include <utility>

namespace autopar::detail {

Health::Health(Rank self, int size, StallLimits limits, Logger logger, std::optional<StallLimits> start)
    : self_(self), logger_(std::move(logger)), left_(static_cast<std::size_t>(size)), limits_(limits), start_(start) {}

Limits Health::limits() const {
  const std::lock_guard lock(mutex_);
  if (!start_) return {limits_};
  return {{std::min(limits_.warning, start_->warning), std::min(limits_.timeout, start_->timeout)},
          limits_.timeout < start_->timeout ? "stall_timeout" : "AUTOPAR_START_TIMEOUT"};
}

void Health::set_limits(StallLimits limits) {
  const std::lock_guard lock(mutex_);
  limits_ = limits;
  start_.reset();
}

void Health::note_started() {
  const std::lock_guard lock(mutex_);
  start_.reset();
}

void Health::begin(std::string_view action) {
  check(action);
  const std::lock_guard lock(mutex_);
  action_ = action;
}

std::string Health::action() const {
  const std::lock_guard lock(mutex_);
  return action_;
}

void Health::set_announcer(std::function<void(const Failure&)> announcer) {
  const std::lock_guard lock(mutex_);
  announcer_ = std::move(announcer);
}

bool Health::note(Failure failure) noexcept {
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) {
    const bool is_same = failure.action == failure_.action && failure.message == failure_.message;
    if (failure_.rank == self_ && failure.rank < self_ && is_same) {
      is_said_elsewhere_ = true;
      said_elsewhere_.notify_all();
    }
    return false;
  }
  failure_ = std::move(failure);
  failed_.store(true, std::memory_order_release);
  return true;
}

void Health::report(const Failure& failure) noexcept {
  std::function<void(const Failure&)> announcer;
  try {
    if (!note(failure)) return;
    const std::lock_guard lock(mutex_);
    announcer = announcer_;
  } catch (const std::bad_alloc&) {
    failed_.store(true, std::memory_order_release);
    return;
  }
  if (announcer) announcer(failure);
}

bool Health::is_said_elsewhere(std::chrono::milliseconds patience) const noexcept {
  std::unique_lock lock(mutex_);
  if (failure_.rank != self_ || self_ == Rank(0)) return false;
  return said_elsewhere_.wait_for(lock, patience, [this] { return is_said_elsewhere_; });
}

Failure Health::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Health::check(std::string_view action) const {
  if (!failed()) return;
  const Failure first = failure();
  const std::string who = "rank " + std::to_string(first.rank.value());
  const std::string where = first.action.empty() ? "" : " in '" + first.action + "'";
  throw TransportError(who + " failed" + where + ": " + first.message + " (noticed by rank " +
                           std::to_string(self_.value()) + " in '" + std::string(action) +
                           "'); the ranks cannot go on together: end the job and start it again",
                       self_, first.rank, first.action, first.code);
}

void Health::note_left(Rank rank) noexcept { left_[rank.index()].store(true, std::memory_order_release); }

bool Health::has_left(Rank rank) const noexcept { return left_[rank.index()].load(std::memory_order_acquire); }

bool Health::all_others_left() const noexcept {
  for (std::size_t rank = 0; rank < left_.size(); ++rank) {
    if (Rank::of(rank) != self_ && !has_left(Rank::of(rank))) return false;
  }
  return true;
}

}  // namespace autopar::detail
