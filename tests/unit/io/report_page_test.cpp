#include <autopar/io/report_page.hpp>

#include <catch_shim.hpp>
#include <html_tags.hpp>
#include <temp_folder.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include <autopar/core/error.hpp>

using namespace autopar;
using Catch::Matchers::Contains;
using test::foreign_in;
using test::HtmlTags;

namespace {

/// What breaks out of text, of attributes, of comments, of scripts and of terminals.
const std::string kHostile = "</title></script><script>alert(1)</script>\"'><b>&amp;--><img src=x>\n\x1b[31m";

StagePlan stage_on(std::vector<Rank> ranks, std::vector<NodeId> atoms) {
  StagePlan stage;
  stage.atoms = std::move(atoms);
  stage.mesh = Mesh(std::move(ranks));
  stage.forward = Seconds(0.1);
  stage.backward = Seconds(0.2);
  stage.peak_memory = Bytes(900);
  return stage;
}

/// Two stages on two ranks, by hand.
RunReport small_report() {
  RunReport report;
  Plan& plan = report.plan;
  plan.model = 7;
  plan.world = 2;
  plan.batch = 8;
  plan.device = "device";
  plan.device_memory = Bytes(1000);
  plan.step = Seconds(1);
  plan.stages = {stage_on({Rank(0)}, {NodeId(0), NodeId(1)}), stage_on({Rank(1)}, {NodeId(2)})};
  plan.runners_up = {{"1 stage x 2 replicas", "1.50 x slower: gradient sums", Seconds(1.5)}};
  report.atoms = {{"layers.0.fc", "aten::linear", 0, 2, Bytes(100), Seconds(0.3), false},
                  {"layers.1.fc", "aten::linear", 0, 2, Bytes(100), Seconds(0.3), false},
                  {"head", "aten::linear", 1, 1, Bytes(50), Seconds(0.1), false}};
  auto& timeline = report.timeline;
  timeline.step = Seconds(1);
  timeline.busy = {Seconds(0.6), Seconds(0.5)};
  timeline.stages = {{0}, {1}};
  timeline.bars = {{BarKind::kForward, Rank(0), 0, "forward of stage 0", Seconds(0), Seconds(0.2), StageId(0)},
                   {BarKind::kSend, Rank(0), 0, "send", Seconds(0.2), Seconds(0.25), {}},
                   {BarKind::kBackward, Rank(0), 0, "backward of stage 0", Seconds(0.6), Seconds(1), StageId(0)},
                   {BarKind::kForward, Rank(1), 0, "forward of stage 1", Seconds(0.25), Seconds(0.5), StageId(1)},
                   {BarKind::kBackward, Rank(1), 0, "backward of stage 1", Seconds(0.5), Seconds(0.75), StageId(1)}};
  MemorySample begin{Seconds(0), {}}, later{Seconds(0.2), {}};
  begin.held[0] = Bytes(300);
  later.held[0] = Bytes(300), later.held[3] = Bytes(600);
  report.memory = {{Rank(0), {begin, later}, Bytes(900)}};
  report.advice = {{"10 % faster links", Seconds(0.9), "", "the same plan", false},
                   {"one more device", std::nullopt, "", "no samples for it", false}};
  return report;
}

/// With the bars of rank 0, twice as slow.
void measure(RunReport& report) {
  MeasuredRun run;
  run.steps = 12;
  run.step = Seconds(2);
  for (Bar bar : report.timeline.bars) {
    if (bar.rank != Rank(0)) continue;
    bar.begin *= 2, bar.end *= 2;
    run.bars.push_back(bar);
  }
  report.measured = run;
  report.comparisons = {{"step, call to call", "1.00 s", "2.00 s", 1.0}};
}

HtmlTags page_of(const RunReport& report) {
  const std::string html = to_html(report, file_mark("report", report.plan.model));
  HtmlTags page(html);
  CHECK(page.fault() == "");
  CHECK(foreign_in(html) == "");
  for (const char* id : {"summary", "model", "timeline", "memory", "time", "errors", "runner-ups", "advice"})
    CHECK(page.ids().contains(id));
  return page;
}

}  // namespace

TEST_CASE("to_html: sections, a bar for each action, a cell for each group", "[report]") {
  const RunReport report = small_report();
  const HtmlTags page = page_of(report);
  CHECK(page.with_class("bar", "timeline").size() == 5);
  CHECK(page.with_class("measured", "timeline").empty());
  CHECK(page.with_class("area", "memory").size() == kMemoryKinds);
  const auto rows = page.with_class("row", "model");
  CHECK(rows.size() == 1 + 2 + 2 + 1);                      // head; layers (merged), head; each with its operator
  CHECK(page.with_class("cell", "model").size() == 2 * 5);  // of two ranks
  CHECK_THAT(page.text("model"), Contains("0 \xE2\x80\xA6 1.fc (2 alike)"));
  CHECK_THAT(page.text("time"), Contains("layers.*.fc") && Contains("aten::linear") && Contains("85.7 %"));
  CHECK_THAT(page.text("summary"), Contains("1.00 s") && Contains("8"));
  CHECK_THAT(page.text("runner-ups"), Contains("1 stage x 2 replicas") && Contains("+50 %"));
  CHECK_THAT(page.text("advice"), Contains("11.1 % faster") && Contains("no plan"));
  CHECK_THAT(page.text("errors"), Contains("plan without a run"));
}

