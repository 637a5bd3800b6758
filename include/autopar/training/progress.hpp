#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace autopar::training {

/// A bar with speed and time left: on a terminal redrawn in place, elsewhere lines. Under mpiexec that is a terminal if
/// mpiexec's own output is one, which can be seen on the host where it runs.
class Progress {
 public:
  /// @param unit     of the work, for people: "samples"
  /// @param total    units in all
  /// @param done     of them before the clock starts, as of a run that goes on
  /// @param visible  false: keeps count and shows nothing
  Progress(std::string title, std::string unit, std::int64_t total, bool visible, std::int64_t done = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// So many units more are done; `text` stands at the end of the line. For each step: elsewhere than on a terminal,
  /// a line is shown at once, then each ten seconds, and at the end.
  void advance(std::int64_t units, const std::string& text) {
    count(units);
    if (is_line_due()) show(text);
  }
  /// The two halves of it, for texts that tell of the speed, and for steps that are worth a line each.
  void count(std::int64_t units);
  void show(const std::string& text);
  /// A line of its own, that stays.
  void say(const std::string& text);

  /// Of late: most of all of the units counted last.
  [[nodiscard]] double units_per_second() const { return speed_; }
  [[nodiscard]] double seconds_left() const;

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool is_line_due() const;
  void draw(const std::string& text);

  std::string title_, unit_;
  std::int64_t total_, done_;
  bool visible_, terminal_;
  bool drawn_ = false;  ///< the terminal's line is the bar's
  double speed_ = 0;
  Clock::time_point latest_ = Clock::now();
  Clock::time_point shown_{};
};

/// "4.1 s", "12 min", "3 h 20 min", "2 d 4 h".
[[nodiscard]] std::string duration_text(double seconds);
/// "812", "12.3k", "4.56M": three digits.
[[nodiscard]] std::string short_number(double number);

}  // namespace autopar::training
