#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/capture/op_graph.hpp>
#include <autopar/core/interval.hpp>

namespace autopar::init {

/// State of the default CPU generator before a random operator.
using StateBefore = std::function<at::Tensor(OpId)>;

/// The recorded construction of a tensor whose elements are independent, each with its own position among the draws.
/// The operators are uniform or normal numbers, constants, and arithmetic with numbers, as in libtorch's layers. So
/// some elements can be made without the others. Refers to the graph.
class ElementFill {
 public:
  /// The construction of `value` by the needed operators; nullopt if they do anything else.
  [[nodiscard]] static std::optional<ElementFill> of(const OpGraph& graph, const std::vector<bool>& needed,
                                                     ValueId value);

  /// The same elements of each of `blocks` equal blocks of the tensor's memory: [blocks, elements], on the CPU. They
  /// equal the elements of the whole tensor, bit by bit. They are made in chunks, none of which is larger than the
  /// result.
  /// @cost the chunks, and half a nanosecond for each draw before the last chunk
  [[nodiscard]] at::Tensor part(std::int64_t blocks, Interval of_each, const StateBefore& state_before) const;

  /// Elements of the whole tensor. Threads may call it at the same time.
  struct Piece {
    const ElementFill* fill;
    Interval elements;
    at::Tensor into;  ///< [elements]

    /// @cost of the elements, and half a nanosecond for each draw before them
    void make(const StateBefore& state_before) const;
  };
  /// Pieces of at most so many elements, which make all of `into` together.
  [[nodiscard]] std::vector<Piece> pieces(const at::Tensor& into, std::int64_t most) const;
  [[nodiscard]] std::int64_t size() const { return graph_->value(value_).elements(0); }
  [[nodiscard]] c10::ScalarType type() const { return graph_->value(value_).dtype; }

 private:
  /// The generator when a random operator draws an element.
  struct Drawing {
    std::int64_t element = 0;
    at::Tensor state;
  };
  using Drawings = std::map<OpId, Drawing>;

  [[nodiscard]] at::Tensor made(Interval elements, Drawings& drawings, const StateBefore& state_before) const;
  /// @param into  the elements' memory
  void run(Interval elements, at::Tensor into, Drawings& drawings, const StateBefore& state_before) const;
  ElementFill(const OpGraph& graph, ValueId value) : graph_(&graph), value_(value) {}
  [[nodiscard]] bool add(OpId op);

  const OpGraph* graph_;
  ValueId value_;
  std::vector<OpId> ops_;  ///< operators that fill or change it, in order
};

}  // namespace autopar::init