TEST_CASE("to_html: measured bars lie below the predicted ones", "[report]") {
  RunReport report = small_report();
  measure(report);
  const HtmlTags page = page_of(report);
  CHECK(page.with_class("bar", "timeline").size() == 5 + 3);
  CHECK(page.with_class("predicted", "timeline").size() == 2);
  CHECK(page.with_class("lane", "timeline").size() == 3);
  std::map<std::string, double> right;  // by y
  for (const auto& bar : page.with_class("bar", "timeline")) {
    const double end = std::stod(bar.attribute("x")) + std::stod(bar.attribute("width"));
    right[bar.attribute("y")] = std::max(right[bar.attribute("y")], end);
  }
  double most = 0;
  for (const auto& [y, end] : right) most = std::max(most, end);
  CHECK(most == Approx(100));  // the longer of both fills the width
  CHECK_THAT(page.text("errors"), Contains("12 training steps") && Contains("+100 %"));
  CHECK_THAT(page.text("summary"), Contains("measured step, median of 12"));
}

TEST_CASE("to_html: hostile names are text", "[report]") {
  RunReport report = small_report();
  measure(report);
  report.plan.device = report.plan.runners_up[0].summary = report.plan.runners_up[0].reason = kHostile;
  report.plan.notes = report.plan.constraints = report.notes = {kHostile};
  for (auto& atom : report.atoms) atom.path = atom.path + "." + kHostile, atom.name = kHostile;
  for (auto& bar : report.timeline.bars) bar.what = kHostile;
  for (auto& bar : report.measured->bars) bar.what = kHostile;
  for (auto& one : report.advice) one.change = one.shape = one.why = kHostile;
  report.comparisons[0].what = kHostile;
  const std::string html = to_html(report, kHostile);
  const HtmlTags page(html);
  CHECK(page.fault() == "");
  for (const char* markup : {"alert(1)</", "<img", "<b>&", "\x1b"}) CHECK(html.find(markup) == std::string::npos);
  std::size_t scripts = 0;
  for (const auto& tag : page.tags()) scripts += tag.name == "script" ? 1 : 0;
  CHECK(scripts == 1);
}

TEST_CASE("to_html: nothing known, odd numbers, very many of everything", "[report]") {
  (void)page_of(RunReport{});
  RunReport odd = small_report();
  odd.plan.stages[0].peak_memory = Bytes(0);
  odd.memory[0].samples = {};
  odd.timeline.bars[0].end = Seconds(std::numeric_limits<double>::infinity());
  odd.advice[0].step = Seconds(0);
  odd.plan.device_memory = Bytes(0);
  (void)page_of(odd);

  RunReport many = small_report();
  const auto atoms = many.atoms;
  many.atoms.clear();
  std::string deep;
  for (int i = 0; i < 20000; ++i) {
    many.atoms.push_back(atoms[0]);
    many.atoms.back().path = "m" + std::to_string(i % 7000) + ".a";
    if (i < 3000) deep += "d.";
  }
  many.atoms.push_back({deep, "aten::add", 0, 1, {}, Seconds(0.1), false});
  const Bar bar = many.timeline.bars[0];
  for (int i = 0; i < 45000; ++i) many.timeline.bars.push_back(bar);  // of rank 0
  const std::string html = to_html(many, "m");
  CHECK(html.size() < (8u << 20));
  const HtmlTags page(html);
  CHECK(page.fault() == "");
  CHECK(page.with_class("bar").size() == 2);  // rank 1's
  CHECK_THAT(page.text("timeline"), Contains("1 of 2 ranks are shown"));
  CHECK_THAT(page.text("model"), Contains("more rows are left out"));
}

TEST_CASE("write_report_page: marked, and replaces only its own", "[report]") {
  const TempFolder folder;
  const RunReport report = small_report();
  CHECK(is_page("a/report.html"));
  CHECK(is_page("REPORT.HTM"));
  CHECK_FALSE(is_page("report.txt"));
  CHECK_FALSE(is_page("html"));
  write_report_page(folder / "r.html", report);
  write_report_page(folder / "r.html", report);
  CHECK_THAT(read_text_file(folder / "r.html"), Contains("<!-- autopar report of model 0000000000000007 -->"));
  write_text_file(folder / "r.html", "mine");
  CHECK_THROWS_AS(write_report_page(folder / "r.html", report), ConfigError);
  write_report_page(folder / "r.html", report, Overwrite::kAny);
}
