#include "torch/planning/report_file.hpp"

#include <catch_shim.hpp>
#include <html_tags.hpp>
#include <temp_folder.hpp>

#include <chrono>
#include <string>

#include <autopar/io/file.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/testing/random_models.hpp>

// What ReportFile counts, with times by hand; tests/threads/report_file_test.cpp has sessions.
namespace report_file_unit_test {

using namespace autopar;
using Catch::Matchers::Contains;
using planning::OptionalFiles;
using planning::ReportFile;
using Part = ReportFile::Part;
using test::HtmlTags;

struct Reported {
  explicit Reported(const std::string& name) : options{.report_file = folder / name} {
    const ModelProfile model = autopar::testing::chain(4, 3e5, 40000, 4000);
    const Cluster cluster = autopar::testing::small_cluster(1);
    PlanRequest request;
    request.batch = 8;
    plan = plan_with_defaults(model, cluster, request);
    const ProfiledCost costs(cluster, {});
    report.write_plan(plan, model, &costs, {});
  }
  /// A call that begins at `second` and takes 0.5 s, with a forward in it.
  void call(double second, Part part) {
    action(ActionKind::kForward, second + 0.1);
    report.count_call(at(second), at(second + 0.5), part);
  }
  void action(ActionKind kind, double second) {
    Action action{kind};
    action.stage = StageId(0);
    action.microbatch = 0;
    report.add_action(action, Rank(0), at(second), at(second + 0.1));
  }
  [[nodiscard]] static ReportFile::Clock::time_point at(double second) {
    return ReportFile::Clock::time_point(std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * (100 + second))));
  }
  [[nodiscard]] std::string text() const { return read_text_file(options.report_file); }

  TempFolder folder;
  Options options;
  OptionalFiles files{Logger()};
  ReportFile report{options, files};
  Plan plan;
};

TEST_CASE("ReportFile: text without a page, and nothing is counted", "[report]") {
  Reported of("plan.txt");
  CHECK_FALSE(of.report.is_page());
  CHECK_THAT(of.text(), Contains(to_text(of.plan)));
  for (int step = 0; step < 20; ++step) of.call(step, Part::kWhole);
  CHECK_FALSE(of.report.is_due());
  CHECK_FALSE(of.report.has_news());
}

TEST_CASE("ReportFile: medians of steps and calls, the first left out", "[report]") {
  Reported of("plan.html");
  CHECK_FALSE(of.report.has_news());
  double second = 0;
  for (const double way : {30.0, 2.0, 2.0, 9.0, 2.0}) of.call(second, Part::kWhole), second += way;
  CHECK(of.report.has_news());
  CHECK_FALSE(of.report.is_due());
  of.report.write_measured(Rank(0), Bytes(0), false);
  CHECK_FALSE(of.report.has_news());
  const HtmlTags page(of.text());
  CHECK(page.fault() == "");
  CHECK_THAT(page.text("summary"), Contains("2.00 s"));
  CHECK_THAT(page.text("errors"), Contains("after 5 training steps") && Contains("500 ms") && Contains("100 ms"));
  CHECK(page.with_class("measured", "timeline").size() == 2);  // its label and its lane
  of.report.write_measured(Rank(0), Bytes(0), true);
  CHECK_THAT(HtmlTags(of.text()).text("errors"), !Contains("500 ms"));  // a GPU works on after calls
}

TEST_CASE("ReportFile: is due once, after nine calls", "[report]") {
  Reported of("plan.html");
  for (int step = 0; step < 8; ++step) of.call(step, Part::kWhole);
  CHECK_FALSE(of.report.is_due());
  of.call(8, Part::kWhole);
  CHECK(of.report.is_due());
  of.report.write_measured(Rank(0), Bytes(0), false);
  CHECK_FALSE(of.report.is_due());
  of.call(9, Part::kWhole);
  CHECK_FALSE(of.report.is_due());
  CHECK(of.report.has_news());
}

TEST_CASE("ReportFile: a loss outside has its backward after the call", "[report]") {
  Reported of("plan.html");
  for (int step = 0; step < 4; ++step) {
    of.call(2 * step, Part::kForward);
    of.action(ActionKind::kBackward, 2 * step + 0.7);
    of.action(ActionKind::kForward, 2 * step + 1.1);  // of an evaluation, between steps
    of.report.drop_actions(Reported::at(2 * step + 1));
  }
  of.report.write_measured(Rank(0), Bytes(0), false);
  const HtmlTags page(of.text());
  CHECK_THAT(page.text("summary"), Contains("2.00 s"));
  CHECK_THAT(page.text("errors"), Contains("forward of stage 0, mean") && Contains("backward of stage 0, mean") &&
                                      !Contains("forward and backward"));
  const auto predicted = page.with_class("bar", "timeline").size() - 2;
  CHECK(predicted >= 2);
}

TEST_CASE("ReportFile: parts of a step are not measured", "[report]") {
  Reported of("plan.html");
  for (int step = 0; step < 6; ++step) of.call(step, step % 2 == 0 ? Part::kSome : Part::kWhole);
  of.report.write_measured(Rank(0), Bytes(1 << 20), false);
  const auto text = HtmlTags(of.text()).text("errors");
  CHECK_THAT(text, !Contains("step, call to call") && Contains("forward and backward") && Contains("1.00 MiB"));
}

}  // namespace report_file_unit_test
