#include "capture/ir/tensor_form.hpp"
#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

/// A convolution with separate weights for each sample. Samples are blocks of channels, and each block consists of some
/// groups. Example: x.view({1, B * C, H, W}) with weights [B * O, C, h, w] and groups = B.
std::optional<BatchTyping> by_groups(const OpCall& op) {
  if (!op.has("groups")) return std::nullopt;
  const auto input = op.first_tensor(), weight = op.tensor("weight"), bias = op.tensor("bias");
  const auto groups = op.expression("groups");
  const auto is_major = [&](ValueId value, std::int64_t dim) {  // a block of neighbours for each sample
    const auto& type = op.type(value);
    return type.is_batched() && type.dim == dim && type.outer == 1;
  };
  const bool fits = groups && groups->fixed == 0 && groups->per_sample > 0 && op.rank(input) == op.rank(weight) &&
                    is_major(input, 1) && is_major(weight, 0) && (!bias.valid() || is_major(bias, 0));
  if (!fits) return std::nullopt;
  return typed(op, BatchType::batched(1, 1, op.result_sizes()[1].per_sample));
}

BatchTyping convolution(const OpCall& op) {
  if (auto found = by_groups(op)) return *found;
  const auto images = op.first_tensor();
  if (op.has("weight") && op.rank(images) < op.rank(op.tensor("weight")))
    return BatchTyping::mixes("its samples are not in dim 0");
  static const auto in_front = samples_first(1);
  return in_front(op);
}

std::optional<Affine> flops_of_convolution(const OpCall& op) {
  const auto& weight = op.sizes(op.tensor("weight"));
  const bool transposed = op.base_name().starts_with("conv_transpose") || op.flag("transposed", false);
  const auto moved = elements(transposed ? op.sizes(op.first_tensor()) : op.result_sizes());
  return moved * (2 * elements_at({weight.begin() + 1, weight.end()}, 1));
}

SavedBytes saved_by_convolution(const OpCall& op) {
  SavedBytes saved{{op.first_tensor()}, {}};
  if (const auto weight = op.tensor("weight"); weight.valid()) saved.values.push_back(weight);
  return saved;
}

// Kernels copy their operands and results into other layouts. On CUDA in 16 bits they copy only weights, if images are
// channels-last already. In single precision an H200 held a layer's activations in addition to that.
OpWorkspace workspace_of_convolution(const OpCall& op) {
  Affine copies;
  const auto result = op.results().front();
  const auto& form = op.graph().value(result);
  const bool as_it_is = op.on_cuda() && ir::is_channels_last(form) && c10::isReducedFloatingType(form.dtype);
  for (const auto value : op.tensors()) {
    if (!as_it_is || !op.type(value).has_samples()) copies += bytes_of(op.graph(), value);
  }
  // Memory of cuDNN: an H100 held 44 MiB more for layers of 64 channels and half a million pixels.
  constexpr double kOfKernels = 64 << 20;
  copies += as_it_is ? Affine{0, kOfKernels} : bytes_of(op.graph(), result);
  return {copies, copies};
}

}  // namespace

void add_convolutions(OpList& list) {
  OpDef def;
  def.op_class = OpClass::kConvolution;
  def.traits = OpTrait::kTakesBatchSizes;
  def.over_samples = convolution;
  def.flops = flops_of_convolution;
  def.saved = SavedTensors::kInput;
  def.saved_by = saved_by_convolution;
  def.workspace = workspace_of_convolution;
  def.treatment = kPerSample;
  def.summary = "samples are dim 0 (convolutions: or groups of channels); mixes else";
  list.add(def,
           {"conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"});
}

}  // namespace autopar::ops
