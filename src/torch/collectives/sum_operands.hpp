#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torch/ranks/ranks.hpp"

#include "torch/parameters/parameter_store.hpp"

namespace autopar::collectives {

/// A tensor that a user names in a sum over a parameter: the parameter itself, its gradient, or one of the user's own
/// of the same layout. Plain bytes.
struct SumOperand {
  enum class What : std::int32_t { kNothing, kValue, kGradient, kOwn };
  What what = What::kNothing;
  parameters::StateId parameter{};  ///< none: this rank cannot tell
  friend bool operator==(const SumOperand&, const SumOperand&) = default;
};

/// Tells what the tensors are that a user names. A rank that has no gradient, as it holds nothing of the parameter,
/// names an undefined tensor: which one is meant the others know.
class SumOperands {
 public:
  explicit SumOperands(const parameters::ParameterStore& parameters);

  /// An own tensor if it is neither a handle nor a gradient.
  [[nodiscard]] SumOperand find(const at::Tensor& tensor) const;
  /// As the messages name it.
  [[nodiscard]] std::string describe(const SumOperand& operand) const;
  /// What all ranks name, in order. Collective: lists of equal length.
  /// @param member  for messages: "norm"
  /// @throws InvalidArgument, on every rank, where they name different tensors, or a rank that holds elements has none
  [[nodiscard]] std::vector<SumOperand> agree(ranks::Ranks& ranks, const std::vector<SumOperand>& mine,
                                              const std::string& member) const;

 private:
  void require_same(const std::vector<SumOperand>& by_rank, const std::string& member) const;
  [[nodiscard]] static const void* memory_of(const at::Tensor& tensor);

  const parameters::ParameterStore& parameters_;
  std::unordered_map<const void*, SumOperand> by_impl_, by_memory_;
};

}  // namespace autopar::collectives
