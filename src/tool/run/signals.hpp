#pragma once

#include <vector>

#include <csignal>

#include <autopar/io/file_descriptor.hpp>

namespace autopar::tool {

/// While it lives, signals of this thread come through a descriptor: those that ask for the end (SIGINT, SIGTERM,
/// SIGUSR1, SIGHUP), SIGCHLD and SIGWINCH. Signals that are ignored stay so, as `nohup` has it. A closed pipe is an
/// error of `write`.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// Readable when a signal has come; `read` then.
  [[nodiscard]] int descriptor() const { return descriptor_.number(); }
  /// Takes note of what has come. @return whether the terminal has another size
  bool read();

  /// Those that ask for the end, in their order, each once; SIGTERM for SIGHUP.
  [[nodiscard]] std::vector<int> take_requests();
  [[nodiscard]] int requests_seen() const { return seen_; }
  /// The first that ever came; 0: none.
  [[nodiscard]] int first_request() const { return first_; }

  /// What a child sets before it starts its program.
  [[nodiscard]] const sigset_t& original_mask() const { return original_; }

 private:
  sigset_t original_{};
  FileDescriptor descriptor_;
  std::vector<int> requests_;
  int first_ = 0, seen_ = 0;
};

}  // namespace autopar::tool
