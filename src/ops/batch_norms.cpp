#include "ops/norms.hpp"

#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

BatchTyping norm(const OpCall& op) {
  const auto input = op.tensor("input");
  const auto& type = op.type(input);
  const auto operands = op.tensors();
  const auto residual = op.tensor("residual");  // addend of its result
  if (residual.valid() && op.type(residual) != type) return BatchTyping::mixes("its addends differ in their samples");
  for (const auto operand : operands) {
    if (operand != input && operand != residual && op.type(operand).has_samples())
      return BatchTyping::mixes("its weights or statistics have samples");
  }
  if (!type.is_batched() || type.dim == 1) return BatchTyping::mixes("its channels run over the batch");
  const auto running_mean = op.tensor("running_mean");
  const bool by_instance = op.base_name() == "instance_norm";
  const bool by_data = op.flag(by_instance ? "use_input_stats" : "training", true);
  if (!by_data) return typed(op, type);
  if (by_instance) {
    if (type.dim != 0) return BatchTyping::mixes("it normalises over the batch");
    BatchTyping result = typed(op, type);
    if (running_mean.valid()) {
      result.batch_norm = BatchNormPlan{op.id(),
                                        running_mean,
                                        op.tensor("running_var"),
                                        op.number("momentum", 0.1),
                                        has_elements(op.sizes(input)) ? op.sizes(input).front() : SizeExpr{},
                                        true};
    }
    return result;
  }
  if (op.options().batch_norm == BatchNormMode::kExact) {
    return BatchTyping::mixes("batch_norm = exact normalises by the whole batch");
  }
  BatchTyping result = typed(op, type);
  const auto& sizes = op.sizes(input);
  SizeExpr samples{1, 0};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (i != 1) samples.per_sample *= sizes[i].depends_on_batch() ? sizes[i].per_sample : sizes[i].fixed;
  }
  result.batch_norm =
      BatchNormPlan{op.id(), running_mean, op.tensor("running_var"), op.number("momentum", 0.1), samples};
  return result;
}

}  // namespace

SavedBytes saved_by_batch_norm(const OpCall& op) {
  const auto input = op.first_tensor();
  const auto& sizes = op.sizes(input);
  const auto statistic = statistic_bytes(op.graph().value(op.results().front()).dtype);
  return {{input}, {0, sizes.size() > 1 ? 2 * statistic * static_cast<double>(sizes[1].at(1)) : 0}};
}

OpWorkspace workspace_of_batch_norm(const OpCall& op) {
  const auto input = op.first_tensor();
  const bool twice = is_differentiable(op) && !op.on_cuda() && op.graph().value(input).has_gradient();
  return {{}, twice ? bytes_of(op.graph(), input) : Affine{}};
}

void add_batch_norms(OpList& list) {
  OpDef def;
  def.traits = OpTrait::kRunningStatistics;
  def.over_samples = norm;
  def.saved = SavedTensors::kInput;
  def.saved_by = saved_by_batch_norm;
  def.workspace = workspace_of_batch_norm;
  def.autocast = AutocastRule::kNone;
  def.low_arguments = 1;  // kernels take float32 statistics and weights with 16-bit values
  def.treatment = kSums;
  def.summary = "statistics of a slice or of the whole batch (Options::batch_norm)";
  list.add(def, {"batch_norm", "instance_norm"});
}

}  // namespace autopar::ops
