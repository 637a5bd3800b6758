#include "torch/cost/workspace.hpp"

#include <algorithm>

#include "ops/names.hpp"
#include "torch/autograd/split_backward.hpp"

namespace autopar::algebra {
namespace {

/// Whether each operand's gradient is the gradient of the result, so that no memory is needed.
bool hands_gradient_on(const OpCall& op) {
  if (!op.def().has(OpTrait::kPassesGradient)) return false;
  const auto operands = op.tensors();
  return std::all_of(operands.begin(), operands.end(),
                     [&](ValueId operand) { return op.sizes(operand) == op.result_sizes(); });
}

}  // namespace

Workspaces::Workspaces(const OpGraph& graph, const algebra::BatchSemantics& plan, const std::vector<bool>& kept,
                       const std::map<OpId, tensor_parallel::ShardedStep>& steps)
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
    if (ops::gradient_place(graph, OpId::of(i)) == GradientPlace::kOverOperand) {
      const auto operand = graph.value(graph.input(OpId::of(i), 0)).storage;
      overwritten_[operand.index()] = kept[operand.index()];
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
    const auto bytes = ops::bytes_of(graph, lives[s].first);
    const auto after = maker_[s].index() + 1;
    if (!kept[s]) add(passing_, after, lives[s].last + 1, bytes);
    if (graph.value(lives[s].first).has_gradient() && !overwritten_[s]) add(waiting_, after, lives[s].last, bytes);
  }
  for (std::size_t i = 1; i < passing_.size(); ++i) {
    passing_[i] += passing_[i - 1];
    waiting_[i] += waiting_[i - 1];
  }
}

Workspaces::Need Workspaces::of(const OpCall& op) const {
  const auto& def = op.def();
  if (def.is_view()) return {{}, def.has(OpTrait::kCopiesGradient) ? backward(op) : Affine{}};
  const auto own = ops::workspace_of(op);
  const auto exchanged = exchanged_by(op);
  return {forward(op) + exchanged + own.forward, backward(op) + exchanged + own.backward};
}

Affine Workspaces::exchanged_by(const OpCall& op) const {
  const auto step = steps_.find(op.id());
  const bool together = step != steps_.end() && step->second.kernel == ShardedOp::Kernel::kTogether;
  return together && op.def().exchanged ? op.def().exchanged(op).value_or(Affine{}) : Affine{};
}

Affine Workspaces::forward(const OpCall& op) const {
  Affine bytes = passing_[op.id().index()];
  for (const auto value : op.results()) {
    const auto storage = graph_.value(value).storage;
    if (!storage.valid() || kept_[storage.index()]) continue;
    if (maker_[storage.index()] == op.id()) bytes += ops::bytes_of(graph_, value);
  }
  return bytes;
}

// A kernel adds the gradients of two readers while it computes the gradient of its operand.
bool Workspaces::takes_two_gradients(const OpCall& op) const {
  return op.on_cuda() && op.def().has(OpTrait::kDuplicatedOutputs) && readers_[op.results().front().index()] > 1;
}

Affine Workspaces::backward(const OpCall& op) const {
  if (!ops::is_differentiable(op)) return {};
  Affine bytes = waiting_[op.id().index()];
  std::vector<ValueId> seen;  // views of one memory have separate gradients
  const auto add = [&](ValueId value) {
    if (!graph_.value(value).has_gradient() || std::find(seen.begin(), seen.end(), value) != seen.end()) return;
    seen.push_back(value);
    const auto storage = graph_.value(value).storage;
    if (!storage.valid() || !overwritten_[storage.index()]) bytes += ops::bytes_of(graph_, value);
  };
  for (const auto value : op.results()) add(value);
  if (takes_two_gradients(op)) bytes += ops::bytes_of(graph_, op.results().front());
  if (ops::gradient_place(graph_, op.id()) != GradientPlace::kNew) return bytes;
  const auto split = autograd::split_backward_of(graph_, plan_, op.id());
  const bool of_cast = split && split->of_cast;
  if (!hands_gradient_on(op)) {
    // A linear layer makes its weight's gradient in the parameter's type, not in the cast's.
    const auto cast = of_cast && split->is_product ? graph_.input(op.id(), split->weight_at) : ValueId::none();
    // A residual's gradient is written over one of the result's gradients.
    const bool writes_over = op.on_cuda() && op.def().has(OpTrait::kDuplicatedOutputs) && op.has("residual");
    for (const auto value : op.tensors()) {
      if (value != cast && (!writes_over || value != op.tensor("residual"))) add(value);
    }
  }
  // Gradients of parameters are in single precision. CPUs also multiply in it. On CUDA the gradient of a cast value
  // exists in both types.
  if (of_cast) {
    const auto given = graph_.input(op.id(), split->x_at);
    const auto definer = graph_.value(given).definer;
    const bool is_cast = definer.valid() && graph_.is(definer, ops::kTo);
    const bool is_product = op.def().op_class == OpClass::kMatmul;
    if (!op.on_cuda() || (is_product && is_cast))
      bytes += (ops::bytes_of(graph_, op.results().front()) + ops::bytes_of(graph_, given)) * 2.0;
    bytes += ops::bytes_of(graph_, split->weight);
  }
  return bytes;
}

}  // namespace autopar::algebra
