#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <autopar/plan/text.hpp>

#include "io/report_page/html.hpp"
#include "io/report_page/module_tree.hpp"
#include "io/report_page/parts.hpp"

namespace autopar::report_page {

namespace {

constexpr std::size_t kMostParts = 12, kMostGroupsOfTime = 16;

/// What a rank does for how long.
enum Part : std::size_t { kForwards, kBackwards, kUpdates, kWaits, kParts };
constexpr std::array<std::string_view, kParts> kPartNames{{"forward", "backward", "optimizer's update", "waiting"}};
constexpr std::array<std::string_view, kParts> kPartColours{{"#3b7dd8", "#23875d", "#767d88", "#e3e7ec"}};

std::array<Seconds, kParts> parts_of(const StepTimeline& timeline, Rank rank) {
  std::array<Seconds, kParts> out{};
  for (const Bar& bar : timeline.bars) {
    if (bar.rank != rank || !computes(bar.kind)) continue;
    const Part part = bar.kind == BarKind::kForward ? kForwards : bar.kind == BarKind::kUpdate ? kUpdates : kBackwards;
    out[part] += bar.end - bar.begin;
  }
  out[kWaits] = std::max(Seconds{}, timeline.step - (out[kForwards] + out[kBackwards] + out[kUpdates]));
  return out;
}

std::string meter(double part) {
  return "<i class=\"meter\"><i style=\"width:" + share(std::clamp(part, 0.0, 1.0)) + "\"></i></i> ";
}

std::string by_ranks(const RunReport& report) {
  std::string out = "<div class=\"legend\">";
  for (std::size_t p = 0; p < kParts; ++p) out += legend_entry(kPartColours[p], kPartNames[p]);
  out += "</div>\n<div class=\"rows\">\n";
  std::size_t shown = 0;
  for (const RankGroup& group : rank_groups(report.plan)) {
    if (shown++ == kMostGroupsOfTime) break;
    const auto parts = parts_of(report.timeline, Rank(group.ranks.front()));
    const std::string words =
        (group.ranks.size() == 1 ? "rank " : "ranks ") + short_ranges(group.ranks) + ", " + stages_text(group.stages);
    out += "<span>" + escaped(words) + "</span><span class=\"stack\">";
    for (std::size_t p = 0; p < kParts; ++p) {
      out += "<i style=\"width:" + share(parts[p] / report.timeline.step) +
             ";background:" + std::string(kPartColours[p]) + "\"" +
             attribute("title", std::string(kPartNames[p]) + ": " + readable(parts[p])) + "></i>";
    }
    out += "</span><span class=\"n\">waits " + percent(parts[kWaits] / report.timeline.step) + "</span>\n";
  }
  return out + "</div>\n";
}

struct TimeOf {
  std::string name, title;
  std::int64_t times = 0;
  Seconds seconds{};
};

/// "blocks.*.fc1" of "blocks.3.fc1": what repeats is told together.
std::string without_numbers(const std::string& path) {
  std::string out;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    const bool is_number = !name.empty() && std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
    out += (begin == 0 ? "" : ".") + (is_number ? "*" : name);
    begin = end + 1;
  }
  return out;
}

std::string time_table(const char* head, const char* count, const std::vector<TimeOf>& parts, Seconds all) {
  std::vector<std::vector<std::string>> rows;
  TimeOf rest{"others", "", 0, {}};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i < kMostParts || parts.size() == kMostParts + 1) continue;
    rest.times += parts[i].times;
    rest.seconds += parts[i].seconds;
  }
  const auto add = [&](const TimeOf& one) {
    const double part = one.seconds / all;
    rows.push_back({"<span" + attribute("title", one.title) + ">" + escaped(one.name) + "</span>",
                    readable_count(one.times), readable(one.seconds),
                    meter(part) + "<span class=\"pc\">" + detail::formatted("%.1f", 100 * part) + " %</span>"});
  };
  for (std::size_t i = 0; i < parts.size() && (i < kMostParts || parts.size() == kMostParts + 1); ++i) add(parts[i]);
  if (rest.times > 0) add(rest);
  return table({{head}, {count, true}, {"time", true}, {"of all", true}}, rows);
}

}  // namespace

std::string time_of(const RunReport& report) {
  Seconds all{};
  for (const ReportedAtom& atom : report.atoms) all += atom.seconds;
  if (!(report.timeline.step > Seconds{}) || !(all > Seconds{}))
    return remark("Not known here: it takes the model's profile and the cluster, or a run.");
  std::map<std::string, TimeOf> operators;
  for (const ReportedAtom& atom : report.atoms) {
    TimeOf& of = operators[atom.name];
    of.name = of.title = atom.name;
    ++of.times;
    of.seconds += atom.seconds;
  }
  std::vector<TimeOf> by_operator, by_module;
  for (auto& [name, of] : operators) by_operator.push_back(std::move(of));
  std::ranges::stable_sort(by_operator, std::ranges::greater{}, &TimeOf::seconds);
  std::vector<ReportedAtom> atoms = report.atoms;
  for (ReportedAtom& atom : atoms) atom.path = without_numbers(atom.path);
  const ModuleNode tree = module_tree(atoms);
  for (const ModuleNode* module : slowest_modules(tree, kMostParts)) {
    std::string name = module->path;
    if (module->is_operator) name = module->name + (name.empty() ? "" : " in " + name);
    by_module.push_back({name, name, module->operators, module->seconds});
  }
  return "<p>Predicted. Of one rank of each group, over the step:</p>\n" + by_ranks(report) +
         "<div class=\"two\"><div><h3>By module</h3>\n" + time_table("module", "operators", by_module, all) +
         "</div><div><h3>By operator</h3>\n" + time_table("first operator", "times", by_operator, all) +
         "</div></div>\n<p class=\"sub\">Forwards, backwards and recomputation of a step, on one rank of each stage, "
         "all "
         "stages together; exchanges between ranks are not in these tables.</p>\n";
}

}  // namespace autopar::report_page
