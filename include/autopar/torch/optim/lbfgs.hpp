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

/// What L-BFGS keeps of one parameter; all parameters have as many steps and pairs.
struct LBFGSParamState : public torch::optim::OptimizerCloneableParamState<LBFGSParamState> {
  TORCH_ARG(std::int64_t, step) = 0;                    ///< iterations
  TORCH_ARG(torch::Tensor, gradient);                   ///< where the latest iteration began
  TORCH_ARG(torch::Tensor, move);                       ///< of the latest iteration
  TORCH_ARG(std::deque<torch::Tensor>, old_gradients);  ///< differences of gradients, the latest last
  TORCH_ARG(std::deque<torch::Tensor>, old_moves);      ///< that belong to them

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// L-BFGS over all parameters of a model as one vector, with the options, iterations and line search of
/// torch::optim::LBFGS. Dot products are taken over all ranks in double precision. Source: Nocedal and Wright,
/// Numerical Optimization, algorithms 7.4 and 3.5.
///
///   model->attach(opt);
///   opt.step([&] {
///     opt.zero_grad();
///     auto loss = model(x, y);   // or a sum over all batches
///     loss.backward();
///     return loss;
///   });
///
/// Its step is collective, and calls the closure equally often on all ranks. Its files of torch::save have another form
/// than torch::optim::LBFGS's.
class LBFGS : public torch::optim::Optimizer, public DescribedOptimizer {
 public:
  /// @throws c10::Error for several groups or options out of range, as torch::optim does
  explicit LBFGS(const std::vector<torch::optim::OptimizerParamGroup>& groups, LBFGSOptions defaults = {});
  explicit LBFGS(std::vector<at::Tensor> parameters, LBFGSOptions defaults = {})
      : LBFGS({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

  [[nodiscard]] const OptimizerDescriptor& descriptor() const override;

  /// @param closure  makes gradients of the loss of all ranks' samples, and returns it: the same on every rank
  /// @return what the first call of the closure returned
  /// @throws InvalidArgument without a closure, as SGD::step, where ranks return unlike losses, or
  ///         where a later call of the closure makes no gradients
  at::Tensor step(LossClosure closure) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace autopar::optim
