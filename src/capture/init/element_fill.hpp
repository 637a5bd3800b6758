#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/interval.hpp>

namespace autopar::detail {

/// The recorded construction of a tensor each of whose elements is made by itself, and drawn at its own place among the
/// draws: uniform or normal numbers, constants, and arithmetic with numbers, as in libtorch's layers. So some can be
/// made without the others. Refers to the graph.
class ElementFill {
 public:
  /// Of `value`, which the needed operators make. Nothing if they do anything else.
  [[nodiscard]] static std::optional<ElementFill> of(const OpGraph& graph, const std::vector<bool>& needed,
                                                     ValueId value);

  /// The same elements of each of so many equal blocks of the tensor's memory, bit by bit as in the whole: [blocks,
  /// elements], on the CPU. A chunk of the whole is made at a time, that is no larger than they are.
  /// @param state_before  of the default CPU generator, before a random operator
  /// @cost of the chunks, and half a nanosecond for each draw before the last of them
  [[nodiscard]] at::Tensor part(std::int64_t blocks, Interval of_each,
                                const std::function<at::Tensor(OpId)>& state_before) const;

 private:
  /// The generator as a random operator draws an element.
  struct Drawing {
    std::int64_t element = 0;
    at::Tensor state;
  };
  using Drawings = std::map<OpId, Drawing>;

  [[nodiscard]] at::Tensor made(Interval elements, Drawings& drawings,
                                const std::function<at::Tensor(OpId)>& state_before) const;
  ElementFill(const OpGraph& graph, ValueId value) : graph_(&graph), value_(value) {}
  [[nodiscard]] bool add(OpId op);
  [[nodiscard]] std::int64_t size() const { return graph_->value(value_).elements(0); }

  const OpGraph* graph_;
  ValueId value_;
  std::vector<OpId> ops_;  ///< that fill it or change it, in order
};

}  // namespace autopar::detail
