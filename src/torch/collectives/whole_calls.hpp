#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <autopar/torch/session.hpp>

#include "torch/calls/call_validator.hpp"
#include "torch/calls/progress.hpp"
#include "torch/collectives/whole_parameters.hpp"
#include "torch/deployment/deployment.hpp"
#include "torch/interpret/slice.hpp"
#include "torch/parameters/attached_optimizers.hpp"
#include "torch/parameters/parameter_store.hpp"
#include "torch/ranks/ranks.hpp"

namespace autopar::collectives {

/// `for_whole_parameters`: a user's functions on unsharded parameters. Collective. @pre the model is deployed
class WholeCalls {
 public:
  struct Parts {
    ranks::Ranks& ranks;
    const parameters::ParameterStore& parameters;
    const parameters::AttachedOptimizers& optimizers;
    deployment::Deployment& deployment;
    calls::StepWatches& watches;
    calls::CallValidator& validator;
    const calls::Progress& progress;
  };

  /// @pre what is referred to outlives this
  explicit WholeCalls(const Parts& parts) : parts_(parts) {}

  /// See Session::for_whole_parameters.
  void run(const std::vector<at::Tensor>& handles, const std::vector<std::vector<at::Tensor>>& locals,
           const WholeParameters::Function& function, std::size_t written);
  /// On each parameter with its gradient and its state.
  void run(const WholeParameterFunction& function);

 private:
  [[nodiscard]] WholeParameters::Parts parts_with_state(const parameters::ManagedTensor& tensor) const;
  void run_alone(const std::vector<WholeParameters::Parts>& parts, std::size_t written,
                 const WholeParameters::Function& function);
  [[nodiscard]] interpret::RngKey next_draws();

  Parts parts_;
  std::pair<std::int64_t, std::int64_t> last_{};  ///< number of the last call of the model, functions since then
};

}  // namespace autopar::collectives
