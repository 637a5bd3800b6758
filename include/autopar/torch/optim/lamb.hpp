#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

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

/// LAMB (You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2, with phi(z) = z): Adam's direction
/// r = m / (sqrt(v) + eps), both without bias, plus decoupled decay; each parameter goes lr * |x| / |r + decay * x| along
/// it, and lr where one of the norms is zero. Norms are taken in double precision.
class LAMB : public torch::optim::Optimizer {
 public:
  /// Sums over the ranks that hold parts of parameters, where a rank's parameters are shards of whole ones.
  ///
  /// Called once a step on every rank, with all parameters of the optimizer in the order of its groups, phantoms
  /// included. `squares[i]`: the sums of squares of this rank's part of parameter i and of its direction, zero where
  /// it has no gradient. Returns them for whole parameters: doubles, [parameters, 2] like `squares`, on any device.
  using SumOverShards =
      std::function<at::Tensor(const std::vector<at::Tensor>& parameters, const at::Tensor& squares)>;

  /// @throws c10::Error for options out of range, as torch::optim does
  explicit LAMB(const std::vector<torch::optim::OptimizerParamGroup>& groups, LAMBOptions defaults = {});
  explicit LAMB(std::vector<at::Tensor> parameters, LAMBOptions defaults = {})
      : LAMB({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

  /// Makes step() collective over the ranks that `sum` sums over; null = parameters are whole (the default).
  void set_sum_over_shards(SumOverShards sum) { sum_over_shards_ = std::move(sum); }

  /// @throws InvalidArgument as SGD::step
  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  SumOverShards sum_over_shards_;
};

}  // namespace autopar::optim
