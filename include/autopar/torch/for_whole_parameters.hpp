#pragma once

#include <autopar/torch/auto_parallel.hpp>

namespace autopar {

/// Calls `function(name, value, grad, states)` once for each parameter, with whole tensors, whatever parts ranks hold:
/// for norms, normalised rows, trust ratios and all else that is no element-wise use of a parameter.
///
///   ap::for_whole_parameters(model, [](const std::string& name, auto& w, auto&, auto&) {
///     if (w.dim() == 2) w.copy_(torch::nn::functional::normalize(w, F::NormalizeFuncOptions().dim(1)));
///   });
///
/// Parameters come in the order of named_parameters(), each on exactly one of the ranks that hold it, spread by size;
/// tied ones once, by their first name. `grad` is undefined where the parameter has none. `states` are those of the
/// attached optimizers. What the function writes to value, gradient and states, or puts in their place, goes to all
/// ranks that hold the parameter. Counters ("step") are there to be read. What it draws from the default generators
/// follows from rank 0's seed, the calls of the model and the parameter, so it is the same under every plan; the
/// generators of the ranks are as they were afterwards. A rank's memory holds at most the largest parameter with
/// gradient and states twice more.
///
/// Where the function throws, all ranks throw, and this parameter is as it was; of those before it some may be new.
/// It must not call members of the model, which need all ranks. Collective, between a backward and the next call.
///
/// @throws InvalidArgument on every rank: before deployment (call the model or prepare(arguments...) first); where the
///         function adds, removes or resizes a gradient or state, or changes an element type
template <class Net, class PlannerType>
void for_whole_parameters(AutoParallel<Net, PlannerType>& model, const WholeParameterFunction& function) {
  model->for_whole_parameters(function);
}

}  // namespace autopar
