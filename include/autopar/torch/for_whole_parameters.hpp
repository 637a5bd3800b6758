#pragma once

#include <autopar/torch/auto_parallel.hpp>

namespace autopar {

/// Calls `function(name, value, grad, states)` once for each parameter, with unsharded tensors. Use it for norms,
/// normalised rows, trust ratios and other uses of a parameter that are not element-wise.
///
///   ap::for_whole_parameters(model, [](const std::string& name, auto& w, auto&, auto&) {
///     if (w.dim() == 2) w.copy_(torch::nn::functional::normalize(w, F::NormalizeFuncOptions().dim(1)));
///   });
///
/// Parameters come in the order of named_parameters(), tied parameters once, by their first name. The function runs for
/// each on one of the ranks that hold it; the work is spread by size. `grad` is undefined if the parameter has none.
/// `states` are the states of the attached optimizers. What the function writes or assigns to value, gradient and
/// states reaches all ranks that hold the parameter. Counters ("step") are read-only.
///
/// Random numbers from the default generators depend on rank 0's seed, the number of calls and the parameter. They are
/// thus the same under every plan, and the ranks' generators are restored afterwards. Memory: at most twice the largest
/// parameter with its gradient and states.
///
/// If the function throws, all ranks throw and this parameter is unchanged; earlier ones may be updated. The function
/// must not call collective members of the model. Collective, between a backward and the next call.
///
/// @throws InvalidArgument, on every rank, before deployment: call the model or prepare(arguments...) first
/// @throws InvalidArgument, on every rank, if the function adds, removes or resizes a gradient or state, or changes an
/// element type
template <class Net, class PlannerType>
void for_whole_parameters(AutoParallel<Net, PlannerType>& model, const WholeParameterFunction& function) {
  model->for_whole_parameters(function);
}

}  // namespace autopar
