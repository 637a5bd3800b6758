#include "torch/fused/pointwise/pattern.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "capture/ir/compact.hpp"
#include "capture/ir/last_writes.hpp"
#include "ops/registry.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/fused/pointwise/lowering.hpp"
#include "torch/fused/pointwise/program.hpp"

namespace autopar::fused::pointwise {
namespace {

constexpr std::size_t kMostInputs = 8, kMostResults = 3, kMostSteps = 24;

bool has_samples(const ValueInfo& info) {
  return std::ranges::any_of(info.sizes, [](SizeExpr size) { return size.depends_on_batch(); });
}

/// The kinds of leaves from which a value is computed.
struct Origin {
  bool samples = false, parameters = false;
};

std::vector<Origin> origins(const OpGraph& graph) {
  std::vector<Origin> of(graph.values.size());
  for (std::size_t v = 0; v < of.size(); ++v) {
    const auto& info = graph.values[v];
    if (info.is_leaf()) of[v] = {has_samples(info), info.kind == ValueKind::kParameter};
  }
  for (const auto& node : graph.ops) {
    Origin all;
    for_each_input(node, [&](ValueId value) {
      all.samples = all.samples || of[value.index()].samples;
      all.parameters = all.parameters || of[value.index()].parameters;
    });
    for_each_output(node, [&](ValueId value) { of[value.index()] = all; });
  }
  return of;
}

/// A call of libtorch's as a step, with tensors numbered in the order of arguments; none if an argument has no text.
std::optional<Step> step_of(const OpNode& node) {
  Step step{node.op, {}};
  for (const auto& argument : node.args) {
    if (!has_text(argument)) return std::nullopt;
    step.arguments.emplace_back(argument);
  }
  std::int32_t next = 0;
  for (const auto& slot : node.inputs) {
    if (slot.kind != SlotKind::kTensor) return std::nullopt;
    if (slot.values.front().valid()) step.arguments[static_cast<std::size_t>(slot.position)] = TensorIndex{next++};
  }
  return step;
}

using Members = std::set<OpId>;

class GroupFinder {
 public:
  explicit GroupFinder(const OpGraph& graph)
      : graph_(graph),
        uses_(graph.uses()),
        last_writes_(autopar::ir::last_writes(graph)),
        origins_(origins(graph)),
        is_output_(graph.values.size(), false),
        group_of_(graph.ops.size(), -1) {
    for (const auto output : graph.outputs) is_output_[output.index()] = true;
  }

  /// The groups of at least two operators.
  [[nodiscard]] std::vector<Members> find() {
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      if (may_join(OpId::of(i))) join(OpId::of(i));
    }
    std::erase_if(groups_, [](const Members& group) { return group.size() < 2; });
    return std::move(groups_);
  }

  /// The group's values that others read.
  [[nodiscard]] std::vector<ValueId> results(const Members& group) const {
    std::vector<ValueId> found;
    for (const auto op : group) {
      const auto made = graph_.output(op);
      const auto& users = uses_[made.index()];
      const bool leaves = std::ranges::any_of(users, [&](OpId user) { return !group.contains(user); });
      if (leaves || is_output_[made.index()]) found.push_back(made);
    }
    return found;
  }

  /// The group's inputs, in the order in which it reads them.
  [[nodiscard]] std::vector<ValueId> inputs(const Members& group) const {
    std::vector<ValueId> found;
    for (const auto op : group) {
      for_each_input(graph_.op(op), [&](ValueId value) {
        const auto definer = graph_.value(value).definer;
        const bool is_inside = definer.valid() && group.contains(definer);
        if (!is_inside && std::ranges::find(found, value) == found.end()) found.push_back(value);
      });
    }
    return found;
  }

 private:
  [[nodiscard]] const ValueInfo& value(ValueId id) const { return graph_.value(id); }

  [[nodiscard]] bool is_written_after(ValueId id, OpId op) const {
    const auto storage = value(id).storage;
    return storage.valid() && last_writes_[storage.index()].valid() && op < last_writes_[storage.index()];
  }

  static bool is_number_of_kernels(c10::ScalarType type) {
    return type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kDouble;
  }

  /// Whether a group may read a value. Sums over samples, and values computed from them, do not belong to one sample:
  /// no group has any.
  [[nodiscard]] bool may_read(ValueId id, OpId op, bool is_double) const {
    const auto& info = value(id);
    const bool has_type =
        info.dtype == at::kBool || (is_number_of_kernels(info.dtype) && (info.dtype == at::kDouble) == is_double);
    const bool is_number_of_host = info.kind == ValueKind::kConstant && info.sizes.empty();
    const bool is_of_samples = !origins_[id.index()].samples || has_samples(info);
    return has_type && is_of_samples && !is_number_of_host && !is_written_after(id, op);
  }

  [[nodiscard]] bool may_join(OpId op) const {
    const auto& node = graph_.op(op);
    const auto kind = ops::definition_of(node.op).kind;
    if (kind != OpKind::kPointwise && kind != OpKind::kCopy) return false;
    if (!node.integers.empty() || node.is_random) return false;
    const auto made = graph_.output(op);
    if (!made.valid() || node.outputs.size() != 1) return false;
    const auto& info = value(made);
    const bool owns = info.storage.valid() && node.writes == std::vector{info.storage} && !info.previous.valid() &&
                      std::ranges::find(node.reads, info.storage) == node.reads.end();
    if (!owns || is_written_after(made, op) || !has_samples(info) || !is_number_of_kernels(info.dtype)) return false;
    bool may = true;
    for_each_input(node, [&](ValueId operand) { may = may && may_read(operand, op, info.dtype == at::kDouble); });
    if (!may) return false;
    const auto step = step_of(node);
    return step && has_formula(*step);
  }

