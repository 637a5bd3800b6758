#include <algorithm>
#include <mutex>
#include <string>

#include <torch/nn.h>
#include <torch/types.h>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>
#include <html_tags.hpp>
#include <nets.hpp>
#include <temp_folder.hpp>

// The page of report_file in a run: what was planned, and what rank 0 measured.
namespace report_file_test {

namespace ap = autopar;
using ap::test::foreign_in;
using ap::test::HtmlTags;
using Catch::Matchers::Contains;

struct NetImpl : nets::MeanSquare<nets::Linears> {
  NetImpl() : MeanSquare(4, {{"first", 6}, {"second", 3}}, torch::relu) {}
};
TORCH_MODULE(Net);

/// So many steps on each rank. @param look  called on rank 0 between the last step and the end of the session
template <class Look>
ap::Plan train(int ranks, const ap::Options& options, int steps, const Look& look) {
  ap::Plan plan;
  ap::loopback::run(ranks, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, Net(), options);
    for (int step = 0; step < steps; ++step) model(torch::ones({4, 4})).backward();
    if (world.rank() != 0) return;
    plan = model->plan();
    look();
  });
  return plan;
}

TEST_CASE("report_file: a page, completed with what was measured", "[files]") {
  const TempFolder folder;
  const auto file = folder / "report.html";
  const ap::Options options{.stages = 2, .microbatches = 2, .report_file = file};
  std::string before;
  const auto plan = train(2, options, 4, [&] { before = ap::read_text_file(file); });
  const std::string after = ap::read_text_file(file);
  const std::string* const pages[] = {&before, &after};
  for (const std::string* shown : pages) {
    const std::string& html = *shown;
    const HtmlTags page(html);
    CHECK(page.fault() == "");
    CHECK(foreign_in(html) == "");
    CHECK(html.find("<!-- " + ap::file_mark("report", plan.model) + " -->") != std::string::npos);
    for (const char* id : {"summary", "model", "timeline", "memory", "time", "errors", "runner-ups", "advice"})
      CHECK(page.ids().contains(id));
    CHECK_THAT(page.text("summary"), Contains(ap::readable(plan.step)));
    CHECK_THAT(page.text("model"), Contains("first") && Contains("second") && Contains("aten::linear"));
    const bool is_measured = shown == &after;  // 2 micro-batches in 2 stages, and rank 0's once more
    CHECK(page.with_class("forward", "timeline").size() == (is_measured ? 6 : 4));
    CHECK(page.with_class("lane", "timeline").size() == (is_measured ? 3 : 2));
  }
  CHECK_THAT(HtmlTags(before).text("errors"), Contains("Nothing was measured"));
  CHECK_THAT(HtmlTags(after).text("errors"),
             Contains("after 4 training steps") && Contains("step, call to call") && Contains("forward and backward"));
  CHECK_THAT(HtmlTags(after).text("summary"), Contains("measured step"));
}

TEST_CASE("report_file: measured after a few steps already, and of a plan that is read", "[files]") {
  const TempFolder folder;
  const auto file = folder / "report.html";
  const ap::Options options{.stages = 2, .plan_file = folder / "plan.json", .report_file = file};
  train(2, options, 1, [] {});
  CHECK_THAT(HtmlTags(ap::read_text_file(file)).text("errors"), Contains("Nothing was measured yet"));
  std::string before;
  train(2, options, 9, [&] { before = ap::read_text_file(file); });  // reads the plan
  const HtmlTags page(before);
  CHECK(page.fault() == "");
  CHECK_THAT(page.text("errors"), Contains("after 9 training steps"));
  CHECK_FALSE(page.with_class("bar", "timeline").empty());
  CHECK_FALSE(page.with_class("area", "memory").empty());
}

TEST_CASE("report_file: calls within no_sync and inference are no steps", "[files]") {
  const TempFolder folder;
  const auto file = folder / "report.html";
  const ap::Options options{.report_file = file};
  ap::loopback::run(1, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, Net(), options);
    for (int step = 0; step < 4; ++step) {
      const auto no_sync = model->no_sync();
      model(torch::ones({4, 4})).backward();
    }
    const torch::NoGradGuard no_gradients;
    for (int call = 0; call < 4; ++call) (void)model(torch::ones({4, 4}));
  });
  CHECK_THAT(HtmlTags(ap::read_text_file(file)).text("errors"), Contains("Nothing was measured yet"));
}

TEST_CASE("report_file: files of others stay, full disks are a warning", "[files]") {
  const TempFolder folder;
  const auto file = folder / "report.html";
  ap::write_text_file(file, "mine");
  CHECK_THROWS_AS(train(1, {.report_file = file}, 1, [] {}), ap::ConfigError);
  CHECK(ap::read_text_file(file) == "mine");
  ap::write_text_file(folder / "file", "no folder");
  const auto nowhere = folder / "file" / "report.html";
  CHECK(train(1, {.report_file = nowhere, .log_level = "off"}, 10, [] {}).world == 1);
}

}  // namespace report_file_test
