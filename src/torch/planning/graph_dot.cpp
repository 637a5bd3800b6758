#include "torch/planning/graph_dot.hpp"

#include <set>
#include <sstream>
#include <utility>

#include <autopar/core/printable.hpp>

#include "capture/ir/shown_name.hpp"

namespace autopar::planning {

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : printable_line(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

void write_op(std::ostream& out, const OpGraph& graph, OpId id) {
  const auto& path = graph.op(id).path;
  out << "op" << id.value() << " [label=" << quoted(ir::shown_name(graph, id));
  if (!path.empty()) out << ", tooltip=" << quoted(path);
  out << "];\n";
}

void write_edges(std::ostream& out, const OpGraph& graph) {
  std::set<std::pair<std::int32_t, std::int32_t>> drawn;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto to = OpId::of(i);
    for_each_input(graph.op(to), [&](ValueId id) {
      const auto& value = graph.value(id);
      if (!drawn.emplace(id.value(), to.value()).second) return;
      if (value.kind == ValueKind::kInput)
        out << "  input" << value.position;
      else if (value.definer.valid())
        out << "  op" << value.definer.value();
      else
        return;
      out << " -> op" << to.value() << " [label=" << quoted(describe_form(value)) << "];\n";
    });
  }
  for (std::size_t k = 0; k < graph.outputs.size(); ++k) {
    const auto definer = graph.value(graph.outputs[k]).definer;
    if (definer.valid()) out << "  op" << definer.value() << " -> output" << k << ";\n";
  }
}

}  // namespace

std::string to_dot(const OpGraph& graph, const std::string& comment, std::span<const StagePlan> stages) {
  std::ostringstream out;
  out << "// " << comment << "\ndigraph captured {\n  node [shape=box];\n";
  for (std::size_t k = 0; k < graph.inputs.size(); ++k) out << "  input" << k << " [shape=ellipse];\n";
  for (std::size_t k = 0; k < graph.outputs.size(); ++k) out << "  output" << k << " [shape=ellipse];\n";
  std::set<std::int32_t> placed;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    out << "  subgraph cluster_" << s << " {\n    label=\"stage " << s << "\";\n";
    for (const auto op : stages[s].ops) {
      placed.insert(static_cast<std::int32_t>(op));
      out << "    ";
      write_op(out, graph, OpId::of(static_cast<std::size_t>(op)));
    }
    out << "  }\n";
  }
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {  // before and after the pipeline
    if (placed.count(static_cast<std::int32_t>(i))) continue;
    out << "  ";
    write_op(out, graph, OpId::of(i));
  }
  write_edges(out, graph);
  out << "}\n";
  return out.str();
}

}  // namespace autopar::planning
