#include "torch/fused/class_loss.hpp"

#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/library.h>

#include <autopar/core/error.hpp>

#include "capture/ir/compact.hpp"
#include "capture/ir/value_uses.hpp"
#include "kernels/class_loss_source.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/names.hpp"
#include "ops/registry.hpp"
#include "ops/rules.hpp"
#include "shard/kept.hpp"
#include "torch/fused/fused_ops.hpp"
#include "torch/fused/launch.hpp"
#include "torch/fused/vectorised_rows.hpp"

namespace autopar::fused {

namespace {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The losses of the rows, without reduction.
struct ClassLossFunction : torch::autograd::Function<ClassLossFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& logits, const Tensor& target,
                        const optional<Tensor>& given_weight, std::int64_t ignore_index, bool overwrites) {
    const auto weight = given_weight.value_or(Tensor());
    const auto single = logits.options().dtype(at::kFloat);
    const auto log_sums = at::empty({logits.size(0)}, single), losses = at::empty({logits.size(0)}, single);
    detail::launch(logits, kernels::kClassLossKernels, detail::class_loss_kernel("losses", logits).c_str(),
                   detail::class_loss_shape(logits), detail::data_of(logits), detail::data_of(target),
                   detail::data_of(weight), ignore_index, detail::memory_of(log_sums), detail::memory_of(losses),
                   static_cast<int>(logits.size(1)), logits.stride(0));
    context->save_for_backward({logits, target, weight, log_sums});
    context->saved_data["ignore_index"] = ignore_index;
    context->saved_data["overwrites"] = overwrites;
    context->saved_data["overwritten"] = false;
    return losses;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    autopar::detail::refuse_double_backward("cross entropy");
    auto& overwritten = context->saved_data.at("overwritten");
    if (overwritten.toBool())
      throw InvalidArgument("cross entropy: a second backward, but the first has written over the logits");
    const auto saved = context->get_saved_variables();
    const auto& logits = saved[0];
    const bool in_place =
        context->saved_data.at("overwrites").toBool() && !torch::autograd::get_current_graph_task_keep_graph();
    overwritten = in_place;
    const auto made =
        in_place ? logits.detach() : at::empty_strided(logits.sizes(), logits.strides(), logits.options());
    const auto given = gradients[0].stride(0) == 0 ? gradients[0] : gradients[0].contiguous();
    detail::launch(logits, kernels::kClassLossKernels, detail::class_loss_kernel("gradients", logits).c_str(),
                   detail::class_loss_shape(logits), detail::data_of(logits), detail::data_of(saved[1]),
                   detail::data_of(saved[2]), context->saved_data.at("ignore_index").toInt(), detail::data_of(saved[3]),
                   detail::data_of(given), given.stride(0) == 0 ? 0 : 1, detail::memory_of(made),
                   static_cast<int>(logits.size(1)), logits.stride(0), made.stride(0),
                   static_cast<int>(padding_behind_rows(made)), std::int64_t{0}, logits.size(1));
    return {made, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

optional<Tensor> class_loss_in_kernels(const Tensor& logits, const Tensor& target, const optional<Tensor>& weight,
                                       std::int64_t reduction, std::int64_t ignore_index, double label_smoothing) {
  if (label_smoothing != 0 || !has_class_loss_kernels(logits, target, weight)) return std::nullopt;
  return cross_entropy_in_kernels(logits, target, weight, reduction, ignore_index, /*overwrites=*/false);
}

// ---------------------------------------------------------------- pattern

bool is_loss_of_rows(const OpGraph& graph, OpId op) {
  using Argument = ops::CrossEntropyArgument;
  if (!graph.is(op, ops::kCrossEntropyLoss) || !graph.op(op).integers.empty()) return false;
  const auto logits = graph.input(op, Argument::kLogits), target = graph.input(op, Argument::kTarget),
             weight = graph.input(op, Argument::kWeight);
  const auto& smoothing = graph.op(op).args[Argument::kLabelSmoothing];
  if (!logits.valid() || !target.valid() || !smoothing.isDouble() || smoothing.toDouble() != 0) return false;
  const auto &of_logits = graph.value(logits), &of_target = graph.value(target);
  const bool of_rows = of_logits.dtype == at::kFloat && of_logits.sizes.size() == 2 && of_target.dtype == at::kLong &&
                       of_target.sizes.size() == 1;
  return of_rows &&
         (!weight.valid() || (graph.value(weight).dtype == at::kFloat && !graph.value(weight).has_gradient()));
}

/// The cast from 16 bits to single precision that only this loss reads; none if the logits come from elsewhere.
OpId cast_before(const OpGraph& graph, const ir::ValueUses& uses, OpId loss) {
  const auto logits = graph.input(loss, ops::CrossEntropyArgument::kLogits);
  const auto cast = graph.value(logits).definer;
  if (!cast.valid() || uses.only_use(logits) != loss || graph.op(cast).grad_enabled != graph.op(loss).grad_enabled)
    return OpId::none();
  const auto& node = graph.op(cast);
  if (ops::definition_of(node.op).kind != OpKind::kCopy || node.inputs.size() != 1 ||
      node.inputs.front().kind != SlotKind::kTensor)
    return OpId::none();
  const auto from = node.inputs.front().values.front();
  const bool widens = c10::isReducedFloatingType(graph.value(from).dtype) &&
                      graph.value(from).sizes == graph.value(logits).sizes &&
                      graph.value(from).requires_grad == graph.value(logits).requires_grad;
  return widens && !uses.written_between(from, cast, loss) ? cast : OpId::none();
}

/// Joins cross entropies of class indices with the casts of their 16-bit logits to single precision. On devices with
/// the kernels, logits in single precision never exist. Exact elsewhere. O(graph).
OpGraph fold_class_loss_casts(OpGraph graph) {
  const auto operation = fused_operator(kCrossEntropy);
  std::vector<std::pair<OpId, OpId>> found;  // losses and their casts
  {
    const ir::ValueUses uses(graph);
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      const auto loss = OpId::of(i);
      if (is_loss_of_rows(graph, loss)) found.emplace_back(loss, cast_before(graph, uses, loss));
    }
  }
  if (found.empty()) return graph;
  std::vector<bool> removed(graph.ops.size(), false);
  for (const auto& [loss, cast] : found) {
    auto& node = graph.op(loss);
    node.op = operation;
    if (!cast.valid()) continue;
    const auto from = graph.op(cast).inputs.front().values.front();
    const auto wide = graph.value(node.inputs.front().values.front()).storage;
    node.inputs.front().values = {from};
    std::ranges::replace(node.reads, wide, graph.value(from).storage);
    ir::sort_storages(node.reads);
    removed[cast.index()] = true;
  }
  ir::compact(graph, removed);
  return graph;
}

// ---------------------------------------------------------------- cost

/// Kernels save the logits and one sum per row. Without them, logits in single precision are saved as
/// log-probabilities.
SavedBytes saved_by_class_loss(const OpCall& op) {
  constexpr double kNumber = sizeof(float);
  const auto logits = op.first_tensor();
  if (!op.on_cuda()) return ops::saved_by_cross_entropy(op, ops::elements(op.sizes(logits)) * kNumber);
  auto saved = ops::saved_by_cross_entropy(op, ops::elements(op.sizes(op.tensor("target"))) * kNumber);
  saved.values.insert(saved.values.begin(), logits);
  return saved;
}

OpWorkspace workspace_of_class_loss(const OpCall& op) {
  auto working = ops::workspace_of_cross_entropy(op);
  if (!op.on_cuda()) working.forward += ops::elements(op.sizes(op.first_tensor())) * static_cast<double>(sizeof(float));
  return working;
}

GradientPlace place_of_gradient(const OpGraph& graph, OpId op) {
  const bool over_logits =
      graph.op(op).grad_enabled && ops::is_last_reader(graph, op, ops::CrossEntropyArgument::kLogits);
  return over_logits ? GradientPlace::kOverOperand : GradientPlace::kNew;
}

OpDef cost_of_class_loss() {
  auto def = ops::definition_of(ops::kCrossEntropyLoss);
  def.name = kCrossEntropy;
  def.saved_by = saved_by_class_loss;
  def.workspace = workspace_of_class_loss;
  def.gradient_place = place_of_gradient;
  def.sharding = [](ShardCall& call) { return ops::shard_classes(call, /*widens=*/true); };
  return def;
}

}  // namespace

std::string detail::class_loss_kernel(const char* what, const Tensor& logits) {
  return std::string("cross_entropy_") + what + "_" + kernel_type(logits.scalar_type());
}

kernels::LaunchShape detail::class_loss_shape(const Tensor& logits) {
  return {static_cast<unsigned>(logits.size(0)), 1, kernels::kClassLossThreads, 1};
}

Tensor cross_entropy_of_libtorch(const Tensor& logits, const Tensor& target, const optional<Tensor>& weight,
                                 std::int64_t reduction, std::int64_t ignore_index, double label_smoothing) {
  const auto wide = c10::isReducedFloatingType(logits.scalar_type()) ? logits.to(at::kFloat) : logits;
  return at::cross_entropy_loss(wide, target, weight, reduction, ignore_index, label_smoothing);
}

bool widens_logits(const c10::OperatorHandle& op) { return op.schema().name() == kCrossEntropy; }

bool has_class_loss_kernels(const Tensor& logits, const Tensor& target, const optional<Tensor>& weight) {
  if (!logits.is_cuda() || detail::kernel_type(logits.scalar_type()) == nullptr) return false;
  const bool fits = logits.dim() == 2 && logits.numel() > 0 && detail::is_aligned(logits) && logits.stride(1) == 1 &&
                    logits.stride(0) >= logits.size(1) && target.scalar_type() == at::kLong && target.is_contiguous() &&
                    target.dim() == 1 && target.size(0) == logits.size(0) && target.device() == logits.device();
  const auto numbers = weight.value_or(Tensor());
  const bool weighs = !numbers.defined() || (numbers.numel() == logits.size(1) && !numbers.requires_grad());
  return fits && weighs && detail::is_single_beside(numbers, logits) &&
         devices::context_of(logits.device().type()).has_kernels(kernels::kClassLossKernels, logits.device().index());
}

Tensor cross_entropy_in_kernels(const Tensor& logits, const Tensor& target, const optional<Tensor>& weight,
                                std::int64_t reduction, std::int64_t ignore_index, bool overwrites) {
  const auto losses = ClassLossFunction::apply(logits, target, weight, ignore_index, overwrites);
  if (reduction == at::Reduction::None) return losses;
  if (reduction == at::Reduction::Sum) return losses.sum();
  const auto counts = target.ne(ignore_index);
  if (!weight.has_value()) return losses.sum() / counts.sum();
  return losses.sum() / weight->index_select(0, target.mul(counts)).mul(counts).sum();
}

FusedOp cross_entropy_loss() {
  return {.name = kCrossEntropy,
          .schema =
              "cross_entropy_loss(Tensor self, Tensor target, Tensor? weight, int reduction, int ignore_index, float "
              "label_smoothing) -> Tensor",
          .pattern = fold_class_loss_casts,
          .cost = cost_of_class_loss,
          .forward = or_reference<class_loss_in_kernels, cross_entropy_of_libtorch>,
          .reference = boxed<cross_entropy_of_libtorch>};
}

}  // namespace autopar::fused
