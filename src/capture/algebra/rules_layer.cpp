#include <algorithm>

#include "capture/algebra/op_context.hpp"

namespace autopar::algebra {
namespace {

std::int64_t touched_trailing_dims(const OpContext& op) {
  const auto name = op.base_name();
  if (name == "constant_pad_nd" || name == "pad") {
    const auto padding = op.integers("pad");
    if (!padding) return op.rank(op.first_tensor());
    std::int64_t touched = 0;
    for (std::size_t i = 0; i < padding->size(); ++i) {
      if ((*padding)[i] != 0) touched = static_cast<std::int64_t>(i / 2) + 1;
    }
    return touched;
  }
  return op.traits().parameter;
}

RuleResult type_trailing(const OpContext& op) {
  const auto operands = op.tensors();
  const auto rank = op.rank(operands.front());
  for (const auto operand : operands) {
    if (op.rank(operand) != rank) return RuleResult::mixes("its operands have different numbers of dims");
  }
  const auto shared = broadcast(op, operands, rank);
  if (!shared) return RuleResult::mixes("it joins samples with other samples");
  if (shared->dim >= rank - touched_trailing_dims(op)) return RuleResult::mixes("it works along the batch");
  return typed(op, *shared);
}

RuleResult type_layer_norm(const OpContext& op) {
  const auto operands = op.tensors();
  const auto& type = op.type(operands.front());
  const auto residual = op.tensor("residual");  // of a norm of a sum
  if (residual.valid() && op.type(residual) != type) return RuleResult::mixes("its addends differ in their samples");
  for (std::size_t i = 1; i < operands.size(); ++i) {
    if (operands[i] != residual && op.type(operands[i]).has_samples())
      return RuleResult::mixes("its weight has samples");
  }
  const auto shape = op.integers("normalized_shape");
  if (!shape || type.dim >= op.rank(operands.front()) - static_cast<std::int64_t>(shape->size())) {
    return RuleResult::mixes("it normalises over the batch");
  }
  return typed(op, type);
}

bool has_rank_without_batch(const OpContext& op, ValueId self) {
  const auto name = op.base_name();
  if (op.traits().op_class == OpClass::kConvolution && op.has("weight")) {
    return op.rank(self) < op.rank(op.tensor("weight"));
  }
  if (name == "im2col" || name == "col2im") return op.rank(self) < (name == "im2col" ? 4 : 3);
  if (name == "istft") return op.rank(self) < 3;
  return name.ends_with("_cell") && op.rank(self) < 2;
}

/// A convolution of each sample with weights of its own: samples are blocks of channels, each some groups of its own,
/// as in x.view({1, B * C, H, W}) with weights [B * O, C, h, w] and groups = B.
std::optional<RuleResult> type_convolution_by_groups(const OpContext& op) {
  if (op.traits().op_class != OpClass::kConvolution || !op.has("groups")) return std::nullopt;
  const auto input = op.first_tensor(), weight = op.tensor("weight"), bias = op.tensor("bias");
  const auto groups = op.expression("groups");
  const auto is_major = [&](ValueId value, std::int64_t dim) {  // a block of neighbours for each sample
    const auto& type = op.type(value);
    return type.is_batched() && type.dim == dim && type.outer == 1;
  };
  const bool by_groups = groups && groups->fixed == 0 && groups->per_sample > 0 && op.rank(input) == op.rank(weight) &&
                         is_major(input, 1) && is_major(weight, 0) && (!bias.valid() || is_major(bias, 0));
  if (!by_groups) return std::nullopt;
  return typed(op, BatchType::batched(1, 1, op.result_sizes()[1].per_sample));
}

// A tensor list counts as one data argument (the states of lstm_cell).
RuleResult type_leading(const OpContext& op) {
  if (auto by_groups = type_convolution_by_groups(op)) return *by_groups;
  std::optional<BatchType> shared;
  std::int32_t seen = 0;
  for (const auto& slot : op.node().inputs) {
    const bool is_data = seen++ < op.traits().parameter;
    for (const auto value : slot.values) {
      if (!value.valid()) continue;
      const auto& type = op.type(value);
      if (!is_data && type.has_samples()) return RuleResult::mixes("its weights have samples");
      if (!is_data) continue;
      if (!type.is_batched() || type.dim != 0 || (shared && *shared != type) || has_rank_without_batch(op, value)) {
        return RuleResult::mixes("its samples are not in dim 0");
      }
      shared = type;
    }
  }
  if (!shared) return RuleResult::mixes("its samples are not in dim 0");
  for (const auto& integer : op.node().integers) {  // a size that repeats how many rows there are
    if (integer.element != 0 || integer.expr != SizeExpr{shared->outer * shared->inner, 0}) {
      return RuleResult::mixes("its arguments follow the batch size");
    }
  }
  return typed(op, *shared);
}

RuleResult type_attention(const OpContext& op) {
  if (op.base_name() == "cdist")
    return type_contraction_op(op);  // rows against rows, like a product with the transpose
  const auto rank = static_cast<std::int64_t>(op.result_sizes().size());
  const auto shared = broadcast(op, op.tensors(), rank);
  if (!shared || !shared->is_batched() || shared->dim >= rank - 2)
    return RuleResult::mixes("samples attend to one another");
  return typed(op, *shared);
}

RuleResult type_recurrent(const OpContext& op) {
  if (!op.has("batch_first")) return RuleResult::mixes("packed sequences join the batch in one dim");
  const auto input = op.tensor("input");
  const auto& type = op.type(input);
  const auto sequence_dim = op.flag("batch_first", false) ? 0 : 1;
  if (op.rank(input) != 3 || !type.is_batched() || type.dim != sequence_dim) {
    return RuleResult::mixes("its sequence runs over the batch");
  }
  for (const auto state : op.tensors(op.position("hx"))) {
    const auto& own = op.type(state);
    if (!own.is_batched() || own.dim != 1 || !own.same_layout(type)) {
      return RuleResult::mixes("its first state is not one for each sample");
    }
  }
  for (const auto weight : op.tensors(op.position("params"))) {
    if (op.type(weight).has_samples()) return RuleResult::mixes("its weights have samples");
  }
  RuleResult result = typed(op, type.at_dim(1));
  result.outputs.front() = type;
  return result;
}

RuleResult type_dropout(const OpContext& op) {
  const auto self = op.first_tensor();
  const auto& type = op.type(self);
  const bool by_channel = op.traits().family == OpFamily::kFeatureDropout;
  if (by_channel && type.dim > 1) return RuleResult::mixes("it drops the same channels in all samples");
  return typed(op, type);
}

RuleResult type_batch_norm(const OpContext& op) {
  const auto input = op.tensor("input");
  const auto& type = op.type(input);
  const auto operands = op.tensors();
  const auto residual = op.tensor("residual");  // what is added to its result
  if (residual.valid() && op.type(residual) != type) return RuleResult::mixes("its addends differ in their samples");
  for (const auto operand : operands) {
    if (operand != input && operand != residual && op.type(operand).has_samples())
      return RuleResult::mixes("its weights or statistics have samples");
  }
  if (!type.is_batched() || type.dim == 1) return RuleResult::mixes("its channels run over the batch");
  const auto running_mean = op.tensor("running_mean");
  const bool by_instance = op.base_name() == "instance_norm";
  const bool by_data = op.flag(by_instance ? "use_input_stats" : "training", true);
  if (!by_data) return typed(op, type);
  if (by_instance) {
    if (type.dim != 0) return RuleResult::mixes("it normalises over the batch");
    RuleResult result = typed(op, type);
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
    return RuleResult::mixes("batch_norm = exact normalises by the whole batch");
  }
  RuleResult result = typed(op, type);
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

RuleResult type_layer_op(const OpContext& op) {
  switch (op.traits().family) {
    case OpFamily::kTrailing:
      return type_trailing(op);
    case OpFamily::kLayerNorm:
      return type_layer_norm(op);
    case OpFamily::kLeading:
      return type_leading(op);
    case OpFamily::kAttention:
      return type_attention(op);
    case OpFamily::kRecurrent:
      return type_recurrent(op);
    case OpFamily::kDropout:
    case OpFamily::kFeatureDropout:
      return type_dropout(op);
    case OpFamily::kBatchNorm:
      return type_batch_norm(op);
    default:
      return RuleResult::mixes("it is not a layer");
  }
}

}  // namespace autopar::algebra
