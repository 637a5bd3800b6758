#include <catch_shim.hpp>
#include <html_tags.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <autopar/io/file.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/io/report_page.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/plan/report/step_timeline.hpp>

#include "tool_run.hpp"

// The command `report`: pages of plans without a run.

using namespace autopar;
using Catch::Matchers::Contains;
using test::check_trouble;
using test::foreign_in;
using test::HtmlTags;
using test::run_tool;
using test::ToolFolder;

namespace {

constexpr std::array kNotPlain{ScheduleKind::kInterleaved, ScheduleKind::kZbH1, ScheduleKind::kZbV,
                               ScheduleKind::kSynthesised};

std::string kind_of_bar(const HtmlTags::Tag& bar) { return bar.attribute("class").substr(4); }
double share_of(const HtmlTags::Tag& bar, const std::string& name) { return std::stod(bar.attribute(name)) / 100; }

}  // namespace

TEST_CASE("report: self-contained, bars match the step", "[tool]") {
  const ToolFolder folder("tool_report");
  REQUIRE(folder
              .plan({"--batch", "32", "--stages", "2", "--microbatches", "4", "--schedule", "1f1b", "--out",
                     folder.at("plan.json")})
              .status == 0);
  const auto result = run_tool({"report", folder.at("plan.json"), folder.at("profile.json"), folder.at("cluster.toml"),
                                "--out", folder.at("t.html")});
  CAPTURE(result.err);
  REQUIRE(result.status == 0);
  CHECK_THAT(result.out, Contains("t.html: 2 stages"));
  const std::string html = folder.text("t.html");
  CHECK(foreign_in(html).empty());
  const HtmlTags page(html);
  CHECK(page.fault() == "");
  for (const char* id : {"summary", "model", "timeline", "memory", "time", "errors", "runner-ups", "advice"})
    CHECK(page.ids().contains(id));

  const Plan plan = read_plan(folder.at("plan.json"));
  const auto timeline = timeline_of(plan, folder.model, ProfiledCost(folder.cluster, {}));
  const auto bars = page.with_class("bar", "timeline");
  const auto shown =
      std::count_if(timeline.bars.begin(), timeline.bars.end(), [](const auto& b) { return b.end > b.begin; });
  REQUIRE(static_cast<std::ptrdiff_t>(bars.size()) == shown);
  std::map<std::string, int> kinds;
  std::map<int, std::vector<std::pair<double, double>>> lanes;  // of computing, by their y
  double right = 0;
  for (const auto& bar : bars) {
    ++kinds[kind_of_bar(bar)];
    const double begin = share_of(bar, "x"), end = begin + share_of(bar, "width");
    if (bar.attribute("height") == "18") lanes[std::stoi(bar.attribute("y"))].emplace_back(begin, end);
    right = std::max(right, end);
  }
  CHECK(kinds["forward"] == 16);  // 4 micro-batches on 4 ranks
  CHECK(kinds["backward"] == 16);
  CHECK(kinds["send"] == kinds["receive"]);
  CHECK(kinds["reduce"] > 0);
  CHECK(kinds["update"] == 4);
  CHECK(right == Approx(1).margin(1e-4));  // the step ends at the right edge
  REQUIRE(lanes.size() == 4);
  int rank = 0;
  for (auto& [y, list] : lanes) {
    std::sort(list.begin(), list.end());
    double drawn = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0) CHECK(list[i].first >= list[i - 1].second - 3e-5);  // a rank does one thing at a time
      drawn += list[i].second - list[i].first;
    }
    CHECK(drawn == Approx(1 - timeline.waiting(Rank(rank))).margin(1e-3));
    CHECK_THAT(page.text("timeline"), Contains("rank " + std::to_string(rank) + ", stage "));
    ++rank;
  }
  CHECK(page.with_class("area", "memory").size() == 2 * kMemoryKinds);  // two groups of ranks
  CHECK_THAT(page.text("errors"), Contains("Nothing was measured"));
  CHECK_THAT(page.text("advice"), Contains("10 % faster links") && Contains("one more device"));
  CHECK_THAT(page.text("runner-ups"), Contains("this plan"));
}

