#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <autopar/plan/memory/optimizations.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/plan/text.hpp>

#include "io/report_page/html.hpp"
#include "io/report_page/module_tree.hpp"
#include "io/report_page/parts.hpp"

namespace autopar::report_page {

namespace {

constexpr std::size_t kMostRows = 3000, kOpenRows = 36, kMostGroups = 64;

/// Which nodes have rows, and which of them are open at first: breadth first, as many as there is room for.
struct Shown {
  std::set<const ModuleNode*> rows, open;
};
Shown shown_of(const ModuleNode& tree) {
  Shown out;
  std::deque<const ModuleNode*> next{&tree};
  std::size_t visible = 0;
  while (!next.empty()) {
    const ModuleNode* node = next.front();
    next.pop_front();
    if (out.rows.size() + node->children.size() > kMostRows) continue;
    const bool opens = node == &tree || (visible + node->children.size() <= kOpenRows &&
                                         !std::ranges::all_of(node->children, &ModuleNode::is_operator));
    const bool is_seen = node == &tree || out.open.contains(node) || opens;
    if (opens && is_seen) {
      out.open.insert(node);
      visible += node->children.size();
    }
    for (const ModuleNode& child : node->children) {
      out.rows.insert(&child);
      if (!child.children.empty()) next.push_back(&child);
    }
  }
  return out;
}

class TreePicture {
 public:
  TreePicture(const RunReport& report, const ModuleNode& tree)
      : groups_(rank_groups(report.plan)), tree_(tree), shown_(shown_of(tree)) {
    has_time_ = tree.seconds > Seconds{};
  }

  [[nodiscard]] std::string draw() {
    const std::size_t columns = std::max<std::size_t>(1, std::min(groups_.size(), kMostGroups));
    const std::string width = std::to_string(std::clamp<std::size_t>(columns * 120, 120, 620));
    text_ = "<div class=\"wide\"><div class=\"tree\" style=\"--ranks:" + width + "px\">\n";
    add_head();
    for (const ModuleNode& child : tree_.children) add(child, 0);
    if (left_out_ > 0) text_ += remark(std::to_string(left_out_) + " more rows are left out");
    return text_ + "</div></div>\n";
  }

 private:
  void add_head() {
    text_ +=
        "<div class=\"row head\"><span class=\"name\">module</span><span class=\"n\">operators</span>"
        "<span class=\"n\">parameters</span><span>" +
        std::string(has_time_ ? "time of the step" : "") + "</span><span class=\"cells\">";
    for (std::size_t g = 0; g < groups_.size() && g < kMostGroups; ++g) {
      const auto& group = groups_[g];
      const std::string ranks = (group.ranks.size() == 1 ? "rank " : "ranks ") + short_ranges(group.ranks);
      const bool has_room = groups_.size() <= 10;
      text_ += "<span" + attribute("title", ranks) + ">" + (has_room ? escaped(ranks) : "") + "</span>";
    }
    text_ += "</span></div>\n";
  }

  void add(const ModuleNode& node, int depth) {
    if (!shown_.rows.contains(&node)) {
      ++left_out_;
      return;
    }
    const bool folds = !node.children.empty() &&
                       std::ranges::any_of(node.children, [&](const auto& c) { return shown_.rows.contains(&c); });
    if (folds)
      text_ += shown_.open.contains(&node) ? "<details open><summary class=\"row\"" : "<details><summary class=\"row\"";
    else
      text_ += node.is_operator ? "<div class=\"row op\"" : "<div class=\"row\"";
    text_ += " style=\"--d:" + std::to_string(depth) + "\">";
    add_cells(node);
    text_ += folds ? "</summary>\n" : "</div>\n";
    if (!folds) return;
    for (const ModuleNode& child : node.children) add(child, depth + 1);
    text_ += "</details>\n";
  }

