#include "io/report_page/module_tree.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>

namespace autopar::report_page {

namespace {

constexpr std::size_t kDeepest = 40;

/// While it grows: children by name.
struct Growing {
  ModuleNode node;
  std::map<std::string, std::size_t, std::less<>> index;
  std::vector<std::unique_ptr<Growing>> children;

  Growing& child(std::string_view name) {
    const auto found = index.find(name);
    if (found != index.end()) return *children[found->second];
    index.emplace(std::string(name), children.size());
    children.push_back(std::make_unique<Growing>());
    auto& made = children.back()->node;
    made.name = std::string(name);
    made.path = node.path.empty() ? made.name : node.path + "." + made.name;
    return *children.back();
  }
};

void add(ModuleNode& node, const ReportedAtom& atom) {
  node.operators += atom.operators;
  node.parameters += atom.parameters;
  node.seconds += atom.seconds;
  node.operators_of_stage[atom.stage] += atom.operators;
}

void grow(Growing& root, const ReportedAtom& atom) {
  Growing* at = &root;
  add(at->node, atom);
  std::string_view rest = atom.path;
  for (std::size_t depth = 0; !rest.empty() && depth < kDeepest; ++depth) {
    const auto dot = depth + 1 == kDeepest ? std::string_view::npos : rest.find('.');
    const auto name = rest.substr(0, dot);
    rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
    if (name.empty()) continue;
    at = &at->child(name);
    add(at->node, atom);
  }
  Growing& leaf = at->child("\n" + atom.name);  // no module has such a name
  leaf.node.name = atom.name;
  leaf.node.path = at->node.path;
  leaf.node.is_operator = true;
  add(leaf.node, atom);
}

/// What two siblings must have in common to be shown as one: equal texts, or it takes a collision of hashes.
std::string form_of(const ModuleNode& node) {
  std::string form = std::to_string(node.operators) + ":" + std::to_string(node.parameters.value());
  for (const auto& [stage, operators] : node.operators_of_stage)
    form += "," + std::to_string(stage) + "=" + std::to_string(operators);
  for (const ModuleNode& child : node.children)
    form += ";" + child.name + "#" + std::to_string(std::hash<std::string>{}(form_of(child)));
  return form;
}

void merge(ModuleNode& into, const ModuleNode& other) {
  into.operators += other.operators;
  into.parameters += other.parameters;
  into.seconds += other.seconds;
  for (const auto& [stage, operators] : other.operators_of_stage) into.operators_of_stage[stage] += operators;
  for (std::size_t c = 0; c < into.children.size() && c < other.children.size(); ++c)
    merge(into.children[c], other.children[c]);
}

/// "3" of "3.fc": the number that a name begins with, if that is all of a module's name; empty: none.
std::string number_of(const std::string& name) {
  const std::string first = name.substr(0, name.find('.'));
  const bool is_number = std::ranges::all_of(first, [](char c) { return c >= '0' && c <= '9'; });
  return is_number ? first : "";
}

/// Neighbours "3.fc" and "4.fc" of equal form become "3 ... 4.fc".
std::vector<ModuleNode> merged(std::vector<ModuleNode> children) {
  std::vector<ModuleNode> out;
  std::string first, last_form;  // the number of the first of those that the last of `out` stands for
  for (ModuleNode& child : children) {
    const std::string number = child.is_operator ? "" : number_of(child.name);
    const std::string rest = child.name.substr(number.size());
    const std::string form = number.empty() ? "" : rest + "\n" + form_of(child);
    if (!number.empty() && !out.empty() && form == last_form) {
      merge(out.back(), child);
      ++out.back().alike;
      out.back().name = first + " \xE2\x80\xA6 " + number + rest;  // an ellipsis
    } else {
      first = number;
      out.push_back(std::move(child));
    }
    last_form = form;
  }
  return out;
}

ModuleNode finished(Growing&& growing) {
  ModuleNode node = std::move(growing.node);
  for (auto& child : growing.children) node.children.push_back(finished(std::move(*child)));
  if (node.children.size() == 1 && !node.children.front().is_operator) {
    ModuleNode only = std::move(node.children.front());
    if (!node.name.empty()) only.name = node.name + "." + only.name;
    return only;
  }
  node.children = merged(std::move(node.children));
  return node;
}

}  // namespace

ModuleNode module_tree(const std::vector<ReportedAtom>& atoms) {
  Growing root;
  for (const ReportedAtom& atom : atoms) grow(root, atom);
  return finished(std::move(root));
}

std::vector<const ModuleNode*> slowest_modules(const ModuleNode& tree, std::size_t count) {
  std::vector<const ModuleNode*> out;
  for (const ModuleNode& child : tree.children) out.push_back(&child);
  while (out.size() < count) {
    auto slowest = out.end();
    for (auto at = out.begin(); at != out.end(); ++at) {
      const auto& children = (*at)->children;
      const bool opens = !children.empty() && !std::ranges::all_of(children, &ModuleNode::is_operator) &&
                         out.size() + children.size() <= 2 * count;
      if (opens && (slowest == out.end() || (*at)->seconds > (*slowest)->seconds)) slowest = at;
    }
    if (slowest == out.end()) break;
    const ModuleNode* opened = *slowest;
    out.erase(slowest);
    for (const ModuleNode& child : opened->children) out.push_back(&child);
  }
  std::ranges::stable_sort(out, std::ranges::greater{}, &ModuleNode::seconds);
  return out;
}

}  // namespace autopar::report_page
