#include "torch/cost/workspace.hpp"

#include <algorithm>

#include "capture/ir/cross_entropy.hpp"
#include "capture/ir/tensor_form.hpp"
#include "capture/ir/two_results.hpp"
#include "torch/cost/work.hpp"
#include "torch/interpret/class_loss.hpp"
#include "torch/interpret/split_backward.hpp"

namespace autopar::algebra {
namespace {

/// Whether the gradient of the result is that of each operand: nothing is made.
bool hands_gradient_on(const OpContext& op) {
  if (op.base_name() == name_of(ShardMove::kReduce)) return true;
  if (op.base_name() != "add") return false;
  const auto operands = op.tensors();
  return std::all_of(operands.begin(), operands.end(),
                     [&](ValueId operand) { return op.sizes(operand) == op.result_sizes(); });
}

}  // namespace

Workspaces::Workspaces(const OpGraph& graph, const BatchPlan& plan, const std::vector<bool>& kept,
                       const std::map<OpId, ShardedStep>& steps)
    : graph_(graph),
      plan_(plan),
      kept_(kept),
      steps_(steps),
      readers_(graph.values.size(), 0),
      passing_(graph.ops.size() + 1),
      waiting_(graph.ops.size() + 1) {
  struct Life {
    ValueId first = ValueId::none();
    std::size_t last = 0;
  };
  std::vector<Life> lives(static_cast<std::size_t>(graph.storage_count));
  maker_.assign(lives.size(), OpId::none());
  overwritten_.assign(lives.size(), false);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (plan.ops[i].once) continue;
    if (graph.is(OpId::of(i), kCrossEntropy) && makes_gradient_in_place(graph, OpId::of(i))) {
      const auto logits = graph.value(graph.input(OpId::of(i), CrossEntropyArgument::kLogits)).storage;
      overwritten_[logits.index()] = kept[logits.index()];
    }
    for_each_input(graph.ops[i], [&](ValueId value) {
      const auto storage = graph.value(value).storage;
      if (storage.valid()) lives[storage.index()].last = i;
      ++readers_[value.index()];
    });
    for_each_output(graph.ops[i], [&](ValueId value) {
      const auto storage = graph.value(value).storage;
      if (!storage.valid() || lives[storage.index()].first.valid() || plan.is_prologue(value)) return;
      lives[storage.index()].first = value;
      maker_[storage.index()] = OpId::of(i);
    });
  }
  const auto add = [](std::vector<Affine>& sums, std::size_t begin, std::size_t end, const Affine& bytes) {
    if (begin >= end) return;
    sums[begin] += bytes;
    sums[end] -= bytes;
  };
  for (std::size_t s = 0; s < lives.size(); ++s) {
    if (!maker_[s].valid()) continue;
    const auto bytes = bytes_of(graph, lives[s].first);
    const auto after = maker_[s].index() + 1;
    if (!kept[s]) add(passing_, after, lives[s].last + 1, bytes);
    if (graph.value(lives[s].first).has_gradient() && !overwritten_[s]) add(waiting_, after, lives[s].last, bytes);
  }
  for (std::size_t i = 1; i < passing_.size(); ++i) {
    passing_[i] += passing_[i - 1];
    waiting_[i] += waiting_[i - 1];
  }
}

Workspaces::Need Workspaces::of(const OpContext& op) const {
  if (op.traits().op_class == OpClass::kView)
    return {{}, copies_in_backward(op.traits().family) ? backward(op) : Affine{}};
  if (op.traits().family == OpFamily::kRecurrent) {
    const auto own = recurrent_memory(op);
    return {forward(op) + own.forward, backward(op) + own.backward};
  }
  if (op.traits().op_class == OpClass::kAttention) {
    const auto own = attention_memory(op);
    return {forward(op) + own.forward, backward(op) + own.backward};
  }
  Affine either = copies_of_convolution(op) + exchanged(op);
  if (op.traits().family == OpFamily::kClassHead) either += class_head_memory(op).working;
  return {forward(op) + either, backward(op) + either};
}

// Rows that other shards have are set to zero in the result and in a copy of its gradient; all shards' statistics of
// each row lie side by side.
Affine Workspaces::exchanged(const OpContext& op) const {
  const auto step = steps_.find(op.id());
  if (step == steps_.end()) return {};
  if (step->second.kernel == ShardedOp::Kernel::kEmbeddingRows) {
    constexpr double kBytesOfIndex = 3 * sizeof(std::int64_t);
    return bytes_of(graph_, op.results().front()) +
           elements(graph_.value(graph_.input(op.id(), 1)).sizes) * kBytesOfIndex;
  }
  const bool is_head = step->second.kernel == ShardedOp::Kernel::kClassHead;
  if (is_head || step->second.kernel == ShardedOp::Kernel::kClassLoss) {
    constexpr double kShards = 16, kStatistics = 3, kBytesOfRow = kShards * kStatistics * sizeof(double);
    return elements(op.sizes(op.tensor("target"))) * kBytesOfRow;
  }
  return {};
}