  void add_cells(const ModuleNode& node) {
    const std::string alike = node.alike > 1 ? " (" + std::to_string(node.alike) + " alike)" : "";
    text_ += "<span class=\"name\"" + attribute("title", node.path.empty() ? node.name : node.path) + ">" +
             escaped((node.name.empty() ? "(operators of no module)" : node.name) + alike) +
             "</span><span class=\"n\">" + readable_count(node.operators) + "</span><span class=\"n\">" +
             (node.parameters > Bytes(0) ? readable(node.parameters) : "") + "</span>";
    const double part = has_time_ ? node.seconds / tree_.seconds : 0;
    text_ += "<span" + attribute("title", readable(node.seconds)) + ">";
    if (has_time_) {
      text_ += "<i class=\"meter\" style=\"width:64px\"><i style=\"width:" + share(part) +
               "\"></i></i><span class=\"pc\">" + detail::formatted("%.1f", 100 * part) + " %</span>";
    }
    text_ += "</span><span class=\"cells\">";
    for (std::size_t g = 0; g < groups_.size() && g < kMostGroups; ++g) add_cell(node, groups_[g]);
    text_ += "</span>";
  }
  /// How much of a module's operators a group of ranks runs.
  void add_cell(const ModuleNode& node, const RankGroup& group) {
    std::string parts, words;
    for (const int stage : group.stages) {
      const auto found = node.operators_of_stage.find(stage);
      if (found == node.operators_of_stage.end()) continue;
      const double part = static_cast<double>(found->second) / static_cast<double>(node.operators);
      parts += "<i style=\"width:" + share(part) + ";background:" + std::string(colour_of_stage(stage)) + "\"></i>";
      words +=
          (words.empty() ? "" : "; ") + ("stage " + std::to_string(stage)) + ": " + percent(part) + " of its operators";
    }
    text_ += "<span class=\"cell\"" + (words.empty() ? "" : attribute("title", words)) + ">" + parts + "</span>";
  }

  std::vector<RankGroup> groups_;
  const ModuleNode& tree_;
  Shown shown_;
  bool has_time_ = false;
  std::size_t left_out_ = 0;
  std::string text_;
};

std::string stage_table(const Plan& plan) {
  std::vector<Column> columns{
      {"stage"},          {"operators", true}, {"parameters", true}, {"replicas", true},      {"ranks"},
      {"forward", true},  {"backward", true},  {"messages", true},   {"gradient sums", true}, {"peak memory", true},
      {"of memory", true}};
  const bool recomputes = memory_optimizations_of(plan).recomputes();
  if (recomputes) columns.push_back({"recomputed", true});
  std::vector<std::vector<std::string>> rows;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    auto cells = detail::cells(plan.stages[s], s, plan.device_memory);
    for (auto& cell : cells) cell = escaped(cell);
    cells.front() = legend_entry(colour_of_stage(static_cast<int>(s)), std::to_string(s));
    if (recomputes) cells.push_back(detail::describe_recomputed(plan.stages[s]));
    rows.push_back(std::move(cells));
  }
  return table(columns, rows) +
         "<p class=\"sub\">Forward, backward and messages: one micro-batch of one replica; "
         "gradient sums: once a step.</p>\n";
}

}  // namespace

std::vector<RankGroup> rank_groups(const Plan& plan) {
  std::map<int, std::vector<int>> stages_of_rank;  // a plan may state a world of any size
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const Rank rank : plan.stages[s].mesh.ranks()) stages_of_rank[rank.value()].push_back(static_cast<int>(s));
  }
  std::vector<RankGroup> out;
  std::map<std::vector<int>, std::size_t> known;
  for (const auto& [rank, stages] : stages_of_rank) {
    const auto [at, is_new] = known.try_emplace(stages, out.size());
    if (is_new) out.push_back({{}, stages});
    out[at->second].ranks.push_back(rank);
  }
  return out;
}

std::string stages_text(const std::vector<int>& stages) {
  return stages.empty() ? "idle" : (stages.size() == 1 ? "stage " : "stages ") + short_ranges(stages);
}

std::string model_of(const RunReport& report) {
  std::string body;
  if (report.atoms.empty()) {
    body = remark("The model's parts are in its profile, which this page was made without.");
  } else {
    const ModuleNode tree = module_tree(report.atoms);
    body =
        "<p>Modules from the outside in, over the ranks that run them: a column has a stage's colour as far as its "
        "ranks run the module.</p>\n<div class=\"legend\">";
    for (std::size_t s = 0; s < report.plan.stages.size() && s < kStageColours.size(); ++s)
      body += legend_entry(colour_of_stage(static_cast<int>(s)), "stage " + std::to_string(s));
    if (report.plan.stages.size() > kStageColours.size()) body += "<span class=\"sub\">and so on, in turn</span>";
    body +=
        "<span id=\"fold\" hidden><a href=\"#model\" data-open=\"1\">unfold all</a> \xC2\xB7 "
        "<a href=\"#model\" data-open=\"0\">fold all</a></span></div>\n" +
        TreePicture(report, tree).draw();
    const auto groups = rank_groups(report.plan).size();
    if (groups > kMostGroups)
      body += remark("The first " + std::to_string(kMostGroups) + " groups of ranks are shown.");
  }
  return body + "<h3>Stages</h3>\n" + stage_table(report.plan);
}

}  // namespace autopar::report_page