TEST_CASE("report: of a plan alone, and without a cluster", "[tool]") {
  const ToolFolder folder("tool_report_alone");
  const std::string plan = folder.at("plan.json"), page = folder.at("p.html");
  REQUIRE(folder.plan({"--batch", "32", "--out", plan}).status == 0);
  REQUIRE(run_tool({"report", plan, "--output", page}).status == 0);
  const HtmlTags alone(folder.text("p.html"));
  CHECK(alone.fault() == "");
  CHECK(alone.with_class("bar").empty());
  CHECK_THAT(alone.text("timeline"), Contains("No timeline"));
  CHECK_THAT(alone.text("model"), Contains("made without"));
  CHECK_THAT(alone.text("runner-ups"), Contains("this plan"));
  REQUIRE(run_tool({"report", plan, "--profile", folder.at("profile.json"), "--out", page}).status == 0);
  const HtmlTags without_cluster(folder.text("p.html"));
  CHECK(without_cluster.fault() == "");
  CHECK_FALSE(without_cluster.with_class("cell", "model").empty());
  CHECK_THAT(without_cluster.text("timeline"), Contains("No timeline"));
}

TEST_CASE("report: files it refuses, and --html of simulate", "[tool]") {
  const ToolFolder folder("tool_report_refused");
  const std::string plan = folder.at("plan.json"), profile = folder.at("profile.json"),
                    cluster = folder.at("cluster.toml"), page = folder.at("p.html");
  REQUIRE(folder.plan({"--batch", "32", "--out", plan}).status == 0);
  check_trouble(run_tool({"report", plan}), {"--out", "required"});
  check_trouble(run_tool({"report", plan, "--out", folder.at("p.txt")}), {"does not end in .html", "explain"});
  check_trouble(run_tool({"report", plan, "--cluster", cluster, "--out", page}), {"of no use without PROFILE"});
  check_trouble(run_tool({"report", profile, plan, cluster, "--out", page}), {"a profile, and PLAN is to be a plan"});
  check_trouble(run_tool({"simulate", plan, profile, cluster, "--html", page}),
                {"autopar report PLAN PROFILE CLUSTER"});
  folder.put("p.html", "mine");
  const std::vector<std::string> report{"report", plan, profile, cluster, "--quick", "--out", page};
  check_trouble(run_tool(report), {"p.html: was not written by autopar"});
  CHECK(folder.text("p.html") == "mine");
  auto forced = report;
  forced.push_back("--force");
  CHECK(run_tool(forced).status == 0);
  CHECK(run_tool(report).status == 0);  // now it is autopar's
  CHECK_THAT(folder.text("p.html"), Contains("<!-- autopar report of model 000000000000002a -->"));
  Plan other = read_plan(plan);
  other.model += 1;
  write_plan(folder.at("other.json"), other);
  check_trouble(run_tool({"report", folder.at("other.json"), profile, "--out", page}), {"another model"});
}

