#pragma once

#include <vector>

#include <autopar/torch/auto_parallel.hpp>

namespace autopar {

/// Clips the gradients of a part of the model, as torch::nn::utils::clip_grad_norm_ does in one process:
///
///   ap::clip_grad_norm_(model, model->module().encoder->parameters(), 0.05);
///
/// Collective: every rank passes the same handles, also if it holds none of these parameters.
/// @param handles  parameters of one model; a handle that is given twice counts twice and is scaled twice
/// @param norm_type  any positive number, or infinity
/// @return the norm before scaling, over all ranks: 0-dim, equal on all ranks
/// @throws InvalidArgument, on every rank, if a handle is not a parameter of this model or ranks pass different handles
/// @throws InvalidArgument, on every rank, if the norm is not finite and `error_if_nonfinite`; then nothing is scaled
template <class Net, class PlannerType>
at::Tensor clip_grad_norm_(AutoParallel<Net, PlannerType>& model, const std::vector<at::Tensor>& handles,
                           double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false) {
  return model->clip_grad_norm_(handles, max_norm, norm_type, error_if_nonfinite);
}

}  // namespace autopar
