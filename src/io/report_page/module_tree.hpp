#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <autopar/plan/report/run_report.hpp>

namespace autopar::report_page {

/// A module, or the operators of one name that a module runs itself: what it has, and how much of that each stage has.
struct ModuleNode {
  std::string name;       ///< its own; "3 ... 8" of merged siblings
  std::string path;       ///< from the model down
  std::size_t alike = 1;  ///< siblings of equal form in the same stage that it stands for
  bool is_operator = false;
  std::int64_t operators = 0;
  Bytes parameters{};
  Seconds seconds{};
  std::map<int, std::int64_t> operators_of_stage;
  std::vector<ModuleNode> children;  ///< in the order of the captured graph
};

/// The modules of a model by their paths; operators are the leaves.
///
/// A module with nothing but one child is one node with it. Neighbours whose parts have the same names, operators and
/// stages are merged, as layers 3 to 8 that one stage has.
/// @cost O(n log n) in the length of all paths; paths deeper than 40 modules end there
[[nodiscard]] ModuleNode module_tree(const std::vector<ReportedAtom>& atoms);

/// The modules that together are the model, between which its time is told best: the slowest are opened until there are
/// about `count`.
[[nodiscard]] std::vector<const ModuleNode*> slowest_modules(const ModuleNode& tree, std::size_t count);

}  // namespace autopar::report_page
