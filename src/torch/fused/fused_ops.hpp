#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include <autopar/capture/op_def.hpp>

#include "torch/fused/fused_op.hpp"

namespace autopar::fused {

// Captured programs do not contain these operators; passes insert them.

/// add_layer_norm(input, residual, normalized_shape, weight?, bias?, eps, cudnn_enable, p, seed?). Its two results are
/// the sum of two tensors of the same sizes, and its layer norm over the last dim. If p is not 0, elements of the input
/// are dropped first, as aten::dropout does in training. The Philox seed is `seed` (a PhiloxSeed as a tensor); without
/// it the default generator draws.
inline constexpr std::string_view kAddLayerNorm = "autopar::add_layer_norm";
[[nodiscard]] FusedOp add_layer_norm();

/// relu(batch_norm(…) + residual) in training mode; the residual, ReLU or both may be missing. The first arguments are
/// the ones of aten::batch_norm. The result is returned twice (`OpTrait::kDuplicatedOutputs`); graphs name the first.
inline constexpr std::string_view kBatchNormRelu = "autopar::batch_norm_relu";
[[nodiscard]] FusedOp batch_norm_relu();

/// aten::cross_entropy_loss(to(float) of the logits, …) of class indices, without label smoothing. The logits [N, C]
/// are in 16 bits or single precision, the loss in single precision. Kernels need no logits in single precision.
inline constexpr std::string_view kCrossEntropy = "autopar::cross_entropy_loss";
[[nodiscard]] FusedOp cross_entropy_loss();

/// Fused linear cross entropy with chunked logits: linear_cross_entropy(features [N, D], projection [C, D],
/// projection_bias [C]?, target [N], weight [C]?, reduction, ignore_index, label_smoothing).
inline constexpr std::string_view kLinearCrossEntropy = "autopar::linear_cross_entropy";
[[nodiscard]] FusedOp linear_cross_entropy();

/// Max-pooling of images that saves the position of each maximum within its window in a byte, not in an int64 index.
/// Its arguments are the ones of aten::max_pool2d. The result is returned twice (`OpTrait::kDuplicatedOutputs`).
inline constexpr std::string_view kMaxPool = "autopar::max_pool2d";
[[nodiscard]] FusedOp max_pool2d();

/// pointwise(inputs, program): joined element-wise operators. The text of the program names the results
/// (pointwise/program.hpp). Their sizes are the broadcast sizes of the inputs.
inline constexpr std::string_view kJoinedPointwise = "autopar::pointwise";
[[nodiscard]] FusedOp joined_pointwise();

/// All fused operators.
[[nodiscard]] const std::vector<FusedOp>& fused_ops();

/// Registers all fused operators with libtorch's dispatcher and ops/registry.hpp; later calls have no effect. Call it
/// before calling or looking up one of them by name.
void register_fused_ops();

/// A fused operator by name, registered.
[[nodiscard]] c10::OperatorHandle fused_operator(std::string_view name);

namespace detail {

/// Whether the library's kernels support the operator's input: channels-last images with channels in whole packs.
[[nodiscard]] bool takes_images_in_packs(const OpCall& op);

}  // namespace detail

}  // namespace autopar::fused
