#include "ops/rules.hpp"

#include <algorithm>
#include <utility>

#include "ops/registry.hpp"

namespace autopar::ops {

bool has_elements(const Sizes& sizes) {
  return std::ranges::none_of(sizes, [](const SizeExpr& size) { return size == SizeExpr{}; });
}

std::vector<std::int64_t> batch_dims(const Sizes& sizes) {
  std::vector<std::int64_t> dims;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].depends_on_batch()) dims.push_back(static_cast<std::int64_t>(i));
  }
  return dims;
}

BatchType type_by_sizes(const Sizes& sizes) {
  const auto dims = batch_dims(sizes);
  if (dims.empty()) return BatchType::replicated();
  const auto& size = sizes[static_cast<std::size_t>(dims.front())];
  if (dims.size() > 1 || size.fixed != 0 || size.per_sample < 1) return BatchType::of(BatchKind::kWhole);
  return BatchType::batched(dims.front(), 1, size.per_sample);
}

BatchTyping typed(const OpCall& op, BatchType type) {
  BatchTyping result;
  result.verdict = Verdict::kTyped;
  result.outputs.assign(op.results().size(), type);
  return result;
}

std::optional<BatchType> broadcast(const OpCall& op, const std::vector<ValueId>& operands, std::int64_t rank) {
  std::optional<BatchType> shared;
  for (const auto operand : operands) {
    const auto& type = op.type(operand);
    if (!type.has_samples()) continue;
    const auto here = type.at_dim(type.dim + rank - op.rank(operand));
    if (shared && (shared->dim != here.dim || !shared->same_layout(here))) return std::nullopt;
    if (!shared || here.is_batched()) shared = here;
  }
  return shared ? shared : BatchType::replicated();
}

double elements_at(const Sizes& sizes, std::int64_t batch) {
  double product = 1;
  for (const auto size : sizes) product *= static_cast<double>(size.at(batch));
  return product;
}

Affine line_through(double at_one, double at_two) {
  const double slope = at_two - at_one;
  return {slope, std::max(0.0, at_one - slope)};
}

Affine elements(const Sizes& sizes) { return line_through(elements_at(sizes, 1), elements_at(sizes, 2)); }

BatchTyping type_over_samples(const OpCall& op) {
  const auto& rule = op.def().over_samples;
  return rule ? rule(op) : BatchTyping::mixes("autopar does not know how it treats samples");
}

BatchTyping pointwise_of(const OpCall& op, const std::vector<ValueId>& operands) {
  const auto rank = static_cast<std::int64_t>(op.result_sizes().size());
  const auto shared = broadcast(op, operands, rank);
  if (!shared) return BatchTyping::mixes("it joins samples with other samples");
  if (!shared->has_samples()) return BatchTyping::mixes("its result grows with the batch, its operands do not");
  return typed(op, *shared);
}

BatchTyping pointwise(const OpCall& op) { return pointwise_of(op, op.tensors()); }

std::optional<std::vector<std::int64_t>> named_dims(const OpCall& op, std::int64_t rank) {
  for (const auto* name : {"dim", "dims", "dimension"}) {
    const auto at = op.position(name);
    if (at < 0) continue;
    auto dims = op.integers(name);
    if (!dims && !op.node().args[static_cast<std::size_t>(at)].isNone()) return std::nullopt;
    if (!dims || dims->empty()) break;
    for (auto& dim : *dims) dim = wrap_dim(dim, rank);
    return dims;
  }
  if (op.base_name() == "searchsorted") {  // one sorted row for all, or one for each row of numbers
    const auto sorted = op.first_tensor();
    if (op.rank(sorted) == 1 && !op.type(sorted).has_samples()) return std::vector<std::int64_t>{};
    return std::vector<std::int64_t>{rank - 1};
  }
  if (op.base_name() == "pairwise_distance") return std::vector<std::int64_t>{rank - 1};
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < rank; ++i) all.push_back(i);
  return all;
}

BatchTyping along_dims(const OpCall& op) {
  const auto operands = op.tensors();
  std::int64_t rank = 0;
  for (const auto operand : operands) rank = std::max(rank, op.rank(operand));
  const auto shared = broadcast(op, operands, rank);
  const auto dims = named_dims(op, rank);
  if (!shared || !dims) return BatchTyping::mixes("it joins samples with other samples");
  if (std::find(dims->begin(), dims->end(), shared->dim) != dims->end())
    return BatchTyping::mixes("it works along the batch");
  return typed(op, *shared);
}

