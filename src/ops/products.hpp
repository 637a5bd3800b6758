#pragma once

#include <optional>
#include <vector>

#include <autopar/capture/op_def.hpp>

namespace autopar::ops {

/// One a dim: dims with equal labels run together, and those whose label the result lacks are summed.
using Labels = std::vector<int>;

/// A product of tensors, summed over some of its dims.
struct Contraction {
  std::vector<ValueId> operands;
  std::vector<Labels> labels;  ///< like operands
  Labels result;
};

/// The product of an operator of products.cpp, without what it adds to it; nothing if an equation is not understood.
[[nodiscard]] std::optional<Contraction> contraction_of(const OpCall& op);
/// Whether such an op adds its first operand to the product: addmm and its relatives.
[[nodiscard]] bool has_addend(const OpCall& op);

}  // namespace autopar::ops
