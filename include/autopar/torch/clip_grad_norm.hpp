#pragma once

#include <vector>

#include <autopar/torch/auto_parallel.hpp>

namespace autopar {

/// Clips the gradients of a part of the model, as torch::nn::utils::clip_grad_norm_ does in one process:
///
///   ap::clip_grad_norm_(model, model->module().encoder->parameters(), 0.05);
///
/// Collective: every rank passes the same handles, also where it holds nothing of them.
/// @param handles  of one model; one that is given twice counts twice, and its gradient is scaled twice
/// @param norm_type  any positive number, or infinity
/// @return the norm before, over all ranks: 0-dim, equal on all ranks
/// @throws InvalidArgument, on every rank: if a handle is no parameter of this model; if the ranks pass different ones;
///         if the norm is not finite and `error_if_nonfinite`. Then nothing is scaled.
template <class Net, class PlannerType>
at::Tensor clip_grad_norm_(AutoParallel<Net, PlannerType>& model, const std::vector<at::Tensor>& handles,
                           double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false) {
  return model->clip_grad_norm_(handles, max_norm, norm_type, error_if_nonfinite);
}

}  // namespace autopar