OpDef::TypingRule last_dims(std::int64_t touched) {
  return [touched](const OpCall& op) {
    const auto operands = op.tensors();
    const auto rank = op.rank(operands.front());
    for (const auto operand : operands) {
      if (op.rank(operand) != rank) return BatchTyping::mixes("its operands have different numbers of dims");
    }
    const auto shared = broadcast(op, operands, rank);
    if (!shared) return BatchTyping::mixes("it joins samples with other samples");
    if (shared->dim >= rank - touched) return BatchTyping::mixes("it works along the batch");
    return typed(op, *shared);
  };
}

OpDef::TypingRule samples_first(std::int32_t data) {
  return [data](const OpCall& op) {
    std::optional<BatchType> shared;
    std::int32_t seen = 0;
    for (const auto& slot : op.node().inputs) {
      const bool is_data = seen++ < data;
      for (const auto value : slot.values) {
        if (!value.valid()) continue;
        const auto& type = op.type(value);
        if (!is_data && type.has_samples()) return BatchTyping::mixes("its weights have samples");
        if (!is_data) continue;
        if (!type.is_batched() || type.dim != 0 || (shared && *shared != type))
          return BatchTyping::mixes("its samples are not in dim 0");
        shared = type;
      }
    }
    if (!shared) return BatchTyping::mixes("its samples are not in dim 0");
    for (const auto& integer : op.node().integers) {  // a size that repeats how many rows there are
      if (integer.element != 0 || integer.expr != SizeExpr{shared->outer * shared->inner, 0})
        return BatchTyping::mixes("its arguments follow the batch size");
    }
    return typed(op, *shared);
  };
}

SumOperands sum_operands(const OpCall& op) {
  SumOperands found;
  for (const auto& slot : op.node().inputs) {
    for (const auto value : slot.values) {
      if (!value.valid()) continue;
      const auto& type = op.type(value);
      if (type.is(BatchKind::kPartialSum)) {
        found.sums.push_back(slot.position);
      } else if (type.is(BatchKind::kReplicated)) {
        found.shared.push_back(slot.position);
        found.integral = found.integral || !op.is_floating(value);
      } else {
        found.samples = true;
      }
    }
  }
  return found;
}

BatchTyping linear_in_sum(const OpCall& op, bool is_linear) {
  return is_linear ? typed(op, BatchType::partial_sum())
                   : BatchTyping::needs_sum("it is not linear in a sum over samples");
}

BatchTyping linear_in_first(const OpCall& op) { return linear_in_sum(op, sum_operands(op).first_only()); }
BatchTyping linear_in_all(const OpCall& op) { return linear_in_sum(op, true); }
BatchTyping linear_in_one_sum(const OpCall& op) { return linear_in_sum(op, sum_operands(op).sums.size() == 1); }

DType dtype_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool:
      return DType::kBool;
    case c10::ScalarType::Byte:
      return DType::kU8;
    case c10::ScalarType::Char:
      return DType::kI8;
    case c10::ScalarType::Short:
      return DType::kI16;
    case c10::ScalarType::Int:
      return DType::kI32;
    case c10::ScalarType::Long:
      return DType::kI64;
    case c10::ScalarType::Half:
      return DType::kF16;
    case c10::ScalarType::BFloat16:
      return DType::kBF16;
    case c10::ScalarType::Double:
      return DType::kF64;
    case c10::ScalarType::ComplexFloat:
      return DType::kC64;
    case c10::ScalarType::ComplexDouble:
      return DType::kC128;
    default:
      return DType::kF32;
  }
}

Affine bytes_of(const OpGraph& graph, ValueId value) {
  const auto& info = graph.value(value);
  return elements(info.sizes) * static_cast<double>(size_of(dtype_of(info.dtype)).value());
}

double statistic_bytes(c10::ScalarType type) {
  return std::max(4.0, static_cast<double>(size_of(dtype_of(type)).value()));
}

std::int64_t last_size(const Sizes& sizes) { return sizes.empty() ? 1 : sizes.back().at(1); }

Affine rows_of(const Sizes& sizes) { return elements({sizes.begin(), sizes.end() - (sizes.empty() ? 0 : 1)}); }

bool requires_grad(const OpCall& op, ValueId value) { return op.graph().value(value).requires_grad; }

bool is_differentiable(const OpCall& op) {
  if (!op.node().grad_enabled) return false;
  return std::any_of(op.results().begin(), op.results().end(), [&](ValueId value) { return requires_grad(op, value); });
}

std::vector<ValueId> factors_to_keep(const OpCall& op, const std::vector<ValueId>& factors) {
  if (factors.size() != 2) return op.tensors();
  std::vector<ValueId> kept;
  if (requires_grad(op, factors[0])) kept.push_back(factors[1]);
  if (requires_grad(op, factors[1])) kept.push_back(factors[0]);
  return kept;
}

double products_needed(const OpCall& op, const std::vector<ValueId>& factors) {
  const auto needing = std::count_if(factors.begin(), factors.end(), [&](ValueId v) { return requires_grad(op, v); });
  return static_cast<double>(std::min<std::ptrdiff_t>(needing, 2));
}

