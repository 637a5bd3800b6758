#include "torch/interpret/class_head.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include <torch/library.h>

#include <autopar/shard/linear_cross_entropy.hpp>

#include "capture/ir/class_head.hpp"
#include "shard/local_class_head.hpp"
#include "torch/interpret/loss_reduction.hpp"

namespace autopar {

namespace {

using at::Tensor;
using std::optional;

/// Arguments that say which loss it is.
struct LossArguments {
  optional<Tensor> weight;
  std::int64_t reduction, ignore_index;
  double label_smoothing;
};

Tensor class_head(const detail::ClassHeadFactors& factors, const Tensor& target, const Group& group,
                  const Split& classes, const LossArguments& arguments) {
  auto loss = ParallelCrossEntropyOptions()
                  .reduction(loss_reduction(arguments.reduction))
                  .ignore_index(arguments.ignore_index)
                  .label_smoothing(arguments.label_smoothing)
                  .check_targets(factors.features.is_cpu());
  if (arguments.weight.has_value()) loss.weight(*arguments.weight);
  const double logits = static_cast<double>(factors.features.size(0)) * static_cast<double>(factors.weight.size(0));
  const double chunk = std::max(kLeastClassHeadChunk, std::ceil(logits / kMostClassHeadChunks));
  return detail::local_class_head(factors, target, group, classes,
                                  LinearCrossEntropyOptions(loss).chunk_elements(static_cast<std::int64_t>(chunk)));
}

Tensor class_head_in_one_process(const Tensor& features, const Tensor& projection, const optional<Tensor>& bias,
                                 const Tensor& target, const optional<Tensor>& weight, std::int64_t reduction,
                                 std::int64_t ignore_index, double label_smoothing) {
  return class_head({features, projection, bias.value_or(Tensor())}, target, Group(), Split({projection.size(0)}),
                    {weight, reduction, ignore_index, label_smoothing});
}

optional<Tensor> optional_tensor(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : optional<Tensor>(value.toTensor());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(autopar, library) {
  library.def(
      "linear_cross_entropy(Tensor features, Tensor projection, Tensor? projection_bias, Tensor target, Tensor? "
      "weight, int reduction, int ignore_index, float label_smoothing) -> Tensor",
      class_head_in_one_process);
}

Tensor class_head_of_shard(const torch::jit::Stack& stack, const Group& group, const Split& classes) {
  using Argument = ClassHeadArgument;
  const auto bias = optional_tensor(stack[Argument::kProjectionBias]).value_or(Tensor());
  return class_head({stack[Argument::kFeatures].toTensor(), stack[Argument::kProjection].toTensor(), bias},
                    stack[Argument::kTarget].toTensor(), group, classes,
                    {optional_tensor(stack[Argument::kWeight]), stack[Argument::kReduction].toInt(),
                     stack[Argument::kIgnoreIndex].toInt(), stack[Argument::kLabelSmoothing].toDouble()});
}

}  // namespace autopar
