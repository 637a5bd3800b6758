#include "torch/planning/graph_dot.hpp"

#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <autopar/capture/module_paths.hpp>
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

/// Operators by module: those of the modules inside, each with its own, and those of the module itself.
struct ModuleBox {
  std::string path{};
  std::vector<ModuleBox> inside{};  ///< in the order of their first operators
  std::vector<OpId> ops{};

  ModuleBox& module_inside(const std::string& inner) {
    for (auto& box : inside) {
      if (box.path == inner) return box;
    }
    return inside.emplace_back(ModuleBox{.path = inner});
  }
  /// The box of a module, through those around it: of "layers.0", "layers" and then "layers.0".
  ModuleBox& module_at(const std::string& module) {
    auto* box = this;
    for (std::size_t end = 0; !module.empty() && end != std::string::npos;) {
      end = module.find('.', end == 0 ? 0 : end + 1);
      box = &box->module_inside(module.substr(0, end));
    }
    return *box;
  }
};

/// Writes nodes, and boxes around the nodes of stages and modules.
class NodeWriter {
 public:
  NodeWriter(std::ostream& out, const OpGraph& graph) : out_(out), graph_(graph), modules_(module_paths(graph)) {}

  /// @param ops  ascending
  void write(const std::vector<OpId>& ops, int depth) {
    ModuleBox all;
    for (const auto op : ops) all.module_at(modules_[op.index()]).ops.push_back(op);
    write_inside(all, depth);
  }
  void begin_box(const std::string& label, int depth) {
    indent(depth) << "subgraph cluster_" << boxes_++ << " {\n";
    indent(depth + 1) << "label=" << quoted(label) << ";\n";
  }
  void end_box(int depth) { indent(depth) << "}\n"; }

 private:
  std::ostream& indent(int depth) { return out_ << std::string(2 * static_cast<std::size_t>(depth), ' '); }
  void write_inside(const ModuleBox& box, int depth) {
    for (const auto op : box.ops) {
      indent(depth) << "op" << op.value() << " [label=" << quoted(ir::shown_name(graph_, op));
      if (!box.path.empty()) out_ << ", tooltip=" << quoted(box.path);
      out_ << "];\n";
    }
    for (const auto& inner : box.inside) {
      begin_box(inner.path, depth);
      write_inside(inner, depth + 1);
      end_box(depth);
    }
  }

  std::ostream& out_;
  const OpGraph& graph_;
  std::vector<std::string> modules_;
  int boxes_ = 0;
};

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
  NodeWriter nodes(out, graph);
  std::set<std::int32_t> placed;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    nodes.begin_box("stage " + std::to_string(s), 1);
    std::vector<OpId> ops;
    for (const auto op : stages[s].ops) ops.push_back(OpId::of(static_cast<std::size_t>(op)));
    for (const auto op : ops) placed.insert(op.value());
    nodes.write(ops, 2);
    nodes.end_box(1);
  }
  std::vector<OpId> others;  // before and after the pipeline
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (!placed.contains(static_cast<std::int32_t>(i))) others.push_back(OpId::of(i));
  }
  nodes.write(others, 1);
  write_edges(out, graph);
  out << "}\n";
  return out.str();
}

}  // namespace autopar::planning
