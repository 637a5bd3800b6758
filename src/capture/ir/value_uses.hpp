#pragma once

#include <algorithm>
#include <vector>

#include <autopar/capture/op_graph.hpp>

namespace autopar::ir {

/// The uses, outputs and writes that decide whether an op may be removed.
class ValueUses {
 public:
  /// @param graph  must outlive this object and not change
  explicit ValueUses(const OpGraph& graph)
      : graph_(graph), uses_(graph.uses()), is_output_(graph.values.size(), false) {
    for (auto output : graph.outputs) is_output_[output.index()] = true;
  }

  /// The only op that uses the value; none if there are several or the value is an output.
  [[nodiscard]] OpId only_use(ValueId value) const {
    const auto& users = uses_[value.index()];
    return users.size() == 1 && !is_output_[value.index()] ? users.front() : OpId::none();
  }

  /// Whether the storage of `value` is written by an op in (first, last], after the value is defined.
  [[nodiscard]] bool written_between(ValueId value, OpId first, OpId last) const {
    const auto storage = graph_.value(value).storage;
    const auto definer = graph_.value(value).definer;
    const auto begin = definer.valid() ? std::max(first, definer) : first;
    for (auto i = begin.index() + 1; i <= last.index(); ++i) {
      for (auto written : graph_.ops[i].writes) {
        if (written == storage) return true;
      }
    }
    return false;
  }

  /// Whether an op in (first, last) reads or writes the storage of `value`.
  [[nodiscard]] bool touched_between(ValueId value, OpId first, OpId last) const {
    const auto storage = graph_.value(value).storage;
    for (auto i = first.index() + 1; i < last.index(); ++i) {
      const auto& op = graph_.ops[i];
      if (std::ranges::find(op.reads, storage) != op.reads.end()) return true;
      if (std::ranges::find(op.writes, storage) != op.writes.end()) return true;
    }
    return false;
  }

 private:
  const OpGraph& graph_;
  std::vector<std::vector<OpId>> uses_;
  std::vector<bool> is_output_;
};

}  // namespace autopar::ir
