#include "torch/autograd/parameter_cast.hpp"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include "capture/ir/tensor_form.hpp"
#include "torch/autograd/sum_type.hpp"
#include "torch/fused/channels_last_copy.hpp"
#include "torch/fused/vectorised_rows.hpp"

namespace autopar::autograd {

namespace {

/// Sequence number of nodes that run as soon as their gradients are computed. Autograd first runs the nodes that were
/// made last, and casts are made first. Without this number all their gradients would wait for the end of the backward.
constexpr std::uint64_t kAtOnce = std::numeric_limits<std::uint64_t>::max();

class CastNode : public torch::autograd::Node {
 public:
  explicit CastNode(const at::Tensor& parameter)
      : Node(torch::autograd::collect_next_edges(parameter)), parameter_(parameter) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    auto gradient = std::move(gradients[0]);
    if (!gradient.defined()) return {gradient};
    return {in_form_of(parameter_, std::move(gradient)).to(parameter_.scalar_type())};
  }
  std::string name() const override { return "CastOfParameterBackward"; }

 private:
  at::Tensor parameter_;  // only its form is used
};

}  // namespace

at::Tensor cast_of(const at::Tensor& parameter, const ValueInfo& form) {
  const auto given = parameter.detach();
  if (ir::is_channels_last(form)) {
    const auto cast = at::empty(given.sizes(), given.options().dtype(form.dtype), at::MemoryFormat::ChannelsLast);
    fused::copy_between_layouts(cast, given);
    return cast;
  }
  if (given.scalar_type() == form.dtype) return given;
  auto cast = fused::empty_in_packs(given, form.dtype);
  cast.copy_(given);
  return cast;
}

at::Tensor with_history_of(const at::Tensor& parameter, const at::Tensor& cast) {
  auto result = cast.detach();
  const bool differentiable = result.is_floating_point() || result.is_complex();
  if (!differentiable || !parameter.requires_grad() || !at::GradMode::is_enabled()) return result;
  const std::shared_ptr<CastNode> node(new CastNode(parameter), torch::autograd::deleteNode);
  node->set_sequence_nr(kAtOnce);
  torch::autograd::set_history(result, node);
  node->mutable_input_metadata(0).set_grad_dtype(std::nullopt);  // gradients may have any type
  return result;
}

at::Tensor in_form_of(const at::Tensor& parameter, at::Tensor gradient) {
  const bool takes = parameter.defined() && sum_type(gradient.scalar_type()) == parameter.scalar_type() &&
                     gradient.layout() == at::kStrided && gradient.sizes() == parameter.sizes();
  if (!takes) return gradient;
  const bool has_type = gradient.scalar_type() == parameter.scalar_type();
  if (has_type && torch::autograd::utils::obeys_layout_contract(gradient, parameter)) return gradient;
  const auto options = gradient.options().dtype(parameter.scalar_type());
  const auto made = parameter.is_non_overlapping_and_dense()
                        ? at::empty_strided(parameter.sizes(), parameter.strides(), options)
                        : at::empty(parameter.sizes(), options);
  fused::copy_between_layouts(made, gradient);
  return made;
}

}  // namespace autopar::autograd
