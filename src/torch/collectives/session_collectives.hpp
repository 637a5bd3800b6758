#pragma once

#include <memory>
#include <vector>

#include <autopar/torch/optimizer_descriptor.hpp>
#include <autopar/torch/parameter_collectives.hpp>

#include "torch/deployment/deployment.hpp"
#include "torch/parameters/parameter_store.hpp"

namespace autopar::collectives {

/// What an attached optimizer's step asks of the ranks that hold parts of a model's parameters. Until the model is
/// deployed there are none, and parameters are whole.
class SessionCollectives final : public ParameterCollectives {
 public:
  /// @param descriptor  of the optimizer: what it says that it needs is what it gets
  /// @param parameters  keeps deployment and world alive as well; gone: the optimizer cannot step any more
  SessionCollectives(const OptimizerDescriptor& descriptor,
                     const std::shared_ptr<parameters::ParameterStore>& parameters, deployment::Deployment& deployment,
                     ranks::Ranks& ranks);

  std::vector<std::int64_t> sizes(const at::Tensor& handle) const override;
  at::Tensor sum(const Tensors& handles, const at::Tensor& partial) override;
  at::Tensor norms(const Tensors& handles, const Tensors& tensors, double p) override;
  at::Tensor dot(const Tensors& handles, const Tensors& a, const Tensors& b) override;
  std::vector<double> of_ranks(double mine) override;
  void on_wholes(const Tensors& handles, const std::vector<Tensors>& tensors, const OnWhole& on_whole,
                 const std::vector<Tensors>& kept) override;

 private:
  [[nodiscard]] std::shared_ptr<parameters::ParameterStore> alive(StepNeeds asked) const;
  void share(const std::vector<Tensors>& kept, const std::vector<char>& ran_here) const;
  [[nodiscard]] c10::Device device_for(const Tensors& tensors) const;

  const OptimizerDescriptor& descriptor_;
  std::weak_ptr<parameters::ParameterStore> parameters_;
  deployment::Deployment& deployment_;
  ranks::Ranks& ranks_;
  std::shared_ptr<ParameterCollectives> before_deployment_;
};

}  // namespace autopar::collectives
