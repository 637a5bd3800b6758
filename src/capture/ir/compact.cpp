#include "capture/ir/compact.hpp"

#include <algorithm>
#include <utility>

namespace autopar::ir {

namespace {

void renumber_values(OpGraph& graph, const std::vector<ValueId>& value_map) {
  const auto renumber = [&](ValueId& value) {
    if (value.valid()) value = value_map[value.index()];
  };
  for (auto& node : graph.ops) {
    for (auto* slots : {&node.inputs, &node.outputs}) {
      for (auto& slot : *slots) {
        for (auto& value : slot.values) renumber(value);
      }
    }
  }
  for (auto& info : graph.values) renumber(info.previous);
  for (auto* list : {&graph.inputs, &graph.outputs}) {
    for (auto& value : *list) renumber(value);
  }
  for (auto* list : {&graph.parameters, &graph.buffers}) {
    for (auto& named : *list) renumber(named.value);
  }
}

}  // namespace

void compact(OpGraph& graph, const std::vector<bool>& removed) {
  std::vector<bool> used(graph.values.size(), false);
  std::vector<OpId> op_map(graph.ops.size());
  std::vector<OpNode> ops;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (removed[i]) continue;
    op_map[i] = OpId::of(ops.size());
    const auto mark = [&](ValueId value) { used[value.index()] = true; };
    for_each_input(graph.ops[i], mark);
    for_each_output(graph.ops[i], mark);
    ops.push_back(std::move(graph.ops[i]));
  }
  std::vector<ValueId> value_map(graph.values.size());
  std::vector<ValueInfo> values;
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    if (!used[v] && !graph.values[v].is_leaf()) continue;
    value_map[v] = ValueId::of(values.size());
    values.push_back(std::move(graph.values[v]));
  }
  graph.ops = std::move(ops);
  for (auto& info : values) {
    if (info.definer.valid()) info.definer = op_map[info.definer.index()];
  }
  graph.values = std::move(values);
  renumber_values(graph, value_map);
}

void order_values(OpGraph& graph) {
  std::vector<ValueId> order;
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].is_leaf()) order.push_back(ValueId::of(v));
  }
  for (const auto& node : graph.ops) for_each_output(node, [&](ValueId value) { order.push_back(value); });
  std::vector<ValueId> value_map(graph.values.size());
  std::vector<ValueInfo> values;
  for (const auto value : order) {
    value_map[value.index()] = ValueId::of(values.size());
    values.push_back(std::move(graph.value(value)));
  }
  graph.values = std::move(values);
  renumber_values(graph, value_map);
}

void sort_storages(std::vector<StorageId>& storages) {
  std::erase_if(storages, [](StorageId storage) { return !storage.valid(); });
  std::ranges::sort(storages);
  storages.erase(std::unique(storages.begin(), storages.end()), storages.end());
}

}  // namespace autopar::ir
