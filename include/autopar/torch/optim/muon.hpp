#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <autopar/torch/optimizer_descriptor.hpp>

namespace autopar::optim {

struct MuonOptions : public torch::optim::OptimizerCloneableOptions<MuonOptions> {
  MuonOptions(double lr = 0.02);
  TORCH_ARG(double, lr) = 0.02;
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(std::int64_t, iterations) = 5;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  friend bool operator==(const MuonOptions& a, const MuonOptions& b);
  double get_lr() const override;
  void set_lr(const double lr) override;
};

struct MuonParamState : public torch::optim::OptimizerCloneableParamState<MuonParamState> {
  TORCH_ARG(torch::Tensor, momentum_buffer);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Muon for matrices x with gradient g:
///
///   v = momentum * v + g
///   u = nesterov ? g + momentum * v : v
///   x = x - lr * weight_decay * x
///   x = x - lr * sqrt(max(1, rows / columns)) * orthogonalised(u)
///
/// `iterations` is the number of quintic Newton-Schulz iterations, at least in float32. In a tensor of more dims, the
/// first dim is rows and all others are columns.
///
/// Give it the weights of hidden layers. Biases, norms, embeddings and the last layer need a second optimizer, such as
/// ap::optim::AdamW; a model takes several. If ranks hold parts of parameters, its step is collective. Each matrix is
/// then assembled and orthogonalised on one rank.
/// @source Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"
class Muon : public torch::optim::Optimizer, public DescribedOptimizer {
 public:
  /// @throws c10::Error for options out of range, as torch::optim does
  explicit Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups, MuonOptions defaults = {});
  explicit Muon(std::vector<at::Tensor> parameters, MuonOptions defaults = {})
      : Muon({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

  [[nodiscard]] const OptimizerDescriptor& descriptor() const override;

  /// @throws InvalidArgument as SGD::step, and on all ranks if a parameter has fewer than two dims
  at::Tensor step(LossClosure closure = nullptr) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

/// Orthogonalises a matrix: about U * V^T of its singular value decomposition U * S * V^T.
/// @param matrix  two dims
/// @return a matrix with the same element type
[[nodiscard]] at::Tensor orthogonalised(const at::Tensor& matrix, std::int64_t iterations = 5);

}  // namespace autopar::optim