WorkItem work_of(const OpCall& op) {
  WorkItem item;
  const auto& def = op.def();
  item.op_class = def.op_class;
  const auto result = op.results().empty() ? ValueId::none() : op.results().front();
  if (!result.valid()) return item;
  item.dtype = dtype_of(op.graph().value(result).dtype);
  Affine read, written;
  for (const auto value : op.results()) written += bytes_of(op.graph(), value);
  std::size_t position = 0;
  for (const auto value : op.tensors()) {
    const bool is_table = position++ == 0 && def.has(OpTrait::kReadsRows);
    read += is_table ? bytes_of(op.graph(), result) : bytes_of(op.graph(), value);
  }
  const bool differentiable = is_differentiable(op);
  if (def.is_view()) {
    if (differentiable && def.has(OpTrait::kCopiesGradient)) {
      item.op_class = OpClass::kMemory;
      item.backward = {{}, read + written, {0, 1}};
    }
    return item;
  }
  item.forward.bytes = read + written;
  item.forward.launches = {0, 1};
  const auto flops = def.flops ? def.flops(op) : std::nullopt;
  item.forward.flops = flops ? *flops : elements(op.result_sizes());
  if (differentiable) {
    double factor = 2;
    if (flops) factor = def.backward_products ? def.backward_products(op) : products_needed(op, op.tensors());
    item.backward.flops = item.forward.flops * factor;
    item.backward.bytes = item.forward.bytes * 2;
    item.backward.launches = {0, flops ? factor : 1};
  }
  if (def.work) def.work(op, item);
  return item;
}

SavedBytes saved_by(const OpCall& op) {
  SavedBytes saved;
  if (!is_differentiable(op) || op.results().empty()) return saved;
  const auto& def = op.def();
  if (def.saved_by) return def.saved_by(op);
  const auto operands = op.tensors();
  const auto keep_if = [&](const std::vector<ValueId>& values, auto condition) {
    std::copy_if(values.begin(), values.end(), std::back_inserter(saved.values), condition);
  };
  const auto is_mask = [&](ValueId value) { return op.graph().value(value).dtype == c10::ScalarType::Bool; };
  const auto is_integral = [&](ValueId value) { return !op.is_floating(value); };
  switch (def.saved) {
    case SavedTensors::kNothing:
      break;
    case SavedTensors::kInput:
      if (!operands.empty()) saved.values = {operands.front()};
      break;
    case SavedTensors::kInputs:
      saved.values = operands;
      break;
    case SavedTensors::kResult:
      saved.values = {op.results().front()};
      break;
    case SavedTensors::kInputAndResult:
      if (!operands.empty()) saved.values = {operands.front()};
      saved.values.push_back(op.results().front());
      break;
    case SavedTensors::kMask:
      keep_if(operands, is_mask);
      break;
    case SavedTensors::kIndices:
      keep_if(operands, is_integral);
      keep_if(op.results(), is_integral);
      break;
  }
  return saved;
}

OpWorkspace workspace_of(const OpCall& op) { return op.def().workspace ? op.def().workspace(op) : OpWorkspace{}; }

bool draws(const OpCall& op) { return op.node().is_random && (!op.def().draws || op.def().draws(op)); }

bool updates_statistics(const OpCall& op) {
  return op.def().has(OpTrait::kRunningStatistics) &&
         op.flag(op.has("training") ? "training" : "use_input_stats", true);
}

GradientPlace gradient_place(const OpGraph& graph, OpId op) {
  const auto& rule = definition_of(graph.op(op).op).gradient_place;
  return rule ? rule(graph, op) : GradientPlace::kNew;
}

bool is_last_reader(const OpGraph& graph, OpId reader, std::int32_t operand) {
  const auto storage = graph.value(graph.input(reader, operand)).storage;
  if (!storage.valid()) return false;
  const auto is_there = [&](ValueId value) { return value.valid() && graph.value(value).storage == storage; };
  if (std::ranges::any_of(graph.outputs, is_there)) return false;
  bool has_maker = false;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const auto& op = graph.ops[i];
    const bool reads = std::ranges::find(op.reads, storage) != op.reads.end(),
               writes = std::ranges::find(op.writes, storage) != op.writes.end();
    if (OpId::of(i) == reader || (!reads && !writes)) continue;
    const auto& def = definition_of(op.op);
    if (writes) {
      const bool keeps_result = !def.is_known() || def.keeps_result || def.saved == SavedTensors::kResult ||
                                def.saved == SavedTensors::kInputAndResult;
      if (reads || has_maker || keeps_result) return false;
      has_maker = true;
    } else if (!def.is_view()) {
      return false;
    }
  }
  return has_maker;
}

}  // namespace autopar::ops
