#include "one_start.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <utility>

#include <poll.h>
#include <unistd.h>

namespace autopar::tool {

namespace {

/// What mpiexec gets if it goes on so long after a rank has failed, in seconds.
struct Force {
  double after;
  int signal;
};
constexpr std::array<Force, 2> kForces{{{20, SIGTERM}, {23, SIGKILL}}};
constexpr double kDrainLimit = 1;  ///< for output, after the end of mpiexec, in seconds
constexpr int kStepPause = 1000;   ///< milliseconds between two looks for the first step

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int milliseconds_until(double time) { return std::max(0, static_cast<int>((time - seconds_now()) * 1000) + 1); }

}  // namespace

void Console::say(const std::string& text) const {
  const auto line = "autopar run: " + text + '\n';
  for (std::size_t done = 0; done < line.size();) {
    const auto written = ::write(err, line.data() + done, line.size() - done);
    if (written < 0 && errno != EINTR && errno != EAGAIN) return;
    if (written < 0 && errno == EAGAIN) {
      pollfd ready{err, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    }
    done += static_cast<std::size_t>(std::max<ssize_t>(written, 0));
  }
}

OneStart::OneStart(const Command& command, const std::vector<std::string>& environment, std::filesystem::path step,
                   const Console& console, Signals& signals)
    : signals_(signals),
      step_file_(std::move(step)),
      step_before_(step_reached(step_file_)),
      out_(console.out, [this](std::string_view line) { take(line); }),
      err_(console.err, [this](std::string_view line) { take(line); }),
      process_(command, environment, out_.child_end(), err_.child_end(), signals) {
  out_.started();
  err_.started();
}

void OneStart::take(std::string_view line) {
  outcome_.last_lines.add(line);
  outcome_.report.read(line);
  if (outcome_.report.is_lost() && !lost_since_) lost_since_ = seconds_now();
}

StartOutcome OneStart::run() {
  while (!is_over()) {
    hand_signals_on();
    end_what_is_lost();
    if (!outcome_.first) look_at_step();
    wait(patience());
  }
  look_at_step();
  outcome_.launcher_status = shell_status(process_.wait_status().value_or(0));
  return std::move(outcome_);
}

/// Output may be left when mpiexec has ended; and a process that outlives it may hold it open for ever.
bool OneStart::is_over() {
  if (!process_.wait_status()) return false;
  if (out_.is_done() && err_.is_done()) return true;
  if (!over_since_) over_since_ = seconds_now();
  if (seconds_now() < *over_since_ + kDrainLimit) return false;
  out_.stop_reading();
  err_.stop_reading();
  return (out_.is_done() && err_.is_done()) || requests_ < signals_.requests_seen();
}

int OneStart::patience() const {
  int patience = outcome_.first ? -1 : kStepPause;
  const auto until = [&](double time) {
    const int left = milliseconds_until(time);
    patience = patience < 0 ? left : std::min(patience, left);
  };
  if (over_since_) {
    if (out_.is_reading() || err_.is_reading()) until(*over_since_ + kDrainLimit);
  } else if (lost_since_ && forces_ < kForces.size()) {
    until(*lost_since_ + kForces[forces_].after);
  }
  return patience;
}

void OneStart::wait(int milliseconds) {
  std::array<pollfd, 3> polled{pollfd{signals_.descriptor(), POLLIN, 0}, pollfd{out_.polled(), out_.events(), 0},
                               pollfd{err_.polled(), err_.events(), 0}};
  if (::poll(polled.data(), polled.size(), milliseconds) <= 0) return;
  if (polled[0].revents != 0 && signals_.read()) {
    out_.copy_size();
    err_.copy_size();
    process_.send(SIGWINCH);
  }
  if (polled[1].revents != 0) out_.work();
  if (polled[2].revents != 0) err_.work();
}

/// The first lets the ranks save, the second ends them; a third finds something that does neither.
void OneStart::hand_signals_on() {
  constexpr int kMostHandedOn = 2;
  if (process_.wait_status()) return;
  for (const int signal : signals_.take_requests()) {
    if (++requests_ <= kMostHandedOn) {
      process_.send(signal == SIGHUP ? SIGTERM : signal);
    } else {
      outcome_.is_cut_off = true;
      process_.send_to_group(SIGKILL);
    }
  }
}

void OneStart::end_what_is_lost() {
  if (!lost_since_ || process_.wait_status()) return;
  for (; forces_ < kForces.size() && seconds_now() >= *lost_since_ + kForces[forces_].after; ++forces_) {
    outcome_.is_cut_off = true;
    process_.send_to_group(kForces[forces_].signal);
  }
}

void OneStart::look_at_step() {
  const auto reached = step_reached(step_file_);
  if (!reached || reached == step_before_) return;
  if (!outcome_.first) outcome_.first = reached;
  outcome_.last = reached;
}

}  // namespace autopar::tool
