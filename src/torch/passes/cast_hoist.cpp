#include "torch/passes/cast_hoist.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "capture/ir/casts.hpp"
#include "capture/ir/compact.hpp"
#include "capture/ir/last_writes.hpp"
#include "ops/registry.hpp"

namespace autopar::passes {
namespace {

bool is_contiguous(const ValueInfo& info) {
  std::int64_t next = 1;
  for (std::size_t d = info.sizes.size(); d-- > 0;) {
    if (info.sizes[d].depends_on_batch()) return false;
    if (info.sizes[d].fixed != 1 && info.strides[d] != SizeExpr{0, next}) return false;
    next *= info.sizes[d].fixed;
  }
  return true;
}

/// Whether an operator returns a view: one tensor in, the same memory out.
bool is_view(const OpGraph& graph, OpId op) {
  const auto& node = graph.op(op);
  const auto from = graph.input(op, 0), to = graph.output(op);
  return ops::definition_of(graph.name(op)).is_view() && node.inputs.size() == 1 && node.outputs.size() == 1 &&
         node.writes.empty() && from.valid() && to.valid() && graph.value(to).storage.valid() &&
         graph.value(to).storage == graph.value(from).storage;
}

/// A cast, and the views between the parameter and the cast, last one first.
struct ViewedCast {
  OpId cast;
  std::vector<OpId> views;
};

std::optional<ViewedCast> match(const OpGraph& graph, const std::vector<OpId>& last_writes, OpId cast) {
  if (!ir::is_cast(graph, cast)) return std::nullopt;
  ViewedCast found{cast, {}};
  auto value = graph.input(cast, 0);
  const auto& viewed = graph.value(value);
  const auto& copy = graph.value(graph.output(cast));
  if (last_writes[copy.storage.index()] != cast || copy.strides != viewed.strides) return std::nullopt;
  while (graph.value(value).definer.valid()) {
    const auto view = graph.value(value).definer;
    if (!is_view(graph, view) || graph.op(view).grad_enabled != graph.op(cast).grad_enabled) return std::nullopt;
    found.views.push_back(view);
    value = graph.input(view, 0);
  }
  const auto& parameter = graph.value(value);
  const bool fits = parameter.kind == ValueKind::kParameter && is_contiguous(parameter) && !found.views.empty();
  return fits ? std::optional(found) : std::nullopt;
}

/// Replaces a cast of a view by a cast of the parameter and views of the copy.
class Hoist {
 public:
  explicit Hoist(OpGraph& graph) : graph_(graph), viewed_(graph.values.size(), false) {}

  void run() {
    const auto last_writes = ir::last_writes(graph_);
    std::vector<std::optional<ViewedCast>> casts;
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) casts.push_back(match(graph_, last_writes, OpId::of(i)));
    if (std::none_of(casts.begin(), casts.end(), [](const auto& cast) { return cast.has_value(); })) return;
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      if (casts[i])
        replace(*casts[i]);
      else
        add(graph_.ops[i]);
    }
    graph_.ops = std::move(ops_);
    drop_unread_views();
  }

 private:
  void add(OpNode node) {
    for_each_output(node, [&](ValueId value) { graph_.value(value).definer = OpId::of(ops_.size()); });
    ops_.push_back(std::move(node));
  }

  void replace(const ViewedCast& found) {
    const auto result = graph_.output(found.cast);
    const auto parameter = graph_.input(found.views.back(), 0);
    auto copy = new_value(parameter, result);
    auto cast = graph_.op(found.cast);
    cast.inputs[0].values = {parameter};
    cast.outputs[0].values = {copy};
    cast.reads = {graph_.value(parameter).storage};
    add(std::move(cast));
    for (auto view = found.views.rbegin(); view != found.views.rend(); ++view) {
      auto node = graph_.op(*view);
      const auto before = graph_.output(*view);
      viewed_[before.index()] = true;
      node.inputs[0].values = {copy};
      copy = view + 1 == found.views.rend() ? result : new_value(before, result);
      node.outputs[0].values = {copy};
      node.reads = {graph_.value(result).storage};
      add(std::move(node));
    }
  }

  /// A value with the form of `like`, and the element type and memory of `result`.
  ValueId new_value(ValueId like, ValueId result) {
    ValueInfo info;
    info.dtype = graph_.value(result).dtype;
    info.sizes = graph_.value(like).sizes;
    info.strides = graph_.value(like).strides;
    info.requires_grad = graph_.value(like).requires_grad;
    info.storage = graph_.value(result).storage;
    graph_.values.push_back(std::move(info));
    return ValueId::of(graph_.values.size() - 1);
  }

  void drop_unread_views() {
    std::vector<bool> removed(graph_.ops.size(), false);
    std::vector<std::size_t> readers(graph_.values.size(), 0);
    for (const auto& node : graph_.ops) for_each_input(node, [&](ValueId value) { ++readers[value.index()]; });
    for (const auto output : graph_.outputs) ++readers[output.index()];
    for (std::size_t v = viewed_.size(); v-- > 0;) {
      const auto definer = graph_.values[v].definer;
      if (!viewed_[v] || readers[v] > 0) continue;
      removed[definer.index()] = true;
      --readers[graph_.input(definer, 0).index()];
    }
    ir::compact(graph_, removed);
    ir::order_values(graph_);
  }

  OpGraph& graph_;
  std::vector<OpNode> ops_;
  std::vector<bool> viewed_;  ///< by value: the value is a view, and its cast was moved before it
};

}  // namespace

OpGraph hoist_parameter_casts(OpGraph graph) {
  Hoist(graph).run();
  return graph;
}

}  // namespace autopar::passes
