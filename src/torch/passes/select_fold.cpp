#include "torch/passes/select_fold.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "capture/ir/compact.hpp"
#include "capture/ir/last_writes.hpp"
#include "ops/names.hpp"
#include "ops/registry.hpp"

namespace autopar::passes {
namespace {

/// A selection of one element of a dimension.
struct Select {
  ValueId whole;
  std::int64_t dim = 0, index = 0;  ///< counted from the front
};

std::optional<Select> match(const OpGraph& graph, OpId op) {
  const auto& node = graph.op(op);
  if (!graph.is(op, ops::kSelect) || graph.overload(op) != "int" || !node.integers.empty()) return std::nullopt;
  const Select found{graph.input(op, 0), node.args[1].toInt(), node.args[2].toInt()};
  const auto& sizes = graph.value(found.whole).sizes;
  const auto from_front = [](std::int64_t place, std::int64_t size) { return place < 0 ? place + size : place; };
  const auto dim = from_front(found.dim, static_cast<std::int64_t>(sizes.size()));
  const auto size = sizes[static_cast<std::size_t>(dim)];
  if (size.depends_on_batch()) return std::nullopt;
  return Select{found.whole, dim, from_front(found.index, size.fixed)};
}

/// Selections of one value along one dimension, in the same grad mode: operators by the index that they select.
using Selects = std::map<std::int64_t, OpId>;
using Key = std::tuple<ValueId, std::int64_t, bool>;

std::map<Key, Selects> complete_selections(const OpGraph& graph) {
  const auto last_writes = ir::last_writes(graph);
  std::map<Key, Selects> found;
  std::map<Key, bool> repeats;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto select = match(graph, OpId::of(i));
    if (!select || !graph.value(select->whole).has_gradient()) continue;
    const auto storage = graph.value(select->whole).storage;
    if (!storage.valid() || OpId::of(i) < last_writes[storage.index()]) continue;
    const Key key{select->whole, select->dim, graph.op(OpId::of(i)).grad_enabled};
    const bool is_new = found[key].emplace(select->index, OpId::of(i)).second;
    repeats[key] = repeats[key] || !is_new;
  }
  std::erase_if(found, [&](const auto& item) {
    const auto& [whole, dim, grad] = item.first;
    const auto size = graph.value(whole).sizes[static_cast<std::size_t>(dim)].fixed;
    return size < 2 || repeats[item.first] || item.second.size() != static_cast<std::size_t>(size);
  });
  return found;
}

}  // namespace

OpGraph fold_selects(OpGraph graph) {
  static const auto unbind = ops::operator_named(ops::kUnbind, "int");
  const auto selections = complete_selections(graph);
  if (selections.empty()) return graph;
  std::vector<bool> removed(graph.ops.size(), false);
  for (const auto& [key, selects] : selections) {
    const auto& [whole, dim, grad] = key;
    auto first = selects.begin()->second;
    Slot parts{0, SlotKind::kList, {}};
    for (const auto& [index, op] : selects) {
      first = std::min(first, op);
      removed[op.index()] = true;
      parts.values.push_back(graph.output(op));
    }
    removed[first.index()] = false;
    for (const auto part : parts.values) graph.value(part).definer = first;
    auto& node = graph.op(first);
    node.op = unbind;
    node.args = {c10::IValue(), dim};
    node.outputs = {std::move(parts)};
  }
  ir::compact(graph, removed);
  ir::order_values(graph);
  return graph;
}

}  // namespace autopar::passes
