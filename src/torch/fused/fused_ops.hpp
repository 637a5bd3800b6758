#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include <autopar/capture/op_def.hpp>

#include "torch/fused/fused_op.hpp"

namespace autopar::fused {

// No program is captured with these operators; passes put them there.

/// add_layer_norm(input, residual, normalized_shape, weight?, bias?, eps, cudnn_enable, p, seed?): the sum of two
/// tensors of the same sizes and its layer norm over the last dim, as two results. Where p is not 0, elements of the
/// input are dropped before, as aten::dropout does in training, by the draws of the seed (a DrawSeed as a tensor);
/// without a seed by those of the default generator.
inline constexpr std::string_view kAddLayerNorm = "autopar::add_layer_norm";
[[nodiscard]] FusedOp add_layer_norm();

/// relu(batch_norm(…) + residual) in training mode; the residual, ReLU or both may be missing. Its first arguments are
/// those of aten::batch_norm. Its result comes twice (`OpTrait::kDuplicatedOutputs`); graphs name the first.
inline constexpr std::string_view kBatchNormRelu = "autopar::batch_norm_relu";
[[nodiscard]] FusedOp batch_norm_relu();

/// aten::cross_entropy_loss(to(float) of the logits, …) of class indices, without label smoothing: logits [N, C] in 16
/// bits or in single precision, the loss in single precision. Kernels need no logits in single precision.
inline constexpr std::string_view kCrossEntropy = "autopar::cross_entropy_loss";
[[nodiscard]] FusedOp cross_entropy_loss();

/// Fused linear cross entropy, whose logits are made in chunks: linear_cross_entropy(features [N, D], projection [C,
/// D], projection_bias [C]?, target [N], weight [C]?, reduction, ignore_index, label_smoothing).
inline constexpr std::string_view kLinearCrossEntropy = "autopar::linear_cross_entropy";
[[nodiscard]] FusedOp linear_cross_entropy();

/// Max-pooling of images that keeps the position of each maximum within its window in a byte, not in an int64 index.
/// Its arguments are those of aten::max_pool2d; its result comes twice (`OpTrait::kDuplicatedOutputs`).
inline constexpr std::string_view kMaxPool = "autopar::max_pool2d";
[[nodiscard]] FusedOp max_pool2d();

/// pointwise(inputs, program): operators that treat each element by itself, joined. Gives the results that the text of
/// the program names (pointwise/program.hpp), of the sizes that the inputs broadcast to.
inline constexpr std::string_view kJoinedPointwise = "autopar::pointwise";
[[nodiscard]] FusedOp joined_pointwise();

/// All of them.
[[nodiscard]] const std::vector<FusedOp>& fused_ops();

/// Makes all of them known to libtorch's dispatcher and to ops/registry.hpp; again: no effect. Who calls or looks up
/// one of them by its name does so first.
void register_fused_ops();

/// One of them, registered.
[[nodiscard]] c10::OperatorHandle fused_operator(std::string_view name);

namespace detail {

/// Whether kernels of the library's own take what the operator reads: channels-last images, channels in packs.
[[nodiscard]] bool takes_images_in_packs(const OpCall& op);

}  // namespace detail

}  // namespace autopar::fused