// Kernels lay out anew what they read and write, those of CUDA in 16 bits nothing but weights where images are
// channels-last already. In single precision an H200 held a layer's activations more than that.
Affine Workspaces::copies_of_convolution(const OpContext& op) const {
  Affine copies;
  if (op.traits().op_class != OpClass::kConvolution) return copies;
  const auto result = op.results().front();
  const auto& form = graph_.value(result);
  const bool as_it_is = op.on_cuda() && is_channels_last(form) && c10::isReducedFloatingType(form.dtype);
  for (const auto value : op.tensors()) {
    if (!as_it_is || !op.type(value).has_samples()) copies += bytes_of(graph_, value);
  }
  // cuDNN's own memory: an H100 held 44 MiB more for layers of 64 channels and half a million pixels.
  constexpr double kOfKernels = 64 << 20;
  return as_it_is ? copies + Affine{0, kOfKernels} : copies + bytes_of(graph_, result);
}

Affine Workspaces::forward(const OpContext& op) const {
  Affine bytes = passing_[op.id().index()];
  for (const auto value : op.results()) {
    const auto storage = graph_.value(value).storage;
    if (!storage.valid() || kept_[storage.index()]) continue;
    if (maker_[storage.index()] == op.id()) bytes += bytes_of(graph_, value);
  }
  const bool widens = graph_.is(op.id(), kCrossEntropy) && !op.on_cuda();  // no kernels: logits in single precision
  return widens ? bytes + elements(op.sizes(op.first_tensor())) * static_cast<double>(sizeof(float)) : bytes;
}

// Of two readers, which a kernel adds while it makes that of its operand.
bool Workspaces::takes_two_gradients(const OpContext& op) const {
  return op.on_cuda() && hands_out_twice(graph_.name(op.id())) && readers_[op.results().front().index()] > 1;
}

Affine Workspaces::backward(const OpContext& op) const {
  if (!is_differentiable(op)) return {};
  Affine bytes = waiting_[op.id().index()];
  std::vector<ValueId>
      seen;  // views of one memory have gradients of their own, as attention's queries, keys and values
  const auto add = [&](ValueId value) {
    if (!graph_.value(value).has_gradient() || std::find(seen.begin(), seen.end(), value) != seen.end()) return;
    seen.push_back(value);
    const auto storage = graph_.value(value).storage;
    if (!storage.valid() || !overwritten_[storage.index()]) bytes += bytes_of(graph_, value);
  };
  for (const auto value : op.results()) add(value);
  if (takes_two_gradients(op)) bytes += bytes_of(graph_, op.results().front());
  if (makes_gradient_in_place(graph_, op.id())) return bytes;
  if (!hands_gradient_on(op)) {
    // A residual's is written over one of the result's.
    const bool writes_over = op.on_cuda() && hands_out_twice(graph_.name(op.id())) && op.has("residual");
    for (const auto value : op.tensors()) {
      if (!writes_over || value != op.tensor("residual")) add(value);
    }
  }
  // libtorch makes that of a batch norm's operand twice on CPUs, one after the other: where ReLU is joined to it, the
  // second in place of the result, of which ReLU's gradient is made before.
  const bool lets_result_go = op.flag("relu", false);
  if (!op.on_cuda() && op.traits().family == OpFamily::kBatchNorm && !lets_result_go &&
      graph_.value(op.tensors().front()).has_gradient())
    bytes += bytes_of(graph_, op.tensors().front());
  // The gradient of a log-softmax that only the op knows is there while that of its operand is made.
  if (op.traits().family == OpFamily::kClassLoss) bytes += saved_by(op).internal;
  const auto split = split_backward_of(graph_, plan_, op.id());
  // Gradients of parameters are in single precision. CPUs multiply in it, too; on CUDA what comes in by a cast has its
  // gradient in both.
  if (split && split->of_cast) {
    const auto given = graph_.input(op.id(), split->x_at);
    const auto definer = graph_.value(given).definer;
    const bool is_cast = definer.valid() && graph_.is(definer, "aten::to");
    const bool is_product = op.traits().family == OpFamily::kLinear;
    if (!op.on_cuda() || (is_product && is_cast))
      bytes += (bytes_of(graph_, op.results().front()) + bytes_of(graph_, given)) * 2.0;
    bytes += bytes_of(graph_, split->weight);
  }
  return bytes;
}

}  // namespace autopar::algebra
