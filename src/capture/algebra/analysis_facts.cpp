#include <algorithm>

#include <autopar/core/error.hpp>

#include "capture/algebra/analysis.hpp"

namespace autopar::algebra {

Provenance& Provenance::operator|=(const Provenance& other) {
  inputs = inputs || other.inputs;
  parameters = parameters || other.parameters;
  buffers = buffers || other.buffers;
  random = random || other.random;
  return *this;
}

Analysis::Analysis(const OpGraph& graph, const AlgebraOptions& options) : graph_(graph), options_(options) {
  plan_.values.assign(graph.values.size(), BatchType::replicated());
  plan_.ops.assign(graph.ops.size(), {});
  summed_early_.assign(graph.values.size(), false);
  known_early_.assign(graph.values.size(), false);
  forced_whole_.assign(graph.ops.size(), false);
  find_leaves();
  find_live_ops();
  find_provenance();
}

void Analysis::find_leaves() {
  const auto storages = static_cast<std::size_t>(graph_.storage_count);
  leaf_of_storage_.assign(storages, ValueId::none());
  values_of_storage_.assign(storages, {});
  for (std::size_t i = 0; i < graph_.values.size(); ++i) {
    const auto& info = graph_.values[i];
    if (!info.storage.valid()) continue;
    values_of_storage_[info.storage.index()].push_back(ValueId::of(i));
    if (info.is_leaf() && !leaf_of_storage_[info.storage.index()].valid()) {
      leaf_of_storage_[info.storage.index()] = ValueId::of(i);
    }
  }
}

// An op matters if somebody needs memory that it makes or writes. By storage, so that writes through views count.
void Analysis::find_live_ops() {
  std::vector<bool> storage_needed(static_cast<std::size_t>(graph_.storage_count), false);
  std::vector<bool> value_needed(graph_.values.size(), false);
  const auto need = [&](ValueId value) {
    value_needed[value.index()] = true;
    if (const auto storage = graph_.value(value).storage; storage.valid()) storage_needed[storage.index()] = true;
  };
  live_.assign(graph_.ops.size(), false);
  written_storage_.assign(static_cast<std::size_t>(graph_.storage_count), false);
  for (const auto value : graph_.outputs) need(value);
  for (std::size_t i = graph_.ops.size(); i-- > 0;) {
    const auto& node = graph_.ops[i];
    bool live = false;
    for_each_output(node, [&](ValueId value) {
      const auto storage = graph_.value(value).storage;
      live = live || value_needed[value.index()] || (storage.valid() && storage_needed[storage.index()]);
    });
    for (const auto storage : node.writes) {
      const bool is_leaf = leaf_of_storage_[storage.index()].valid();
      if (is_leaf) written_storage_[storage.index()] = true;
      live = live || is_leaf || storage_needed[storage.index()];
    }
    if (!live) continue;
    live_[i] = true;
    for_each_input(node, need);
  }
  last_use_.assign(graph_.values.size(), -1);
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    if (!live_[i]) continue;
    for_each_input(graph_.ops[i], [&](ValueId value) { last_use_[value.index()] = static_cast<std::int32_t>(i); });
  }
  for (const auto value : graph_.outputs) last_use_[value.index()] = static_cast<std::int32_t>(graph_.ops.size());
}

void Analysis::find_provenance() {
  storage_provenance_.assign(static_cast<std::size_t>(graph_.storage_count), {});
  value_provenance_.assign(graph_.values.size(), {});
  const auto add = [&](ValueId value, const Provenance& from) {
    const auto storage = graph_.value(value).storage;
    (storage.valid() ? storage_provenance_[storage.index()] : value_provenance_[value.index()]) |= from;
  };
  for (std::size_t i = 0; i < graph_.values.size(); ++i) {
    const auto kind = graph_.values[i].kind;
    Provenance own;
    own.inputs = kind == ValueKind::kInput;
    own.parameters = kind == ValueKind::kParameter;
    own.buffers = kind == ValueKind::kBuffer;
    add(ValueId::of(i), own);
  }
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    if (!live_[i]) continue;
    const OpCall op(graph_, plan_.values, options_, OpId::of(i));
    Provenance from;
    from.random = draws(op);
    // A new tensor of another's sizes does not depend on its values.
    if (!op.def().has(OpTrait::kReadsSizesOnly)) {
      for (const auto value : op.tensors()) from |= provenance(value);
    }
    for (const auto value : op.results()) add(value, from);
    for (const auto storage : op.node().writes) storage_provenance_[storage.index()] |= from;
  }
}

Provenance Analysis::provenance(ValueId value) const {
  const auto storage = graph_.value(value).storage;
  return storage.valid() ? storage_provenance_[storage.index()] : value_provenance_[value.index()];
}

// All live ops that values are computed from, up to the last definer among them.
std::vector<bool> Analysis::cone(const std::vector<ValueId>& values) const {
  std::vector<bool> inside(graph_.ops.size(), false);
  std::vector<bool> storage_needed(static_cast<std::size_t>(graph_.storage_count), false);
  std::vector<bool> value_needed(graph_.values.size(), false);
  std::int32_t last = -1;
  const auto need = [&](ValueId value) {
    value_needed[value.index()] = true;
    if (const auto storage = graph_.value(value).storage; storage.valid()) storage_needed[storage.index()] = true;
  };
  for (const auto value : values) {
    need(value);
    last = std::max(last, graph_.value(value).definer.value());
  }
  for (std::int32_t i = last; i >= 0; --i) {
    const auto& node = graph_.ops[static_cast<std::size_t>(i)];
    if (!live_[static_cast<std::size_t>(i)]) continue;
    bool needed = false;
    for_each_output(node, [&](ValueId value) {
      const auto storage = graph_.value(value).storage;
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
