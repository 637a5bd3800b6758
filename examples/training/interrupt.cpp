#include "training/interrupt.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include <unistd.h>

namespace training {

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

}  // namespace

Interrupt::Interrupt(autopar::World& world) : world_(world) {
  arrived = 0;
  speaks = world.rank() == 0 ? 1 : 0;
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;  // what waits for other ranks goes on
  for (const int signal : kSignals) ::sigaction(signal, &action, nullptr);
}

Interrupt::~Interrupt() {
  for (const int signal : kSignals) std::signal(signal, SIG_DFL);
}

bool Interrupt::is_asked() {
  std::array<std::int64_t, kSignals.size()> ranks_with{};
  for (std::size_t i = 0; i < kSignals.size(); ++i) ranks_with[i] = arrived == kSignals[i] ? 1 : 0;
  world_.all_reduce_sum(std::span<std::int64_t>(ranks_with), "agreeing whether to end");
  const auto first = std::find_if(ranks_with.begin(), ranks_with.end(), [](std::int64_t ranks) { return ranks > 0; });
  if (first != ranks_with.end()) signal_ = kSignals[static_cast<std::size_t>(first - ranks_with.begin())];
  return signal_ != 0;
}

}  // namespace training
