#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/convert_parameters.h>

namespace autopar {

/// The handles of a distributed model's parameters: a vector of tensors for optimizers and loops. Norms that libtorch
/// computes over it are norms over the whole model, not over this rank's part.
class ParameterHandles : public std::vector<at::Tensor> {
 public:
  using Clip = std::function<at::Tensor(const std::vector<at::Tensor>& handles, double max_norm, double norm_type,
                                        bool error_if_nonfinite)>;

  ParameterHandles(std::vector<at::Tensor> handles, Clip clip)
      : std::vector<at::Tensor>(std::move(handles)), clip_(std::move(clip)) {}

  /// Collective.
  [[nodiscard]] at::Tensor clip(double max_norm, double norm_type, bool error_if_nonfinite) const {
    return clip_(*this, max_norm, norm_type, error_if_nonfinite);
  }

 private:
  Clip clip_;
};

namespace detail {

/// @throws InvalidArgument if the parameter of a handle, and thus its gradient, lies on another rank
void require_clippable(const std::vector<at::Tensor>& handles);

}  // namespace detail
}  // namespace autopar

namespace torch::nn::utils {

/// Clips the gradients of the whole model, as model->clip_grad_norm_ does. Collective. For a part of the model, use
/// autopar::clip_grad_norm_.
inline double clip_grad_norm_(const autopar::ParameterHandles& parameters, double max_norm, double norm_type = 2.0,
                              bool error_if_nonfinite = false) {
  return parameters.clip(max_norm, norm_type, error_if_nonfinite).item<double>();
}

/// libtorch's clip_grad_norm_ on the gradients of this rank. Not collective. A const vector bypasses this check.
/// @throws InvalidArgument if a parameter lies on another rank: its gradient would be missing from the norm
inline double clip_grad_norm_(std::vector<Tensor>& parameters, double max_norm, double norm_type = 2.0,
                              bool error_if_nonfinite = false) {
  autopar::detail::require_clippable(parameters);
  return clip_grad_norm_(std::as_const(parameters), max_norm, norm_type, error_if_nonfinite);
}
inline double clip_grad_norm_(std::vector<Tensor>&& parameters, double max_norm, double norm_type = 2.0,
                              bool error_if_nonfinite = false) {
  return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite);
}

/// Deleted because no rank has all parameters: use model->gather_state() or model->owned_parameters().
Tensor parameters_to_vector(const autopar::ParameterHandles& parameters) = delete;
void vector_to_parameters(const Tensor& vec, const autopar::ParameterHandles& parameters) = delete;

}  // namespace torch::nn::utils
