#include "torch/fused/fused_ops.hpp"

#include <optional>

#include "capture/ir/tensor_form.hpp"
#include "ops/registry.hpp"
#include "ops/rules.hpp"
#include "torch/fused/launch.hpp"

namespace autopar::fused {

const std::vector<FusedOp>& fused_ops() {
  static const std::vector<FusedOp> all{add_layer_norm(),       batch_norm_relu(), cross_entropy_loss(),
                                        linear_cross_entropy(), max_pool2d(),      joined_pointwise()};
  return all;
}

void register_fused_ops() {
  static const auto registered = [] {
    torch::Library library(torch::Library::FRAGMENT, "autopar", std::nullopt, __FILE__, __LINE__);
    for (const auto& op : fused_ops()) {
      library.def(op.schema, op.forward());
      ops::define_fused(op.cost());
    }
    return library;
  }();
  static_cast<void>(registered);
}

c10::OperatorHandle fused_operator(std::string_view name) {
  register_fused_ops();
  return ops::operator_named(name);
}

namespace detail {

bool takes_images_in_packs(const OpCall& op) {
  if (!op.on_cuda()) return false;
  const auto& images = op.graph().value(op.first_tensor());
  const bool has_type = images.dtype == at::kFloat || c10::isReducedFloatingType(images.dtype);
  return has_type && ir::is_channels_last(images) &&
         images.sizes[1].fixed * size_of(ops::dtype_of(images.dtype)).value() % kPackBytes == 0;
}

}  // namespace detail

}  // namespace autopar::fused
