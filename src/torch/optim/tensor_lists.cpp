#include "torch/optim/tensor_lists.hpp"

#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/ScalarType.h>

#include <autopar/core/error.hpp>

#include "capture/ir/tensor_form.hpp"
#include "torch/parameters/part_mark.hpp"

namespace autopar::optim::detail {

ListKey key_of(const at::Tensor& parameter, std::int64_t steps) {
  const auto device = parameter.device();
  return {device.type(), device.index(), parameter.scalar_type(), steps};
}

at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure == nullptr) return {};
  const at::AutoGradMode gradients(true);
  return closure();
}

void require_dense_real(const torch::optim::Optimizer& parameters, const char* optimizer) {
  for (const auto& group : parameters.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      if (parameter.grad().layout() != at::kStrided) {
        throw InvalidArgument(std::string("autopar::optim::") + optimizer +
                              " takes dense gradients, but one is sparse; construct embeddings without sparse(true)");
      }
      if (!at::isFloatingType(parameter.scalar_type())) {
        throw InvalidArgument(std::string("autopar::optim::") + optimizer +
                              " takes real floating point parameters, but one is " +
                              at::toString(parameter.scalar_type()) + "; give it to an optimizer of torch::optim");
      }
    }
  }
}

// libtorch gives weights of 1 x 1 convolutions and their gradients different strides in dims of size one.
at::Tensor laid_out_like(const at::Tensor& tensor, const at::Tensor& like) {
  const bool lies_so = tensor.sizes() == like.sizes() && ir::has_strides(tensor, like.strides());
  if (tensor.scalar_type() == like.scalar_type() && lies_so) {
    return tensor.strides() == like.strides() ? tensor : tensor.as_strided(like.sizes(), like.strides());
  }
  return at::empty_like(like).copy_(tensor);
}

const at::Tensor& state_like(at::Tensor& state, const at::Tensor& like) {
  state = state.defined() ? laid_out_like(state, like) : at::zeros_like(like);
  parameters::mark_like(state, like);
  return state;
}

at::Tensor ContiguousParameters::of(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter;
  copies_.emplace_back(parameter, at::empty_like(parameter).copy_(parameter));
  return copies_.back().second;
}

void ContiguousParameters::write_back() const {
  for (const auto& [parameter, copy] : copies_) parameter.copy_(copy);
}

}  // namespace autopar::optim::detail
