#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/schedule/action.hpp>

#include "torch/ir/op_graph.hpp"

namespace autopar::detail {

/// The recorded construction of a tensor each of whose elements is made by itself, and drawn at its own place among the
/// draws: uniform or normal numbers, constants, and arithmetic with numbers, as in libtorch's layers. So some can be
/// made without the others. Refers to the graph.
class ElementFill {
 public:
  /// Of `value`, which the needed operators make. Nothing if they do anything else.
  [[nodiscard]] static std::optional<ElementFill> of(const OpGraph& graph, const std::vector<bool>& needed,
                                                     ValueId value);

  /// Elements in memory order, bit by bit as in the whole tensor: flat, on the CPU.
  /// @param state_before  of the default CPU generator, before a random operator
  /// @cost of these elements, and half a nanosecond for each draw before them
  [[nodiscard]] at::Tensor part(Interval elements, const std::function<at::Tensor(OpId)>& state_before) const;

 private:
  ElementFill(const OpGraph& graph, ValueId value) : graph_(&graph), value_(value) {}
  [[nodiscard]] bool add(OpId op);
  [[nodiscard]] std::int64_t size() const { return graph_->value(value_).elements(0); }

  const OpGraph* graph_;
  ValueId value_;
  std::vector<OpId> ops_;  ///< that fill it or change it, in order
};

}  // namespace autopar::detail
