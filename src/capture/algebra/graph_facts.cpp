#include "capture/algebra/graph_facts.hpp"

#include <algorithm>

#include "ops/rules.hpp"

namespace autopar::algebra {

Provenance& Provenance::operator|=(const Provenance& other) {
  inputs = inputs || other.inputs;
  parameters = parameters || other.parameters;
  buffers = buffers || other.buffers;
  random = random || other.random;
  return *this;
}

GraphFacts::GraphFacts(const OpGraph& of, const AlgebraOptions& options) : graph(of) {
  find_leaves();
  find_live_ops();
  find_provenance(options);
}

void GraphFacts::find_leaves() {
  const auto storages = static_cast<std::size_t>(graph.storage_count);
  leaf_of_storage.assign(storages, ValueId::none());
  values_of_storage.assign(storages, {});
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const auto& info = graph.values[i];
    if (!info.storage.valid()) continue;
    values_of_storage[info.storage.index()].push_back(ValueId::of(i));
    if (info.is_leaf() && !leaf_of_storage[info.storage.index()].valid()) {
      leaf_of_storage[info.storage.index()] = ValueId::of(i);
    }
  }
}

// By storage, so that writes through views count.
void GraphFacts::find_live_ops() {
  std::vector<bool> storage_needed(static_cast<std::size_t>(graph.storage_count), false);
  std::vector<bool> value_needed(graph.values.size(), false);
  const auto need = [&](ValueId value) {
    value_needed[value.index()] = true;
    if (const auto storage = graph.value(value).storage; storage.valid()) storage_needed[storage.index()] = true;
  };
  live.assign(graph.ops.size(), false);
  written_storage.assign(static_cast<std::size_t>(graph.storage_count), false);
  for (const auto value : graph.outputs) need(value);
  for (std::size_t i = graph.ops.size(); i-- > 0;) {
    const auto& node = graph.ops[i];
    bool is_needed = false;
    for_each_output(node, [&](ValueId value) {
      const auto storage = graph.value(value).storage;
      is_needed = is_needed || value_needed[value.index()] || (storage.valid() && storage_needed[storage.index()]);
    });
    for (const auto storage : node.writes) {
      const bool is_leaf = leaf_of_storage[storage.index()].valid();
      if (is_leaf) written_storage[storage.index()] = true;
      is_needed = is_needed || is_leaf || storage_needed[storage.index()];
    }
    if (!is_needed) continue;
    live[i] = true;
    for_each_input(node, need);
  }
  last_use.assign(graph.values.size(), -1);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (!live[i]) continue;
    for_each_input(graph.ops[i], [&](ValueId value) { last_use[value.index()] = static_cast<std::int32_t>(i); });
  }
  for (const auto value : graph.outputs) last_use[value.index()] = static_cast<std::int32_t>(graph.ops.size());
}

void GraphFacts::find_provenance(const AlgebraOptions& options) {
  const std::vector<BatchType> untyped(graph.values.size(), BatchType::replicated());
  of_storage.assign(static_cast<std::size_t>(graph.storage_count), {});
  of_value.assign(graph.values.size(), {});
  const auto add = [&](ValueId value, const Provenance& from) {
    const auto storage = graph.value(value).storage;
    (storage.valid() ? of_storage[storage.index()] : of_value[value.index()]) |= from;
  };
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const auto kind = graph.values[i].kind;
    Provenance own;
    own.inputs = kind == ValueKind::kInput;
    own.parameters = kind == ValueKind::kParameter;
    own.buffers = kind == ValueKind::kBuffer;
    add(ValueId::of(i), own);
  }
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (!live[i]) continue;
    const OpCall op(graph, untyped, options, OpId::of(i));
    Provenance from;
    from.random = ops::draws(op);
    // A new tensor of another's sizes does not depend on its values.
    if (!op.def().has(OpTrait::kReadsSizesOnly)) {
      for (const auto value : op.tensors()) from |= provenance(value);
    }
    for (const auto value : op.results()) add(value, from);
    for (const auto storage : op.node().writes) of_storage[storage.index()] |= from;
  }
}

Provenance GraphFacts::provenance(ValueId value) const {
  const auto storage = graph.value(value).storage;
  return storage.valid() ? of_storage[storage.index()] : of_value[value.index()];
}

std::vector<bool> GraphFacts::cone(const std::vector<ValueId>& values) const {
  std::vector<bool> inside(graph.ops.size(), false);
  std::vector<bool> storage_needed(static_cast<std::size_t>(graph.storage_count), false);
  std::vector<bool> value_needed(graph.values.size(), false);
  std::int32_t last = -1;
  const auto need = [&](ValueId value) {
    value_needed[value.index()] = true;
    if (const auto storage = graph.value(value).storage; storage.valid()) storage_needed[storage.index()] = true;
  };
  for (const auto value : values) {
    need(value);
    last = std::max(last, graph.value(value).definer.value());
  }
  for (std::int32_t i = last; i >= 0; --i) {
    const auto& node = graph.ops[static_cast<std::size_t>(i)];
    if (!live[static_cast<std::size_t>(i)]) continue;
    bool needed = false;
    for_each_output(node, [&](ValueId value) {
      const auto storage = graph.value(value).storage;
      needed = needed || value_needed[value.index()] || (storage.valid() && storage_needed[storage.index()]);
    });
    for (const auto storage : node.writes) needed = needed || storage_needed[storage.index()];
    if (!needed) continue;
    inside[static_cast<std::size_t>(i)] = true;
    for_each_input(node, need);
  }
  return inside;
}

}  // namespace autopar::algebra
