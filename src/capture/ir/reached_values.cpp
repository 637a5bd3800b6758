#include "capture/ir/reached_values.hpp"

#include <cstddef>

namespace autopar::ir {

std::vector<bool> reached_values(const OpGraph& graph, const std::vector<ValueId>& roots) {
  std::vector<bool> reached(graph.values.size(), false);
  std::vector<bool> read(static_cast<std::size_t>(graph.storage_count), false);  // by what comes later
  const auto visit = [&](ValueId value) {
    const auto& info = graph.value(value);
    if (!info.has_gradient()) return;
    reached[value.index()] = true;
    if (info.storage.valid()) read[info.storage.index()] = true;
  };
  for (const auto root : roots) visit(root);
  for (std::size_t i = graph.ops.size(); i-- > 0;) {
    bool leads_on = false;
    for_each_output(graph.ops[i], [&](ValueId value) {
      const auto& info = graph.value(value);
      // What is written through one view is read through all.
      const bool written = info.previous.valid() && info.storage.valid() && read[info.storage.index()];
      leads_on = leads_on || reached[value.index()] || (written && info.has_gradient());
    });
    if (leads_on) for_each_input(graph.ops[i], visit);
  }
  return reached;
}

}  // namespace autopar::ir
