#include <algorithm>
#include <array>

#include "capture/algebra/op_context.hpp"

namespace autopar::algebra {
namespace {

/// Operand types of an op over partial sums: sums, shared tensors, or something with samples.
struct SumOperands {
  std::vector<std::int32_t> sums;    ///< schema positions with a partial sum
  std::vector<std::int32_t> shared;  ///< schema positions with replicated tensors
  bool samples = false;
  bool integral = false;  ///< a shared tensor that cannot be weighted by n/N
};

SumOperands classify(const OpContext& op) {
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

// a + b with a sum over samples: what is no such sum counts once.
RuleResult type_plus(const OpContext& op, const SumOperands& operands) {
  RuleResult result = typed(op, BatchType::partial_sum());
  result.handling.weighted_arguments = operands.shared;
  const auto other = op.position("other");
  const bool number = other >= 0 && op.tensors(other).empty();
  if (number) result.handling.weighted_arguments.push_back(other);
  if ((operands.integral || number) && !op.is_floating(op.results().front())) {
    return RuleResult::needs_sum("an integer cannot be counted in parts");
  }
  if (operands.integral) return RuleResult::needs_sum("an integer cannot be counted in parts");
  std::sort(result.handling.weighted_arguments.begin(), result.handling.weighted_arguments.end());
  return result;
}

RuleResult linear_in_sum(const OpContext& op, bool is_linear, const char* why) {
  return is_linear ? typed(op, BatchType::partial_sum()) : RuleResult::needs_sum(why);
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool keeps_value(const OpContext& op) {
  const auto self = op.first_tensor();
  return !op.is_floating(self) || op.is_floating(op.results().front());
}

}  // namespace

RuleResult type_over_sums(const OpContext& op) {
  const auto operands = classify(op);
  const auto name = op.base_name();
  constexpr auto kNotLinear = "it is not linear in a sum over samples";
  if (op.traits().family == OpFamily::kCollective) {
    RuleResult result = typed(op, BatchType::replicated());
    result.handling.collective = collective_named(op.node().op.schema().name());
    return result;
  }
  if (operands.samples) return RuleResult::needs_sum("it uses a sum over all samples for each sample");
  if (!type_by_sizes(op.result_sizes()).is(BatchKind::kReplicated) || op.has_batch_sizes()) {
    return RuleResult::needs_sum("it spreads a sum over all samples over the batch");
  }
  const bool first_only = operands.sums == std::vector<std::int32_t>{0};
  if (is_one_of(name, {"add", "sub", "subtract", "rsub"})) return type_plus(op, operands);
  if (is_one_of(name, {"mul", "multiply"})) return linear_in_sum(op, operands.sums.size() == 1, kNotLinear);
  if (is_one_of(name, {"div", "divide", "true_divide"})) {
    return linear_in_sum(op, first_only && op.is_none("rounding_mode"), kNotLinear);
  }
  if (is_one_of(name, {"neg", "negative", "positive", "conj", "_conj", "_conj_physical", "conj_physical",
                       "resolve_conj", "_neg_view", "resolve_neg", "real", "imag", "view_as_real", "view_as_complex",
                       "_fft_c2c", "_fft_r2c", "_fft_c2r"})) {
    return linear_in_sum(op, true, kNotLinear);
  }
  switch (op.traits().family) {
    case OpFamily::kReshape:
    case OpFamily::kPermute:
    case OpFamily::kSqueeze:
    case OpFamily::kUnsqueeze:
    case OpFamily::kExpand:
    case OpFamily::kSelect:
    case OpFamily::kSlice:
    case OpFamily::kSplit:
    case OpFamily::kRepeat:
      return linear_in_sum(op, first_only, kNotLinear);
    case OpFamily::kCopyValue:
      return linear_in_sum(op, first_only && keeps_value(op), kNotLinear);
    case OpFamily::kReduceSum:
    case OpFamily::kReduceMean:
      return linear_in_sum(op, first_only && !is_one_of(name, {"nansum", "count_nonzero"}), kNotLinear);
    case OpFamily::kCat:
    case OpFamily::kStack:
      return linear_in_sum(op, operands.shared.empty(), kNotLinear);
    case OpFamily::kContraction: {
      const bool has_addend = is_one_of(name, {"addmm", "addmv", "baddbmm", "addbmm"});
      return linear_in_sum(op, !has_addend && operands.sums.size() == 1, kNotLinear);
    }
    case OpFamily::kIndexSelect:
    case OpFamily::kIndex:
    case OpFamily::kGather:
      return linear_in_sum(op, first_only, kNotLinear);
    case OpFamily::kCopyInto:
      if (op.tensors().size() == 2 && op.type(op.tensors()[1]).is(BatchKind::kReplicated)) {
        return typed(op, BatchType::replicated());
      }
      return linear_in_sum(op, op.is_floating(op.results().front()) || !op.is_floating(op.tensors()[1]), kNotLinear);
    case OpFamily::kFill:
      return op.written_argument() == 0 && first_only && op.node().is_random == false
                 ? typed(op, BatchType::replicated())
                 : RuleResult::needs_sum(kNotLinear);
    default:
      return RuleResult::needs_sum(kNotLinear);
  }
}

}  // namespace autopar::algebra
