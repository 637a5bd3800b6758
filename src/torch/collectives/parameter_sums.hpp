#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "torch/calls/call_validator.hpp"
#include "torch/collectives/sum_operands.hpp"
#include "torch/deployment/deployment.hpp"
#include "torch/gradients/norm_over_ranks.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/ranks/ranks.hpp"

namespace autopar::collectives {

/// Norms and dot products over what all ranks hold of parameters, and clipping by them. Each is collective: two small
/// messages on the host, one sum. @pre the model is deployed
class ParameterSums {
 public:
  /// @pre what is referred to outlives this
  ParameterSums(ranks::Ranks& ranks, const torch::nn::Module& module, const parameters::ParameterStore& parameters,
                deployment::Deployment& deployment, calls::CallValidator& validator)
      : ranks_(ranks), module_(module), parameters_(parameters), deployment_(deployment), validator_(validator) {}

  /// @param tensors  parameters or gradients of parameters; undefined where this rank has none
  [[nodiscard]] at::Tensor norm(const std::vector<at::Tensor>& tensors, double ord);
  /// Sums of products, element by element, of lists of equal length.
  [[nodiscard]] at::Tensor dot(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);
  /// As torch::nn::utils::clip_grad_norm_.
  [[nodiscard]] at::Tensor clip_grad_norm(const std::vector<at::Tensor>& handles, double max_norm, double norm_type,
                                          bool error_if_nonfinite);

 private:
  [[nodiscard]] at::Tensor norms_of_ranks(const gradients::NormOverRanks& norm);
  void complete_operands(std::vector<SumOperand>& a, std::vector<SumOperand>& b) const;
  void require_layout(const SumOperand& operand, const at::Tensor& tensor) const;

  ranks::Ranks& ranks_;
  const torch::nn::Module& module_;
  const parameters::ParameterStore& parameters_;
  deployment::Deployment& deployment_;
  calls::CallValidator& validator_;
};

}  // namespace autopar::collectives