  void join(OpId op) {
    std::vector<int> beside;  // groups whose results it reads, the latest first
    for_each_input(graph_.op(op), [&](ValueId operand) {
      const auto definer = value(operand).definer;
      const auto group = definer.valid() ? group_of_[definer.index()] : -1;
      if (group >= 0 && std::ranges::find(beside, group) == beside.end()) beside.push_back(group);
    });
    std::ranges::sort(beside, std::greater<>());
    Members joined{op};
    std::vector<int> taken;
    for (const auto group : beside) {
      auto larger = joined;
      larger.insert(groups_[static_cast<std::size_t>(group)].begin(), groups_[static_cast<std::size_t>(group)].end());
      if (!may_be_one(larger)) continue;
      joined = std::move(larger);
      taken.push_back(group);
    }
    for (const auto group : taken) groups_[static_cast<std::size_t>(group)].clear();
    for (const auto member : joined) group_of_[member.index()] = static_cast<int>(groups_.size());
    groups_.push_back(std::move(joined));
  }

  /// Whether the operators may be one operator at the place of the last one.
  [[nodiscard]] bool may_be_one(const Members& group) const {
    const auto last = *group.rbegin();
    const auto& like = value(graph_.output(last));
    for (const auto op : group) {
      const auto made = graph_.output(op);
      const auto& info = value(made);
      const bool is_alike = info.sizes == like.sizes && (info.dtype == at::kDouble) == (like.dtype == at::kDouble) &&
                            graph_.op(op).grad_enabled == graph_.op(last).grad_enabled &&
                            origins_[made.index()].parameters == origins_[graph_.output(last).index()].parameters;
      const bool is_read_before =
          std::ranges::any_of(uses_[made.index()], [&](OpId user) { return user < last && !group.contains(user); });
      if (!is_alike || is_read_before) return false;
    }
    return group.size() <= kMostSteps && inputs(group).size() <= kMostInputs && results(group).size() <= kMostResults;
  }

  const OpGraph& graph_;
  std::vector<std::vector<OpId>> uses_;
  std::vector<OpId> last_writes_;
  std::vector<Origin> origins_;
  std::vector<bool> is_output_;
  std::vector<int> group_of_;  // by op
  std::vector<Members> groups_;
};

Program program_of_group(const OpGraph& graph, const Members& group, const std::vector<ValueId>& inputs,
                         const std::vector<ValueId>& results) {
  const auto& sizes = graph.value(results.front()).sizes;
  Program program;
  std::map<ValueId, std::int32_t> number;
  const auto count = [&](ValueId value) { number.emplace(value, static_cast<std::int32_t>(number.size())); };
  for (const auto value : inputs) {
    program.inputs.push_back({graph.value(value).dtype, graph.value(value).sizes == sizes});
    count(value);
  }
  for (const auto op : group) {
    auto step = *step_of(graph.op(op));
    for (const auto& slot : graph.op(op).inputs) {
      const auto value = slot.values.front();
      if (value.valid()) step.arguments[static_cast<std::size_t>(slot.position)] = TensorIndex{number.at(value)};
    }
    step.type = graph.value(graph.output(op)).dtype;
    program.steps.push_back(std::move(step));
    count(graph.output(op));
  }
  for (const auto value : results) program.results.push_back(number.at(value));
  return program;
}

OpNode joined_node(const OpGraph& graph, const Members& group, const GroupFinder& groups) {
  const auto op = fused_operator(kJoinedPointwise);
  const auto inputs = groups.inputs(group), results = groups.results(group);
  OpNode node{op, std::vector<c10::IValue>(PointwiseArgument::kCount)};
  node.args[PointwiseArgument::kProgram] = text_of(program_of_group(graph, group, inputs, results));
  node.inputs = {{PointwiseArgument::kInputs, SlotKind::kList, inputs}};
  node.outputs = {{0, SlotKind::kList, results}};
  for (const auto value : inputs) node.reads.push_back(graph.value(value).storage);
  for (const auto value : results) node.writes.push_back(graph.value(value).storage);
  ir::sort_storages(node.reads);
  ir::sort_storages(node.writes);
  node.grad_enabled = graph.op(*group.rbegin()).grad_enabled;
  for (const auto member : group) {
    if (!graph.op(member).path.empty()) node.path = graph.op(member).path;
  }
  return node;
}

}  // namespace

OpGraph fold_pointwise(OpGraph graph) {
  std::vector<std::pair<OpId, OpNode>> joined;
  std::vector<bool> removed(graph.ops.size(), false);
  {
    GroupFinder groups(graph);
    for (const auto& group : groups.find()) {
      const auto last = *group.rbegin();
      if (groups.results(group).empty()) continue;
      joined.emplace_back(last, joined_node(graph, group, groups));
      for (const auto member : group) removed[member.index()] = member != last;
    }
  }
  if (joined.empty()) return graph;
  for (auto& [last, node] : joined) {
    for_each_output(node, [&, at = last](ValueId value) { graph.value(value).definer = at; });
    graph.op(last) = std::move(node);
  }
  ir::compact(graph, removed);
  ir::order_values(graph);
  return graph;
}

}  // namespace autopar::fused::pointwise
