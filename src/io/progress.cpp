#include <autopar/io/progress.hpp>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include <unistd.h>

#include <autopar/core/printable.hpp>

namespace autopar {

namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";
constexpr std::chrono::milliseconds kRefresh(500);

}  // namespace

ProgressScreen standard_error() {
  const auto show = [](std::string_view text) {
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // a terminal that went away shows nothing
  };
  return {show, ::isatty(STDERR_FILENO) != 0};
}

struct Progress::State {
  std::string what;
  ProgressScreen screen;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::mutex mutex;
  std::condition_variable ended;
  std::string phase{};
  bool is_over = false;
  std::thread clock{};

  State(std::string what_in, ProgressScreen screen_in) : what(std::move(what_in)), screen(std::move(screen_in)) {}

  void show_until_over(std::chrono::duration<double> patience) {
    std::unique_lock lock(mutex);
    if (ended.wait_for(lock, patience, [&] { return is_over; })) return;
    if (!screen.is_terminal) return screen.show(line() + " so far\n");
    do {
      screen.show(std::string(kEraseLine) + line());
    } while (!ended.wait_for(lock, kRefresh, [&] { return is_over; }));
    screen.show(kEraseLine);
  }

  [[nodiscard]] std::string line() const {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    const auto seconds = std::to_string(static_cast<long>(spent.count())) + " s";
    return printable_line(what + ": " + phase + (phase.empty() ? "" : ", ") + seconds);
  }
};

Progress::Progress(std::string what, ProgressScreen screen, Seconds patience) {
  if (!screen.show) return;
  state_ = std::make_unique<State>(std::move(what), std::move(screen));
  const std::chrono::duration<double> wait(patience.value());
  state_->clock = std::thread([state = state_.get(), wait] { state->show_until_over(wait); });
}

Progress::~Progress() {
  if (!state_) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_over = true;
  }
  state_->ended.notify_all();
  state_->clock.join();
}

void Progress::now(const std::string& phase) {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  state_->phase = phase;
}

}  // namespace autopar
