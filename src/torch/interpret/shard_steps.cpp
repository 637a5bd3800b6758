#include "torch/interpret/shard_steps.hpp"

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <autopar/core/assert.hpp>
#include <autopar/core/error.hpp>
#include <autopar/shard/collectives.hpp>
#include <autopar/shard/cross_entropy.hpp>

#include "capture/ir/only_owner.hpp"
#include "ops/names.hpp"
#include "ops/registry.hpp"
#include "shard/group_state.hpp"
#include "shard/slice_of_sum.hpp"
#include "torch/autograd/summed_gradient.hpp"
#include "torch/fused/linear_cross_entropy.hpp"
#include "torch/fused/loss_reduction.hpp"

namespace autopar::interpret {

namespace {

/// The elements of the sliced dim within a block that each shard has. They are consecutive, because slices of several
/// parts are not exchanged (`ShardTyping`).
Split split_of(const tensor_parallel::ShardedStep& step) {
  AUTOPAR_ASSERT(step.slices.inner.size() == 1, "tensor shards exchange slices of one part");
  auto lengths = step.slices.split(step.shards).lengths();
  for (auto& length : lengths) length *= step.slices.inner.front();
  return Split(std::move(lengths));
}

/// Makes blocks a separate dim, so that the slices are consecutive.
at::Tensor in_blocks(const at::Tensor& tensor, std::int64_t dim, std::int64_t length) {
  return tensor.unflatten(dim, {tensor.size(dim) / length, length});
}

/// The tensor itself; its gradient is the sum of all shards' gradients.
at::Tensor copied(const at::Tensor& tensor, const Group& group) {
  return autograd::SummedGradient::over(
      tensor, tensor, [group](at::Tensor term, const std::function<void()>& meanwhile) {
        const auto sum = ir::is_only_owner(term) ? term : term.clone(at::MemoryFormat::Contiguous);
        term.reset();
        sum.unsafeGetTensorImpl()->bump_version();  // the memory is written below autograd: see
        group.state()->all_reduce(sum, meanwhile);
        return sum;
      });
}

/// The sum of all shards' terms. Its gradient is each term's gradient, so the sum may take the place of the term.
at::Tensor added_up(const at::Tensor& term, const Group& group) {
  if (!ir::is_only_owner(term)) return reduce(Placed::partial(term, group));
  term.unsafeGetTensorImpl()->bump_version();
  group.state()->all_reduce(term);
  return term;
}

at::Tensor gathered(const at::Tensor& own, const tensor_parallel::ShardedStep& step, const Group& group) {
  const auto split = split_of(step);
  const int dim = step.slices.dim;
  const auto blocks = in_blocks(own, dim, split.length(group.place()));
  const at::Tensor whole = gather(Placed::shard(blocks, group, dim + 1, split));
  return whole.flatten(dim, dim + 1);
}

/// The whole value; its gradient is this shard's slice of the sum of all shards' gradients.
at::Tensor assembled(const at::Tensor& own, const tensor_parallel::ShardedStep& step, const Group& group) {
  const auto whole = [&] {
    const at::NoGradGuard no_history;
    return gathered(own, step, group);
  }();
  return autograd::SummedGradient::over(
      own, whole,
      [group, split = split_of(step), dim = step.slices.dim](at::Tensor term, const std::function<void()>& meanwhile) {
        auto blocks = in_blocks(term, dim, split.total());
        term.reset();
        return detail::slice_of_sum(std::move(blocks), group, dim + 1, split, meanwhile).flatten(dim, dim + 1);
      });
}

at::Tensor scattered(const at::Tensor& whole, const tensor_parallel::ShardedStep& step, const Group& group) {
  const auto split = split_of(step);
  const int dim = step.slices.dim;
  return scatter(in_blocks(whole, dim, split.total()), group, dim + 1, split).local().flatten(dim, dim + 1);
}

at::Tensor sum_scattered(const at::Tensor& terms, const tensor_parallel::ShardedStep& step, const Group& group) {
  const auto split = split_of(step);
  const int dim = step.slices.dim;
  const auto blocks = Placed::partial(in_blocks(terms, dim, split.total()), group);
  return reduce_scatter(blocks, dim + 1, split).local().flatten(dim, dim + 1);
}

at::Tensor moved(const at::Tensor& tensor, const tensor_parallel::ShardedStep& step, const Group& group) {
  switch (*step.move) {
    case ir::ShardMove::kCopy:
      return copied(tensor, group);
    case ir::ShardMove::kAllReduce:
      return added_up(tensor, group);
    case ir::ShardMove::kAllGather:
      return gathered(tensor, step, group);
    case ir::ShardMove::kScatter:
      return scattered(tensor, step, group);
    case ir::ShardMove::kAssemble:
      return assembled(tensor, step, group);
    case ir::ShardMove::kReduceScatter:
      return sum_scattered(tensor, step, group);
  }
  return tensor;
}

/// Takes the only operand off the stack, and out of the environment if nobody reads it later.
at::Tensor taken(replay::ReplayCall& call, const tensor_parallel::ShardedStep& step) {
  if (step.is_only_reader) call.environment[call.node.inputs.front().values.front().index()].reset();
  return std::move(call.stack[0]).toTensor();
}

/// Zeros. Their gradient is the bias's.
struct NoBias : torch::autograd::Function<NoBias> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& bias) { return at::zeros_like(bias); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return gradients;
  }
};

