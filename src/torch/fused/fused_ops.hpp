#pragma once

#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>

#include <autopar/capture/op_def.hpp>

namespace autopar {

/// One of the library's fused operators, which passes put into programs; makes its definition known (ops/registry.hpp).
[[nodiscard]] c10::OperatorHandle fused_operator(std::string_view name);

namespace detail {

// Definitions, each beside its operator.
[[nodiscard]] OpDef add_layer_norm_definition();
[[nodiscard]] OpDef batch_norm_relu_definition();
[[nodiscard]] OpDef class_head_definition();
[[nodiscard]] OpDef class_loss_definition();
[[nodiscard]] OpDef joined_pointwise_definition();
[[nodiscard]] OpDef max_pool_definition();

/// Whether kernels of the library's own take what the operator reads: channels-last images, channels in packs.
[[nodiscard]] bool takes_images_in_packs(const OpCall& op);

}  // namespace detail

}  // namespace autopar
