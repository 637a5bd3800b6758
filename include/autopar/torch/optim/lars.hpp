#pragma once

#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <autopar/torch/multi_tensor_optimizer.hpp>
#include <autopar/torch/optimizer_descriptor.hpp>

namespace autopar::optim {

struct LARSOptions : public torch::optim::OptimizerCloneableOptions<LARSOptions> {
  LARSOptions(double lr = 0.1);
  TORCH_ARG(double, lr) = 0.1;
  TORCH_ARG(double, momentum) = 0.9;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(double, trust_coefficient) = 1e-3;
  TORCH_ARG(double, eps) = 1e-8;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  friend bool operator==(const LARSOptions& a, const LARSOptions& b);
  double get_lr() const override;
  void set_lr(const double lr) override;
};

struct LARSParamState : public torch::optim::OptimizerCloneableParamState<LARSParamState> {
  TORCH_ARG(torch::Tensor, momentum_buffer);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// LARS: SGD with momentum and a trust ratio for each parameter x with gradient g:
///
///   trust = trust_coefficient * |x| / (|g| + weight_decay * |x| + eps), or 1 if |x| or |g| is zero
///   v = momentum * v + lr * trust * (g + weight_decay * x)
///   x = x - v
///
/// Norms are computed in double precision. Biases and parameters of norms are usually given to ap::optim::SGD instead,
/// which has no trust ratio.
///
/// If ranks hold parts of parameters, its step is collective: all ranks step together.
/// @source You et al. 2017, "Large Batch Training of Convolutional Networks", algorithm 1
class LARS : public torch::optim::Optimizer, public DescribedOptimizer, public MultiTensorOptimizer {
 public:
  /// @throws c10::Error for options out of range, as torch::optim does
  explicit LARS(const std::vector<torch::optim::OptimizerParamGroup>& groups, LARSOptions defaults = {});
  explicit LARS(std::vector<at::Tensor> parameters, LARSOptions defaults = {})
      : LARS({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

  [[nodiscard]] const OptimizerDescriptor& descriptor() const override;

  /// @throws InvalidArgument as SGD::step
  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace autopar::optim
