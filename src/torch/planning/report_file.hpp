#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/report/run_report.hpp>
#include <autopar/schedule/action.hpp>

#include "torch/planning/optional_files.hpp"

namespace autopar::planning {

/// `Options::report_file`: the plan as text, or as a page if the name ends in ".html". A page is written when the model
/// is planned, and again by `write_measured` with what this rank measured.
class ReportFile {
 public:
  using Clock = std::chrono::steady_clock;

  /// @pre both outlive this
  ReportFile(const Options& options, OptionalFiles& files) : options_(options), files_(files) {}

  /// Whether a page is asked for: text takes neither costs nor modules.
  [[nodiscard]] bool is_page() const;
  /// Writes the plan.
  /// @param costs    null: unknown
  /// @param modules  by operator, see `module_paths`; for a page
  /// @throws ConfigError if the file cannot be written
  void write_plan(const Plan& plan, const ModelProfile& profile, const ProfiledCost* costs,
                  const std::vector<std::string>& modules);

  /// What a call of the model that makes gradients is of a step.
  enum class Part : std::uint8_t {
    kWhole,    ///< forward and backward
    kForward,  ///< the loss is outside: its backward follows the call
    kSome,     ///< more calls follow before gradients are summed: neither it nor the way to the next is measured
  };
  /// Counts a call of this rank, when it ends: all but the first, in which the model is planned. Without a page it does
  /// nothing.
  void count_call(Clock::time_point begin, Clock::time_point end, Part part);
  /// An action of the call that is under way. @pre a page was written
  void add_action(const Action& action, Rank rank, Clock::time_point begin, Clock::time_point end);
  /// The call that ends, and began then, makes no gradients.
  void drop_actions(Clock::time_point begin);
  /// The actions of a step from elsewhere, in place of those that were added.
  void set_actions(std::vector<Bar> bars) { bars_ = std::move(bars); }
  /// Whether enough was measured since the page was written last: after a few steps, and where a program ends.
  [[nodiscard]] bool is_due() const { return report_ && steps_ > kFirstSteps && written_ == 0; }
  [[nodiscard]] bool has_news() const { return report_ && steps_ > written_; }
  /// Writes the page again. What cannot be written is a warning.
  /// @param peak           of the device's allocator; 0: unknown
  /// @param returns_early  whether the device works on after calls, so that their time tells nothing
  void write_measured(Rank rank, Bytes peak, bool returns_early);

 private:
  static constexpr std::int64_t kFirstSteps = 8;
  static constexpr std::size_t kMostSteps = 4096;       // that medians are of
  static constexpr std::size_t kMostActions = 1 << 14;  // of a step

  /// The actions that began then or later.
  [[nodiscard]] std::vector<Bar> take_actions(Clock::time_point since);

  const Options& options_;
  OptionalFiles& files_;
  std::optional<RunReport> report_;  ///< of a page
  std::optional<Clock::time_point> last_;
  std::vector<Seconds> calls_, intervals_;  ///< whole steps, and from the begin of one to the next
  std::vector<Bar> bars_;                   ///< of the latest step
  std::vector<Bar> actions_;                ///< of the step that is under way, in seconds of the clock
  bool awaits_backward_ = false;            ///< the call that began at `last_` has its backward after it
  std::int64_t steps_ = 0, written_ = 0;
};

}  // namespace autopar::planning