TEST_CASE("tool: plans of all schedules are drawn, checked, explained", "[tool]") {
  const ToolFolder folder("tool_all");
  for (const ScheduleKind schedule : kNotPlain) {
    CAPTURE(to_string(schedule));
    REQUIRE(folder
                .plan({"--batch", "32", "--stages", "2", "--replicas", "2", "--microbatches", "4", "--schedule",
                       name_of(schedule), "--zero", "2", "--recompute", "layer.0", "--out", folder.at("plan.json")})
                .status == 0);
    const std::vector<std::string> files{folder.at("plan.json"), folder.at("profile.json"), folder.at("cluster.toml")};
    const auto with = [&](std::vector<std::string> arguments) {
      arguments.insert(arguments.begin() + 1, files.begin(), files.end());
      return run_tool(arguments);
    };
    const auto checked = with({"check"});
    CAPTURE(checked.out, checked.err);
    CHECK(checked.status == 0);
    const auto drawn = with({"simulate", "--trace", folder.at("t.json")});
    CAPTURE(drawn.err);
    REQUIRE(drawn.status == 0);
    const auto reported = with({"report", "--quick", "--out", folder.at("t.html")});
    CAPTURE(reported.err);
    REQUIRE(reported.status == 0);
    const Plan plan = read_plan(folder.at("plan.json"));
    const auto timeline = timeline_of(plan, folder.model, ProfiledCost(folder.cluster, {}));
    const std::string html = folder.text("t.html");
    const HtmlTags page(html);
    CHECK(page.fault().empty());
    std::map<std::string, int> kinds;
    for (const auto& bar : page.with_class("bar")) ++kinds[kind_of_bar(bar)];
    const auto stages_of_rank = static_cast<int>(timeline.stages[0].size());
    CHECK(kinds["forward"] == 4 * 4 * stages_of_rank);  // 4 micro-batches on 4 ranks
    CHECK(kinds["backward"] + kinds["backward-input"] == kinds["forward"]);
    CHECK(kinds["backward-input"] >= kinds["backward-weight"]);  // what is recomputed defers nothing
    CHECK((kinds["backward-weight"] > 0) == (schedule != ScheduleKind::kInterleaved));
    CHECK(kinds["update"] == 4 * stages_of_rank);
    const bool several = schedule == ScheduleKind::kInterleaved || schedule == ScheduleKind::kZbV;
    if (several) CHECK(stages_of_rank > 1);
    if (several) CHECK_THAT(drawn.out, Catch::Matchers::Contains("stages 0, "));
    if (several) CHECK(html.find("rank 0, stages 0,") != std::string::npos);
    const auto json = nlohmann::json::parse(with({"simulate", "--json"}).out);
    CHECK(json.at("ranks").at(0).at("stages").size() == timeline.stages[0].size());
    const auto explained = with({"explain", "--json"});
    CAPTURE(explained.err);
    REQUIRE(explained.status == 0);
    const auto parts = nlohmann::json::parse(explained.out);
    const double computing = parts.at("computing").get<double>(), links = parts.at("links").get<double>();
    if (plan.zero == 0) CHECK(computing == Approx(1 - plan.bubble));
    CHECK(computing <= 1 - plan.bubble + 1e-9);  // of what is busy, sums and gathers of ZeRO are the links'
    CHECK(computing + links >= 1 - plan.bubble - 1e-9);
    Bytes most{};
    for (int r = 0; r < 4; ++r) {
      Bytes held{};
      for (const int s : timeline.stages[static_cast<std::size_t>(r)])
        held += plan.stages[static_cast<std::size_t>(s)].peak_memory;
      most = std::max(most, held);
    }
    CHECK(parts.at("memory").get<double>() == Approx(most / plan.device_memory));
    for (const auto& change : parts.at("what_if"))  // of what this plan may use, not of what the runtime can run
      CHECK(change.at("speed_up").get<double>() >= 1 - 1e-9);
    Plan other = plan;
    other.zero = 1;
    other.offload = Offload::kOptimizer;
    other.stages[0].recomputed.pop_back();
    write_plan(folder.at("other.json"), other);
    const auto differs = run_tool({"diff", folder.at("plan.json"), folder.at("other.json")});
    CHECK(differs.status == 1);
    CHECK_THAT(differs.out, Catch::Matchers::Contains("ZeRO level: 2 -> 1") &&
                                Catch::Matchers::Contains("offloaded: none -> optimizer") &&
                                Catch::Matchers::Contains("stage 0: recomputed"));
    CHECK(run_tool({"check", folder.at("other.json"), files[1], files[2]}).status == 1);
  }
}
