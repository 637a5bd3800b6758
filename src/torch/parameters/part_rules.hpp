#pragma once

#include <cstdint>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace autopar::parameters {

/// What an operator does to the elements of its tensors, as far as it matters for parts of parameters.
enum class PartUse {
  kElementWise,  ///< each element of a result depends on the elements at the same position
  kLists,        ///< element-wise on lists of tensors, separately for each position of the lists
  kLike,         ///< results depend on the sizes and type of its tensors only
  kNothing,      ///< reads no element
  kView,         ///< element-wise if the result has the sizes and strides of its tensor
  kComposed,     ///< decided for each operator that it consists of
  kWhole,        ///< anything else: correct on unsharded parameters only
};

struct PartRule {
  PartUse use = PartUse::kWhole;
  bool may_draw = false;      ///< may use a random generator
  std::uint64_t written = 0;  ///< bit set of the arguments whose tensors are written
};

/// The one table of what operators may do to parts. Most entries follow from libtorch's description of an operator: its
/// tag `pointwise`, its tags and arguments for random numbers, whether it is composite. The rest are lists of names.
/// @cost computed once for each operator and thread, then a look-up by address
[[nodiscard]] const PartRule& part_rule(const c10::OperatorHandle& op);

/// Whether the operator draws random numbers with these arguments: dropout does not in evaluation, nor with p = 0.
[[nodiscard]] bool draws(const PartRule& rule, const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace autopar::parameters
