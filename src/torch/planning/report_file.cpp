#include "torch/planning/report_file.hpp"

#include <algorithm>
#include <utility>

#include <autopar/io/file.hpp>
#include <autopar/io/report_page.hpp>
#include <autopar/plan/report/print.hpp>

#include "torch/planning/plan_files.hpp"

namespace autopar::planning {

namespace {

Seconds seconds_between(ReportFile::Clock::time_point begin, ReportFile::Clock::time_point end) {
  return Seconds(std::chrono::duration<double>(end - begin).count());
}

Seconds median_of(std::vector<Seconds> values) {
  if (values.empty()) return {};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

bool ReportFile::is_page() const { return !options_.report_file.empty() && autopar::is_page(options_.report_file); }

void ReportFile::write_plan(const Plan& plan, const ModelProfile& profile, const ProfiledCost* costs,
                            const std::vector<std::string>& modules) {
  const auto overwrite = overwrite_of(options_);
  if (is_page()) {
    report_ = make_run_report(plan, profile, costs, modules);
    write_report_page(options_.report_file, *report_, overwrite);
    return;
  }
  const auto mark = file_mark("report", plan.model);
  write_marked_file(options_.report_file, mark + "\n" + to_text(plan), mark, overwrite);
}

void ReportFile::add_action(const Action& action, Rank rank, Clock::time_point begin, Clock::time_point end) {
  if (!report_ || actions_.size() == kMostActions || action.peer == rank) return;  // to itself: nothing travels
  actions_.push_back(bar_of(action, rank, seconds_between({}, begin), seconds_between({}, end)));
}

void ReportFile::count_call(Clock::time_point begin, Clock::time_point end, bool accumulates) {
  if (!report_) return;
  const bool is_step = steps_++ > 0 && !accumulates;
  const auto last = std::exchange(last_, std::nullopt);
  auto actions = std::exchange(actions_, {});
  if (!is_step) return;
  for (Bar& bar : actions) {
    bar.begin -= seconds_between({}, begin);
    bar.end -= seconds_between({}, begin);
  }
  if (!actions.empty()) bars_ = std::move(actions);
  last_ = begin;
  if (calls_.size() < kMostSteps) calls_.push_back(seconds_between(begin, end));
  if (last && intervals_.size() < kMostSteps) intervals_.push_back(seconds_between(*last, begin));
}

void ReportFile::write_measured(Rank rank, Bytes peak, bool returns_early) {
  if (!report_) return;
  MeasuredRun run;
  run.rank = rank;
  run.steps = written_ = steps_;
  run.step = median_of(intervals_);
  if (!returns_early) run.call = median_of(calls_);
  run.peak_memory = peak;
  run.bars = bars_;
  set_measured(*report_, std::move(run));
  files_.write("report_file", [&] { write_report_page(options_.report_file, *report_, overwrite_of(options_)); });
}

}  // namespace autopar::planning
