#include <autopar/training/interrupt.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>

#include <unistd.h>

namespace autopar::training {

namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGUSR1};

volatile std::sig_atomic_t arrived = 0;  // a handler has nothing else to write to
volatile std::sig_atomic_t speaks = 0;   // one rank, for all

extern "C" void note_signal(int signal) {
  constexpr std::string_view kText = "\nending after this step; once more ends at once\n";
  if (arrived != 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  arrived = signal;
  if (speaks != 0) static_cast<void>(!::write(STDERR_FILENO, kText.data(), kText.size()));
}

/// The handlers of the process, which several Interrupts share where ranks are threads.
class Handlers {
 public:
  void enter(bool is_first_rank) {
    const std::lock_guard lock(mutex_);
    if (living_++ == 0) {
      arrived = 0;
      speaks = 0;
      struct sigaction action {};
      action.sa_handler = note_signal;
      action.sa_flags = SA_RESTART;  // what waits for other ranks goes on
      for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &action, &before_[i]);
    }
    if (is_first_rank) speaks = 1;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--living_ > 0) return;
    for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  }

 private:
  std::mutex mutex_;
  int living_ = 0;
  std::array<struct sigaction, kSignals.size()> before_{};
};

Handlers& handlers() {
  static Handlers of_process;
  return of_process;
}

}  // namespace

Interrupt::Interrupt(World& world) : world_(world) { handlers().enter(world.rank() == 0); }

Interrupt::~Interrupt() { handlers().leave(); }

bool Interrupt::is_asked() {
  std::array<std::int64_t, kSignals.size() + 1> ranks_with{};
  for (std::size_t i = 0; i < kSignals.size(); ++i) ranks_with[i] = arrived == kSignals[i] ? 1 : 0;
  ranks_with.back() = asked_ ? 1 : 0;
  world_.all_reduce_sum(std::span<std::int64_t>(ranks_with), "agreeing whether to end");
  for (std::size_t i = 0; i < kSignals.size() && signal_ == 0; ++i) {
    if (ranks_with[i] > 0) signal_ = kSignals[i];
  }
  asked_ = asked_ || ranks_with.back() > 0;
  return asked_ || signal_ != 0;
}

}  // namespace autopar::training