/// The loss for aten::cross_entropy_loss(self, target, weight, reduction, ignore_index, label_smoothing).
at::Tensor class_loss(const torch::jit::Stack& stack, const tensor_parallel::ShardedStep& step, const Group& group) {
  const auto logits = stack[0].toTensor();
  auto options = ParallelCrossEntropyOptions()
                     .reduction(fused::loss_reduction(stack[3].toInt()))
                     .ignore_index(stack[4].toInt())
                     .label_smoothing(stack[5].toDouble())
                     .in_place(step.is_only_reader)
                     .check_targets(logits.is_cpu());
  if (!stack[2].isNone()) options.weight(stack[2].toTensor());
  const int classes = logits.dim() == 1 ? 0 : 1;
  return parallel_cross_entropy(Placed::shard(logits, group, classes, split_of(step)), stack[1].toTensor(), options);
}

/// The result of aten::embedding(weight, indices, padding_idx, …), in which rows of other shards are zero.
at::Tensor rows(const torch::jit::Stack& stack, const tensor_parallel::ShardedStep& step, const Group& group) {
  const auto weight = stack[0].toTensor(), indices = stack[1].toTensor();
  const auto split = split_of(step);
  const auto begin = split.begin(group.place()), length = split.length(group.place());
  const auto is_none = indices.lt(0).logical_or(indices.ge(split.total()));
  if (indices.is_cpu() && is_none.any().item<bool>()) {
    throw InvalidArgument("index " + std::to_string(indices.masked_select(is_none).select(0, 0).item<std::int64_t>()) +
                          " is out of range of " + std::to_string(split.total()) + " rows");
  }
  const auto is_elsewhere = indices.lt(begin).logical_or(indices.ge(begin + length));
  const auto padding = stack[2].toInt() - begin;
  const bool has_padding = stack[2].toInt() >= 0 && padding >= 0 && padding < length;
  auto own = at::embedding(weight, (indices - begin).masked_fill_(is_elsewhere, 0), has_padding ? padding : -1);
  own.masked_fill_(is_elsewhere.unsqueeze(-1), 0);
  if (indices.is_cpu()) return own;
  return own.masked_fill_(is_none.unsqueeze(-1), std::numeric_limits<double>::quiet_NaN());  // without synchronising
                                                                                             // with the device
}

}  // namespace

bool needs_shards(const tensor_parallel::ShardedStep& step) {
  return step.move || step.kernel == ShardedOp::Kernel::kTogether;
}

void leave_bias_to_first(replay::ReplayCall& call, const Group& group) {
  if (group.place() == 0) return;
  auto& bias = call.stack[static_cast<std::size_t>(ops::definition_of(call.node.op).layer->bias)];
  bias = NoBias::apply(bias.toTensor());
}

void run_on_shards(replay::ReplayCall& call, const tensor_parallel::ShardedStep& step, const Group& group) {
  const auto result = [&] {
    if (step.move) return moved(taken(call, step), step, group);
    const auto& name = call.node.op.schema().name();
    if (name == ops::kEmbedding) return rows(call.stack, step, group);
    const auto& layer = ops::definition_of(name).layer;
    if (layer && layer->makes_loss) return fused::linear_cross_entropy_of_shard(call.stack, group, split_of(step));
    return class_loss(call.stack, step, group);
  };
  try {
    auto made = result();
    call.stack.clear();
    call.stack.emplace_back(std::move(made));
  } catch (const InvalidArgument& error) {  // invalid targets and indices
    const auto& path = call.node.path;
    const auto near = path.empty() ? "" : " (near " + path + ")";
    throw InvalidArgument(call.node.op.schema().name() + near + ": " + error.what());
  }
}

}  // namespace autopar::interpret
