#include "one_start.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <utility>

#include <poll.h>

namespace autopar::tool {

namespace {

/// What mpiexec gets if it goes on so long after a rank has failed, in seconds.
struct Force {
  double after;
  int signal;
};
constexpr std::array<Force, 2> kForces{{{20, SIGTERM}, {23, SIGKILL}}};
constexpr double kDrainLimit = 1;                           ///< for output, after the end of mpiexec, in seconds
constexpr double kShortestPause = 0.05, kLongestPause = 1;  ///< seconds between two looks at the ranks

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int milliseconds_until(double time) { return std::max(0, static_cast<int>((time - seconds_now()) * 1000) + 1); }

}  // namespace

OneStart::OneStart(StartPlan plan, const Console& console, Signals& signals)
    : signals_(signals),
      plan_(std::move(plan)),
      step_before_(step_reached(plan_.step)),
      ranks_(plan_.job),
      out_(console.out, [this](std::string_view line) { take(line); }),
      err_(console.err, [this](std::string_view line) { take(line); }),
      process_(plan_.command, plan_.environment, out_.child_end(), err_.child_end(), signals) {
  out_.started();
  err_.started();
  look_pause_ = kShortestPause;
  next_look_ = seconds_now() + look_pause_;
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
    look_early();
    wait(patience());
  }
  look_at_step();
  blame();
  outcome_.launcher_status = shell_status(process_.wait_status().value_or(0));
  if (outcome_.launcher_status != 0) {
    out_.end_line();
    err_.end_line();
  }
  return std::move(outcome_);
}

/// Where the launcher alone has spoken, the rank that ended just before it is the one that failed.
void OneStart::blame() {
  constexpr double kJustBefore = 1;
  if (!lost_since_ || outcome_.report.fault()) return;
  ranks_.note_ends(seconds_now());
  if (const auto rank = ranks_.first_ended(*lost_since_ - kJustBefore)) outcome_.report.blame(*rank);
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
  int patience = -1;
  const auto until = [&](double time) {
    const int left = milliseconds_until(time);
    patience = patience < 0 ? left : std::min(patience, left);
  };
  if (!outcome_.first) until(next_look_);
  if (over_since_) {
    if (out_.is_reading() || err_.is_reading()) until(*over_since_ + kDrainLimit);
  } else if (lost_since_ && forces_ < kForces.size()) {
    until(*lost_since_ + kForces[forces_].after);
  }
  return patience;
}

void OneStart::wait(int milliseconds) {
  std::array<pollfd, 4> polled{pollfd{signals_.descriptor(), POLLIN, 0}, pollfd{out_.polled(), out_.events(), 0},
                               pollfd{err_.polled(), err_.events(), 0}, pollfd{ranks_.descriptor(), POLLIN, 0}};
  if (::poll(polled.data(), polled.size(), milliseconds) <= 0) return;
  if (polled[0].revents != 0 && signals_.read()) {
    out_.copy_size();
    err_.copy_size();
    process_.send(SIGWINCH);
  }
  if (polled[1].revents != 0) out_.work();
  if (polled[2].revents != 0) err_.work();
  if (polled[3].revents != 0) ranks_.note_ends(seconds_now());
}

/// The first lets the ranks save, the second ends them; a third finds something that does neither.
void OneStart::hand_signals_on() {
  constexpr int kMostHandedOn = 2;
  if (process_.wait_status()) return;
  for (const int signal : signals_.take_requests()) {
    if (++requests_ <= kMostHandedOn) {
      process_.send(requests_ == 1 ? first_signal(plan_.launcher, signal) : signal);
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

/// Which process is which rank, and the first step: soon after the start, then ever less often.
void OneStart::look_early() {
  if (outcome_.first || seconds_now() < next_look_) return;
  look_at_step();
  ranks_.look();
  look_pause_ = std::min(2 * look_pause_, kLongestPause);
  next_look_ = seconds_now() + look_pause_;
}

void OneStart::look_at_step() {
  const auto reached = step_reached(plan_.step);
  if (!reached || reached == step_before_) return;
  if (!outcome_.first) outcome_.first = reached;
  outcome_.last = reached;
}

}  // namespace autopar::tool
