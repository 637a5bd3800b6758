#include "torch/fused/fused_ops.hpp"

#include <mutex>

#include "capture/ir/tensor_form.hpp"
#include "ops/registry.hpp"
#include "ops/rules.hpp"
#include "torch/fused/launch.hpp"

namespace autopar {

c10::OperatorHandle fused_operator(std::string_view name) {
  static std::once_flag defined;
  std::call_once(defined, [] {
    for (const auto definition :
         {detail::add_layer_norm_definition, detail::batch_norm_relu_definition, detail::class_head_definition,
          detail::class_loss_definition, detail::joined_pointwise_definition, detail::max_pool_definition}) {
      ops::define_fused(definition());
    }
  });
  return ops::operator_named(name);
}

namespace detail {

bool takes_images_in_packs(const OpCall& op) {
  if (!op.on_cuda()) return false;
  const auto& images = op.graph().value(op.first_tensor());
  const bool has_type = images.dtype == at::kFloat || c10::isReducedFloatingType(images.dtype);
  return has_type && is_channels_last(images) &&
         images.sizes[1].fixed * size_of(ops::dtype_of(images.dtype)).value() % kPackBytes == 0;
}

}  // namespace detail

}  // namespace autopar
