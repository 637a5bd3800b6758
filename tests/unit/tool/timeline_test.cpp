#include "timeline.hpp"

#include <catch_shim.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <autopar/io/plan_file.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/report/print.hpp>

#include "html.hpp"
#include "tool_run.hpp"

using namespace autopar;
using test::run_tool;
using test::ToolFolder;
using testing::Dice;

namespace {

constexpr std::array kNotPlain{ScheduleKind::kInterleaved, ScheduleKind::kZbH1, ScheduleKind::kZbV,
                               ScheduleKind::kSynthesised};

/// One drawn bar.
struct Drawn {
  std::string kind, words;
  double x, y, width, height;
};

/// What stands in quotes behind `name=` after `at`.
std::string attribute(const std::string& html, std::size_t at, const std::string& name) {
  const auto begin = html.find(" " + name + "=\"", at) + name.size() + 3;
  return html.substr(begin, html.find('"', begin) - begin);
}

std::vector<Drawn> drawn_bars(const std::string& html) {
  std::vector<Drawn> out;
  for (std::size_t at = 0; (at = html.find("<rect ", at)) != std::string::npos; ++at) {
    if (attribute(html, at, "class").ends_with("legend")) continue;
    const auto words = html.find("<title>", at) + 7;
    out.push_back({attribute(html, at, "class"), html.substr(words, html.find("</title>", words) - words),
                   std::stod(attribute(html, at, "x")), std::stod(attribute(html, at, "y")),
                   std::stod(attribute(html, at, "width")), std::stod(attribute(html, at, "height"))});
  }
  return out;
}

}  // namespace

TEST_CASE("timeline_of: equals the planner's prediction", "[tool]") {
  int compared = 0;
  for (int seed = 0; seed < 120; ++seed) {
    Dice dice(static_cast<std::uint64_t>(seed) + 4000);
    const ModelProfile model = testing::random_model(dice, 7);
    const Cluster cluster = testing::small_cluster(dice(1, 5), Bytes(64 << 20));
    PlanRequest request;
    request.batch = dice(1, 30);
    const Plan plan = plan_with_defaults(model, cluster, request);
    const auto timeline = tool::timeline_of(plan, model, ProfiledCost(cluster, {}));
    CAPTURE(seed);
    REQUIRE(timeline.step == plan.step);
    double waiting = 0;
    int used = 0;
    for (const auto& stage : plan.stages) {
      for (const Rank rank : stage.mesh.ranks()) waiting += timeline.waiting(rank), ++used;
    }
    CHECK(waiting / used == Approx(plan.bubble).margin(1e-12));
    for (const auto& bar : timeline.bars) {
      REQUIRE(bar.begin >= Seconds{});
      REQUIRE(bar.begin <= bar.end);
      REQUIRE(bar.end <= timeline.step);
    }
    ++compared;
  }
  CHECK(compared == 120);
}

TEST_CASE("timeline_of: exact for chunked, split, memory-saving plans", "[tool]") {
  std::map<std::string, int> met;
  for (int seed = 0; seed < 90; ++seed) {
    Dice dice(static_cast<std::uint64_t>(seed) + 9000);
    ModelProfile model = testing::random_model(dice, 10);
    const auto mixes = [&](NodeId n) { return model.graph[n].whole_batch || model.graph[n].totals > Bytes(0); };
    if (std::ranges::any_of(model.graph.nodes(), mixes)) continue;
    model.loss_mode = true;
    model.outputs[0].bytes = {0, 8};
    const Cluster cluster = testing::small_cluster(dice(2, 5), Bytes(64 << 20));
    PlanRequest request;
    request.batch = dice(1, 30);
    request.runtime = runtime_capabilities();
    request.options.zero = dice(0, 3);
    request.options.recompute = dice.chance(50) ? Recompute::kAlways : Recompute::kNever;
    request.options.offload = dice.chance(30) ? Offload::kOptimizer : Offload::kNone;
    request.options.schedule = request.runtime.schedules[static_cast<std::size_t>(dice(2, 5))];
    std::optional<Plan> plan;
    try {
      plan = plan_with_defaults(model, cluster, request);
    } catch (const InfeasiblePlan&) {  // fewer operators than the schedule has stages
      continue;
    }
    const auto timeline = tool::timeline_of(*plan, model, ProfiledCost(cluster, {}));
    CAPTURE(seed, to_text(*plan));
    REQUIRE(timeline.step == plan->step);
    std::map<tool::BarKind, int> kinds;
    std::vector<Seconds> busy(timeline.busy.size()), free_at(busy);
    for (const auto& bar : timeline.bars) {
      ++kinds[bar.kind];
      if (!tool::computes(bar.kind)) continue;
      REQUIRE(bar.begin >= free_at[bar.rank.index()] - Seconds(1e-15));  // a rank does one thing at a time
      free_at[bar.rank.index()] = bar.end;
      busy[bar.rank.index()] += bar.end - bar.begin;
    }
    double waiting = 0;
    int used = 0;
    for (std::size_t r = 0; r < busy.size(); ++r) {
      CHECK(busy[r].value() == Approx(timeline.busy[r].value()));
      if (timeline.stages[r].empty()) continue;
      ++used;
      waiting += timeline.waiting(Rank::of(r));
      if (timeline.stages[r].size() > 1) ++met["several stages"];
    }
    CHECK(waiting / used == Approx(plan->bubble).margin(1e-12));
    CHECK(kinds[tool::BarKind::kBackwardInput] == kinds[tool::BarKind::kBackwardWeight]);
    if (kinds[tool::BarKind::kBackwardInput] > 0) ++met["parted"];
    ++met[name_of(plan->schedule)];
  }
  CHECK(met["several stages"] > 50);
  CHECK(met["parted"] > 20);
  for (const ScheduleKind schedule : kNotPlain) CHECK(met[name_of(schedule)] > 5);
}

