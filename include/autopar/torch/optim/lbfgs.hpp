#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <autopar/torch/optimizer_descriptor.hpp>

namespace autopar::optim {

using torch::optim::LBFGSOptions;

/// State of L-BFGS for one parameter; all parameters have equal numbers of steps and pairs.
struct LBFGSParamState : public torch::optim::OptimizerCloneableParamState<LBFGSParamState> {
  TORCH_ARG(std::int64_t, step) = 0;                    ///< iterations
  TORCH_ARG(torch::Tensor, gradient);                   ///< at the start of the latest iteration
  TORCH_ARG(torch::Tensor, move);                       ///< change of the parameter in the latest iteration
  TORCH_ARG(std::deque<torch::Tensor>, old_gradients);  ///< differences of gradients, the latest last
  TORCH_ARG(std::deque<torch::Tensor>, old_moves);      ///< changes of the parameter that belong to them

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// L-BFGS over all parameters of a model as one vector, with the options, iterations and line search of
/// torch::optim::LBFGS. Dot products are computed over all ranks in double precision.
///
///   model->attach(opt);
///   opt.step([&] {
///     opt.zero_grad();
///     auto loss = model(x, y);   // or a sum over all batches
///     loss.backward();
///     return loss;
///   });
///
/// Its step is collective and calls the closure equally often on all ranks. The format of torch::save differs from
/// torch::optim::LBFGS's.
/// @source Nocedal and Wright, Numerical Optimization, algorithms 7.4 and 3.5
class LBFGS : public torch::optim::Optimizer, public DescribedOptimizer {
 public:
  /// @throws c10::Error for several groups or options out of range, as torch::optim does
  explicit LBFGS(const std::vector<torch::optim::OptimizerParamGroup>& groups, LBFGSOptions defaults = {});
  explicit LBFGS(std::vector<at::Tensor> parameters, LBFGSOptions defaults = {})
      : LBFGS({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

  [[nodiscard]] const OptimizerDescriptor& descriptor() const override;

  /// @param closure  computes gradients of the loss of all ranks' samples and returns it, equal on every rank
  /// @return the result of the closure's first call
  /// @throws InvalidArgument without a closure, or as SGD::step
  /// @throws InvalidArgument if ranks return different losses, or a later call of the closure makes no gradients
  at::Tensor step(LossClosure closure) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace autopar::optim
