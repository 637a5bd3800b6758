#pragma once

#include <cstdint>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace autopar::parameters {

/// What an operator does to the elements of its tensors, as far as parts of parameters are concerned.
enum class PartUse {
  kElementWise,  ///< each element of its results is of the same place in all its tensors
  kLists,        ///< likewise, of lists of tensors: each place of a list for itself
  kLike,         ///< its results are like its tensors in sizes and type alone
  kNothing,      ///< it looks at no element
  kView,         ///< element-wise where its result has the sizes and strides of its tensor
  kComposed,     ///< judged by the operators that it consists of
  kWhole,        ///< anything else: right on whole parameters only
};

struct PartRule {
  PartUse use = PartUse::kWhole;
  bool may_draw = false;      ///< with a random generator
  std::uint64_t written = 0;  ///< by argument: its tensors are written
};

/// The one table of what operators may do to parts. Most of it follows from what libtorch says of an operator: its tag
/// `pointwise`, its tags and arguments of random draws, whether it is composed of others. The rest is in lists of
/// names.
/// @cost once an operator and thread; then a look-up by address
[[nodiscard]] const PartRule& part_rule(const c10::OperatorHandle& op);

/// Whether the operator draws with these arguments: dropout does not in evaluation, nor with p = 0.
[[nodiscard]] bool draws(const PartRule& rule, const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace autopar::parameters
