#include "torch/checkpoint/background_save.hpp"

#include <utility>

#include <autopar/core/error.hpp>

#include "torch/checkpoint/agreement.hpp"

namespace autopar::checkpoint {

BackgroundSave::BackgroundSave(SavePlan plan, Rank self, std::vector<at::Tensor> copies, std::function<void()> arrived,
                               calls::LateFailure& failure)
    : plan_(std::move(plan)),
      self_(self),
      copies_(std::move(copies)),
      arrived_(std::move(arrived)),
      failure_(failure),
      thread_([this] { work(); }) {}

BackgroundSave::~BackgroundSave() {
  abandon();
  thread_.join();
}

void BackgroundSave::work() {
  FirstError error;
  error.attempt([&] { write(); });
  const auto tell = [&] {
    if (error.text().empty() || abandoned_) return;
    failure_.put("cannot save " + plan_.folder.string() + ": " + error.text());
    const std::lock_guard lock(mutex_);
    error_ = error.text();
  };
  tell();
  enter(State::kWritten);
  if (self_ == Rank(0) && error.text().empty()) {
    error.attempt([&] { publish_when_all_are_there(); });
    tell();
  }
  enter(State::kEnded);
}

void BackgroundSave::write() {
  arrived_();
  RankFiles files(plan_, self_);
  for (auto& copy : copies_) {
    if (abandoned_) return;
    files.write(copy);
    copy.reset();
  }
  if (!abandoned_) files.finish();
}

void BackgroundSave::publish_when_all_are_there() {
  while (!abandoned_ && !all_files_are_there(plan_)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (!abandoned_) publish(plan_);
}

void BackgroundSave::enter(State state) {
  const std::lock_guard lock(mutex_);
  state_ = state;
  changed_.notify_all();
}

bool BackgroundSave::has_reached(State state, std::chrono::milliseconds within) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, within, [&] { return state_ >= state; });
}

bool BackgroundSave::has_written(std::chrono::milliseconds within) { return has_reached(State::kWritten, within); }
bool BackgroundSave::has_ended(std::chrono::milliseconds within) { return has_reached(State::kEnded, within); }

std::string BackgroundSave::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace autopar::checkpoint
