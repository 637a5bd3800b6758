#include "torch/planning/report_file.hpp"

#include <algorithm>
#include <iterator>
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

std::vector<Bar> ReportFile::take_actions(Clock::time_point since) {
  const Seconds begin = seconds_between({}, since);
  const auto first = std::ranges::find_if(actions_, [&](const Bar& bar) { return bar.begin >= begin; });
  std::vector<Bar> taken(std::make_move_iterator(first), std::make_move_iterator(actions_.end()));
  actions_.erase(first, actions_.end());
  return taken;
}

void ReportFile::drop_actions(Clock::time_point begin) { (void)take_actions(begin); }

void ReportFile::count_call(Clock::time_point begin, Clock::time_point end, Part part) {
  if (!report_) return;
  const bool is_measured = steps_++ > 0 && part != Part::kSome;
  const auto last = std::exchange(last_, std::nullopt);
  auto actions = take_actions(begin);
  const auto keep = [this](std::vector<Bar> step, Clock::time_point since) {
    for (Bar& bar : step) {
      bar.begin -= seconds_between({}, since);
      bar.end -= seconds_between({}, since);
    }
    if (!step.empty()) bars_ = std::move(step);
  };
  if (last && std::exchange(awaits_backward_, false)) keep(take_actions(*last), *last);
  actions_.clear();
  if (!is_measured) return;
  last_ = begin;
  if (last && intervals_.size() < kMostSteps) intervals_.push_back(seconds_between(*last, begin));
  awaits_backward_ = part == Part::kForward;
  if (awaits_backward_) {
    actions_ = std::move(actions);
    return;
  }
  if (calls_.size() < kMostSteps) calls_.push_back(seconds_between(begin, end));
  keep(std::move(actions), begin);
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
