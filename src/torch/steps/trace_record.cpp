#include "torch/steps/trace_record.hpp"

#include <algorithm>
#include <utility>

namespace autopar::steps {

void TraceRecord::begin_step(std::int64_t number) {
  const std::lock_guard lock(mutex_);
  while (!steps_.empty() && (steps_.size() >= kSteps || bars() > kBars)) drop_oldest();
  steps_.push_back({.number = number});
}

std::size_t TraceRecord::bars() const {
  std::size_t count = 0;
  for (const auto& step : steps_) count += step.bars.size();
  return count;
}

void TraceRecord::drop_oldest() {
  auto oldest = std::move(steps_.front());
  steps_.pop_front();
  const bool is_latest_of_operators =
      oldest.operators > 0 && std::ranges::all_of(steps_, [](const Step& step) { return step.operators == 0; });
  ++dropped_;
  if (!is_latest_of_operators) return;
  dropped_ += of_operators_ ? 0 : -1;  // it takes the place of the one that was kept
  of_operators_ = std::move(oldest);
}

void TraceRecord::add(TraceBar bar) {
  const std::lock_guard lock(mutex_);
  if (steps_.empty()) return;
  auto& step = steps_.back();
  if (bar.category == TraceCategory::kOperator) {
    if (step.operators == kOperatorsOfStep) {
      ++step.dropped;
      return;
    }
    if (step.operators++ == 0 && of_operators_) {
      of_operators_.reset();
      ++dropped_;
    }
  }
  step.bars.push_back(std::move(bar));
}

void TraceRecord::resolve(const TraceClock& clock) {
  const std::lock_guard lock(mutex_);
  const auto resolve_step = [&](Step& step) {
    for (; step.resolved < step.bars.size(); ++step.resolved) {
      auto& bar = step.bars[step.resolved];
      bar.begin = {clock.time_of(bar.begin), nullptr};
      bar.end = {clock.time_of(bar.end), nullptr};
    }
  };
  for (auto& step : steps_) resolve_step(step);
  if (of_operators_) resolve_step(*of_operators_);
}

template <class Visit>
void TraceRecord::for_each_step(Visit&& visit) const {
  if (of_operators_) visit(*of_operators_);
  for (const auto& step : steps_) visit(step);
}

std::vector<TraceEvent> TraceRecord::events(Rank rank, const std::function<Seconds(TraceClock::Time)>& seconds) const {
  const std::lock_guard lock(mutex_);
  std::vector<TraceEvent> events;
  for_each_step([&](const Step& step) {
    for (const auto& bar : step.bars) {
      TraceEvent event{rank,         bar.lane,   bar.name, seconds(bar.begin.host), seconds(bar.end.host),
                       bar.category, step.number};
      event.end = std::max(event.begin, event.end);
      if (bar.labels != nullptr) {
        event.op = bar.labels->names[bar.op.index()];
        event.name = event.op + bar.name;
        event.module = bar.labels->modules[bar.op.index()];
      }
      events.push_back(std::move(event));
    }
  });
  return events;
}

std::string TraceRecord::note() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  if (dropped_ > 0) text = std::to_string(dropped_) + " earlier steps were dropped";
  const auto add = [&](const std::string& sentence) { text += (text.empty() ? "" : "; ") + sentence; };
  std::size_t dropped = 0;
  const Step* of_operators = nullptr;
  bool have_others = false;  // steps without operators
  for_each_step([&](const Step& step) {
    dropped += step.dropped;
    if (step.operators > 0) of_operators = &step;
    have_others = have_others || step.operators == 0;
  });
  if (dropped > 0) add(std::to_string(dropped) + " operators were dropped");
  if (of_operators != nullptr && have_others)
    add("times of operators are those of step " + std::to_string(of_operators->number) + ", which ran eagerly");
  return text;
}

bool TraceRecord::empty() const {
  const std::lock_guard lock(mutex_);
  return steps_.empty();
}

}  // namespace autopar::steps
