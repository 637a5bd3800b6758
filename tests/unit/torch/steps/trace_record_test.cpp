#include <catch_shim.hpp>

#include <memory>
#include <string>

#include "torch/steps/trace_record.hpp"

// The bounds of what a timeline keeps.
namespace trace_record_test {

using namespace autopar;
using steps::TraceRecord;

steps::TraceBar action() { return {.lane = "compute", .category = TraceCategory::kForward, .name = "forward"}; }

steps::TraceBar op() {
  static const auto labels = std::make_shared<steps::OpLabels>(steps::OpLabels{{"aten::relu"}, {"layers.0"}});
  return {.lane = "compute", .category = TraceCategory::kOperator, .name = "", .labels = labels, .op = OpId(0)};
}

std::vector<TraceEvent> events_of(TraceRecord& record) {
  record.resolve(steps::TraceClock(c10::Device(c10::kCPU)));
  return record.events(Rank(1), [](steps::TraceClock::Time) { return Seconds(1); });
}

TEST_CASE("TraceRecord: keeps the newest steps and counts the others", "[trace]") {
  TraceRecord record;
  CHECK(record.empty());
  const auto steps = static_cast<std::int64_t>(TraceRecord::kSteps) + 5;
  for (std::int64_t step = 1; step <= steps; ++step) {
    record.begin_step(step);
    record.add(action());
    record.add(op());
  }
  const auto events = events_of(record);
  CHECK(events.size() == 2 * TraceRecord::kSteps);
  CHECK(events.front().step == 6);
  CHECK(events.back().step == steps);
  CHECK(events.back().module == "layers.0");
  CHECK(record.note() == "5 earlier steps were dropped");
}

TEST_CASE("TraceRecord: operators of a huge step are bounded", "[trace]") {
  TraceRecord record;
  for (std::int64_t step = 1; step <= 5; ++step) {
    record.begin_step(step);
    for (std::size_t i = 0; i < TraceRecord::kOperatorsOfStep + 7; ++i) record.add(op());
    record.add(action());
  }
  const auto events = events_of(record);
  CHECK(events.size() <= TraceRecord::kBars + TraceRecord::kOperatorsOfStep + 2);
  CHECK(events.back().category == TraceCategory::kForward);
  CHECK(record.note().find("earlier steps were dropped; 14 operators were dropped") != std::string::npos);
}

TEST_CASE("TraceRecord: the latest step with operators stays", "[trace]") {
  TraceRecord record;
  record.begin_step(1);
  record.add(op());
  record.begin_step(2);
  record.add(op());
  for (std::int64_t step = 3; step <= 100; ++step) {
    record.begin_step(step);
    record.add(action());
  }
  const auto events = events_of(record);
  CHECK(events.size() == TraceRecord::kSteps + 1);
  CHECK(events.front().step == 2);
  CHECK(record.note() == std::to_string(100 - TraceRecord::kSteps - 1) +
                             " earlier steps were dropped; times of operators are those of step 2, which ran eagerly");
  record.add(op());
  CHECK(events_of(record).front().step == 101 - static_cast<std::int64_t>(TraceRecord::kSteps));
}

}  // namespace trace_record_test
