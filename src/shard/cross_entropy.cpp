#include <autopar/shard/cross_entropy.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <torch/nn/functional/loss.h>

#include <autopar/core/error.hpp>

#include "shard/class_targets.hpp"
#include "shard/kept.hpp"
#include "shard/margin_logit.hpp"
#include "shard/softmax_block.hpp"

namespace autopar {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What the backward needs beside tensors.
struct Loss {
  detail::ClassShards shards;
  bool overwrites = false;  ///< the logits
  bool overwritten = false;
};

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  /// @param logits [N, this rank's classes]
  static Tensor forward(AutogradContext* context, const Tensor& logits, const Tensor& index, Loss loss) {
    const auto& shards = loss.shards;
    const auto targets = detail::targets_of(index, shards);
    auto statistics = detail::block_statistics(logits, shards.first(), targets, shards.loss);
    const auto own_log_sums = statistics[0].clone();
    statistics = detail::over_group(statistics, targets, shards);
    auto losses = detail::checked_losses(statistics, targets, shards);
    context->save_for_backward({logits, index, own_log_sums, detail::log_sum_exp(statistics)});
    detail::keep(*context, std::move(loss));
    return losses;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    detail::refuse_double_backward("cross-entropy");
    auto& loss = detail::kept<Loss>(*context);
    if (loss.overwritten) {
      throw InvalidArgument(
          "cross-entropy: a second backward, but the first has written the gradient over the logits; "
          "set in_place(false)");
    }
    const auto saved = context->get_saved_variables();
    const auto& logits = saved[0];
    const auto targets = detail::targets_of(saved[1], loss.shards);
    auto result = loss.overwrites ? logits.detach() : at::empty_like(logits);
    detail::block_gradient(logits, loss.shards.first(), targets, loss.shards.loss, saved[2], saved[3], gradients[0],
                           result);
    loss.overwritten = loss.overwrites;
    return {result, Tensor(), Tensor()};
  }
};

/// A leaf is the user's own, and so is what a view of it shows.
bool may_overwrite(const Tensor& logits) {
  const auto& owner = logits.is_view() ? logits._base() : logits;
  return !owner.is_leaf() && logits.is_non_overlapping_and_dense();
}

/// [N, classes] of [C], [N, C] or [N, C, …].
Tensor as_rows(const Tensor& logits) {
  if (logits.dim() == 1) return logits.unsqueeze(0);
  if (logits.dim() == 2) return logits;
  return logits.movedim(1, -1).flatten(0, -2);
}

void require_shapes(const Placed& logits, const Tensor& target) {
  if (c10::isFloatingType(target.scalar_type())) {
    throw InvalidArgument(
        "cross-entropy: targets must be indices of classes (int64), not probabilities, where classes are sharded");
  }
  auto wanted = logits.sizes();
  if (!wanted.empty()) wanted.erase(wanted.begin() + (wanted.size() > 1 ? 1 : 0));
  if (!wanted.empty() ? target.sizes() == at::IntArrayRef(wanted) : target.dim() == 0) return;
  std::string sizes;
  for (const auto size : target.sizes()) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  throw InvalidArgument("cross-entropy: targets of sizes [" + sizes + "] for logits " + to_string(logits) +
                        "; one is needed for each row of all samples: gather targets along the batch as features are");
}

/// With operators of libtorch alone.
Tensor with_margin(const Tensor& logits, const Tensor& target, const ParallelCrossEntropyOptions& options) {
  if (!options.margin().has_value()) return logits;
  detail::require_sound(*options.margin());
  const int classes = logits.dim() == 1 ? 0 : 1;
  const auto counts = target.ne(options.ignore_index()).unsqueeze(classes);
  const auto index = target.unsqueeze(classes).masked_fill(counts.logical_not(), 0);
  const auto scaled = logits * options.margin()->scale;
  const auto moved = detail::margin_logit(logits.gather(classes, index), *options.margin());
  return scaled.scatter(classes, index, at::where(counts, moved, scaled.gather(classes, index)));
}

Tensor dense_cross_entropy(const Tensor& plain, const Tensor& target, const ParallelCrossEntropyOptions& options) {
  const auto logits = with_margin(plain, target, options);
  auto as_torch = torch::nn::functional::CrossEntropyFuncOptions()
                      .weight(options.weight())
                      .ignore_index(options.ignore_index())
                      .reduction(options.reduction())
                      .label_smoothing(options.label_smoothing());
  if (options.replicas().is_alone()) return torch::nn::functional::cross_entropy(logits, target, as_torch);
  const auto losses = torch::nn::functional::cross_entropy(logits, target, as_torch.reduction(torch::kNone)).flatten();
  const auto index = target.flatten();
  return detail::reduced(losses, {index, index.ne(options.ignore_index())}, options);
}

}  // namespace

Tensor parallel_cross_entropy(const Placed& logits, const Tensor& target, const ParallelCrossEntropyOptions& options) {
  if (logits.placement().is_replicate()) return dense_cross_entropy(logits.local(), target, options);
  const int classes = logits.dim() == 1 ? 0 : 1;
  if (!logits.placement().is_shard(classes)) {
    throw InvalidArgument("cross-entropy: classes are dim " + std::to_string(classes) + " of the logits, which are " +
                          to_string(logits) +
                          (logits.placement().is_partial() ? "; reduce(x) adds the terms up"
                           : logits.placement().dim() > 1  ? "; x.flatten(0, -2) and target.flatten() make rows of them"
                                                           : "; gather(x) brings the samples together"));
  }
  require_shapes(logits, target);
  const auto rows = as_rows(logits.local());
  const auto index = target.reshape({-1}).to(rows.device(), at::kLong);
  Loss loss{detail::ClassShards(options, logits.group(), logits.split(), rows)};
  loss.overwrites = options.in_place() && may_overwrite(rows);
  const auto targets = detail::targets_of(index, loss.shards);
  const auto losses = CrossEntropyFunction::apply(rows, index, std::move(loss));
  const auto result = detail::reduced(losses, targets, options);
  return result.dim() == 0 ? result : result.view(target.sizes());
}

ParallelCrossEntropyLossImpl::ParallelCrossEntropyLossImpl(ParallelCrossEntropyOptions given)
    : options(std::move(given)) {
  reset();  // NOLINT(clang-analyzer-optin.cplusplus.VirtualCall)
}

void ParallelCrossEntropyLossImpl::reset() { weight = register_buffer("weight", options.weight()); }

void ParallelCrossEntropyLossImpl::pretty_print(std::ostream& stream) const {
  stream << "autopar::ParallelCrossEntropyLoss()";
}

Tensor ParallelCrossEntropyLossImpl::forward(const Placed& logits, const Tensor& target) {
  return parallel_cross_entropy(logits, target, ParallelCrossEntropyOptions(options).weight(weight));
}

}  // namespace autopar
