#pragma once

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <autopar/torch/multi_tensor_optimizer.hpp>
#include <autopar/torch/optimizer_descriptor.hpp>

namespace autopar::optim {

struct LAMBOptions : public torch::optim::OptimizerCloneableOptions<LAMBOptions> {
  LAMBOptions(double lr = 1e-3);
  TORCH_ARG(double, lr) = 1e-3;
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 1e-2;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  friend bool operator==(const LAMBOptions& a, const LAMBOptions& b);
  double get_lr() const override;
  void set_lr(const double lr) override;
};

struct LAMBParamState : public torch::optim::OptimizerCloneableParamState<LAMBParamState> {
  TORCH_ARG(std::int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, exp_avg);
  TORCH_ARG(torch::Tensor, exp_avg_sq);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// LAMB: Adam with decoupled weight decay and a trust ratio for each parameter. r = m / (sqrt(v) + eps) is Adam's
/// direction, with bias-corrected m and v. Parameter x moves by lr * |x| along the unit vector of u = r + decay * x. If
/// |x| or |u| is zero, it moves by lr * u. Norms are computed in double precision.
///
/// If ranks hold shards of parameters, its step is collective: all ranks step together.
/// @source You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2 with phi(z) = z
class LAMB : public torch::optim::Optimizer, public DescribedOptimizer, public MultiTensorOptimizer {
 public:
  /// @throws c10::Error for options out of range, as torch::optim does
  explicit LAMB(const std::vector<torch::optim::OptimizerParamGroup>& groups, LAMBOptions defaults = {});
  explicit LAMB(std::vector<at::Tensor> parameters, LAMBOptions defaults = {})
      : LAMB({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

  [[nodiscard]] const OptimizerDescriptor& descriptor() const override;

  /// @throws InvalidArgument as SGD::step
  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace autopar::optim
