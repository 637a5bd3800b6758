#include "capture/ir/casts.hpp"

namespace autopar::ir {

bool is_cast(const OpGraph& graph, OpId op) {
  const auto& node = graph.op(op);
  if (!graph.is(op, "aten::to") || graph.overload(op) != "dtype" || !node.args[4].isNone() || !node.integers.empty()) {
    return false;
  }
  const auto from = graph.input(op, 0), to = graph.output(op);
  if (!from.valid() || !to.valid()) return false;
  const auto &before = graph.value(from), &after = graph.value(to);
  return c10::isFloatingType(before.dtype) && c10::isFloatingType(after.dtype) && before.dtype != after.dtype &&
         after.storage.valid() && after.storage != before.storage;
}

bool casts_parameter(const OpGraph& graph, OpId op) {
  return is_cast(graph, op) && graph.value(graph.input(op, 0)).kind == ValueKind::kParameter;
}

}  // namespace autopar::ir