TEST_CASE("to_html: self-contained, bars match the step", "[tool]") {
  const ToolFolder folder("tool_html");
  REQUIRE(folder
              .plan({"--batch", "32", "--stages", "2", "--microbatches", "4", "--schedule", "1f1b", "--out",
                     folder.at("plan.json")})
              .status == 0);
  const auto result =
      run_tool({"simulate", folder.at("plan.json"), folder.at("profile.json"), folder.at("cluster.toml"), "--html",
                folder.at("t.html"), "--trace", folder.at("t.json")});
  CAPTURE(result.err);
  REQUIRE(result.status == 0);
  CHECK_THAT(result.out, Catch::Matchers::Contains("waits"));
  const std::string html = folder.text("t.html");
  for (const std::string foreign : {"http", "src=", "href", "url(", "@import", "<script"})
    CHECK(html.find(foreign) == std::string::npos);

  const Plan plan = read_plan(folder.at("plan.json"));
  const auto timeline = tool::timeline_of(plan, folder.model, ProfiledCost(folder.cluster, {}));
  const auto bars = drawn_bars(html);
  const auto shown =
      std::count_if(timeline.bars.begin(), timeline.bars.end(), [](const auto& b) { return b.end > b.begin; });
  REQUIRE(static_cast<std::ptrdiff_t>(bars.size()) == shown);
  std::map<std::string, int> kinds;
  std::map<double, std::vector<std::pair<double, double>>> lanes;  // of computing, by their y
  double left = 1e9, right = 0;
  for (const auto& bar : bars) {
    ++kinds[bar.kind];
    if (bar.height > 10) lanes[bar.y].emplace_back(bar.x, bar.x + bar.width);
    left = std::min(left, bar.x);
    right = std::max(right, bar.x + bar.width);
    CHECK(bar.words.find(" to ") != std::string::npos);
  }
  CHECK(kinds["forward"] == 16);  // 4 micro-batches on 4 ranks
  CHECK(kinds["backward"] == 16);
  CHECK(kinds["send"] == kinds["receive"]);
  CHECK(kinds["reduce"] > 0);
  CHECK(kinds["update"] == 4);
  CHECK(lanes.size() == 4);
  CHECK(left == Approx(150).margin(0.02));          // the axis starts here
  CHECK(right == Approx(150 + 1150).margin(0.03));  // and the step ends here
  for (auto& [y, list] : lanes) {
    std::sort(list.begin(), list.end());
    double drawn = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0) CHECK(list[i].first >= list[i - 1].second - 0.02);  // a rank does one thing at a time
      drawn += list[i].second - list[i].first;
    }
    const int row = static_cast<int>((y - 64) / 34);
    CHECK(drawn / 1150 == Approx(1 - timeline.waiting(Rank(row))).margin(1e-3));
  }
  for (int r = 0; r < 4; ++r) {
    CHECK(html.find("rank " + std::to_string(r) + ", stage ") != std::string::npos);
    CHECK(html.find(">" + percent(timeline.waiting(Rank(r))) + "</text>") != std::string::npos);
  }

  const auto trace = nlohmann::json::parse(folder.text("t.json"));
  CHECK(trace.at("traceEvents").size() >= bars.size());
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
    const auto drawn = with({"simulate", "--html", folder.at("t.html"), "--trace", folder.at("t.json")});
    CAPTURE(drawn.err);
    REQUIRE(drawn.status == 0);
    const Plan plan = read_plan(folder.at("plan.json"));
    const auto timeline = tool::timeline_of(plan, folder.model, ProfiledCost(folder.cluster, {}));
    const std::string html = folder.text("t.html");
    std::map<std::string, int> kinds;
    for (const auto& bar : drawn_bars(html)) ++kinds[bar.kind];
    const auto stages_of_rank = static_cast<int>(timeline.stages[0].size());
    CHECK(kinds["forward"] == 4 * 4 * stages_of_rank);  // 4 micro-batches on 4 ranks
    CHECK(kinds["backward"] + kinds["backward-input"] == kinds["forward"]);
    CHECK(kinds["backward-input"] >= kinds["backward-weight"]);  // what is recomputed defers nothing
    CHECK((kinds["backward-weight"] > 0) == (schedule != ScheduleKind::kInterleaved));
    CHECK(kinds["update"] == 4 * stages_of_rank);
    const bool several = schedule == ScheduleKind::kInterleaved || schedule == ScheduleKind::kZbV;
    if (several) CHECK(stages_of_rank > 1);
    if (several) CHECK_THAT(drawn.out, Catch::Matchers::Contains("stages 0, "));
    if (several) CHECK(html.find("rank 0, stages 0, ") != std::string::npos);
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

TEST_CASE("to_html: names are escaped", "[tool]") {
  tool::StepTimeline timeline;
  timeline.step = Seconds(1);
  timeline.busy = {Seconds(0.5)};
  timeline.stages = {{0}};
  timeline.bars = {{tool::BarKind::kForward, Rank(0), 0, "<script>\"&", Seconds(0), Seconds(0.5)}};
  const std::string html = tool::to_html(timeline, "</title><b>", "autopar timeline");
  CHECK(html.find("<script>") == std::string::npos);
  CHECK(html.find("<b>") == std::string::npos);
  CHECK(html.find("&lt;script&gt;&quot;&amp;") != std::string::npos);
  timeline.step = Seconds(0);
  CHECK_THROWS_AS(tool::to_html(timeline, "", ""), InvalidArgument);
}
