#include "signals.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/signalfd.h>

#include <autopar/core/error.hpp>

namespace autopar::tool {

namespace {

bool asks_for_the_end(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGUSR1 || signal == SIGHUP;
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

Signals::Signals() {
  sigset_t watched;
  ::sigemptyset(&watched);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGCHLD, SIGWINCH, SIGPIPE}) {
    if (!is_ignored(signal) || signal == SIGCHLD) ::sigaddset(&watched, signal);
  }
  descriptor_ = FileDescriptor(::signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!descriptor_) throw InvalidArgument(std::string("signals cannot be watched: ") + std::strerror(errno));
  ::pthread_sigmask(SIG_BLOCK, &watched, &original_);
}

Signals::~Signals() {
  read();
  ::pthread_sigmask(SIG_SETMASK, &original_, nullptr);
}

bool Signals::read() {
  bool is_resized = false;
  signalfd_siginfo info{};
  while (::read(descriptor_.number(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    is_resized = is_resized || signal == SIGWINCH;
    if (!asks_for_the_end(signal)) continue;
    requests_.push_back(signal == SIGHUP ? SIGTERM : signal);  // programs know the latter
    if (++seen_ == 1) first_ = requests_.back();
  }
  return is_resized;
}

std::vector<int> Signals::take_requests() { return std::exchange(requests_, {}); }

}  // namespace autopar::tool
