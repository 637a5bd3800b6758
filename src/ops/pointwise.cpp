#include <algorithm>
#include <utility>

#include "ops/op_list.hpp"
#include "ops/rules.hpp"

namespace autopar::ops {

namespace {

// a + b with a partial sum: an addend that is no partial sum counts once.
BatchTyping plus(const OpCall& op) {
  const auto operands = sum_operands(op);
  BatchTyping result = typed(op, BatchType::partial_sum());
  result.handling.weighted_arguments = operands.shared;
  const auto other = op.position("other");
  const bool number = other >= 0 && op.tensors(other).empty();
  if (number) result.handling.weighted_arguments.push_back(other);
  if (operands.integral || (number && !op.is_floating(op.results().front())))
    return BatchTyping::needs_sum("an integer cannot be counted in parts");
  std::sort(result.handling.weighted_arguments.begin(), result.handling.weighted_arguments.end());
  return result;
}

BatchTyping quotient(const OpCall& op) {
  return linear_in_sum(op, sum_operands(op).first_only() && op.is_none("rounding_mode"));
}

/// The first `data` operands have samples. All samples share the rest: boundaries, slopes.
template <std::size_t data>
BatchTyping pointwise_of_first(const OpCall& op) {
  auto operands = op.tensors();
  for (std::size_t i = data; i < operands.size(); ++i) {
    if (op.type(operands[i]).has_samples()) return BatchTyping::mixes("an operand that all samples share has samples");
  }
  operands.resize(std::min(operands.size(), data));
  return pointwise_of(op, operands);
}

SavedBytes saved_by_product(const OpCall& op) { return {factors_to_keep(op, op.tensors()), {}}; }

SavedBytes saved_by_quotient(const OpCall& op) {
  auto operands = op.tensors();
  if (operands.size() == 2 && !requires_grad(op, operands[1])) operands.erase(operands.begin());
  return {std::move(operands), {}};
}

bool draws_in_training(const OpCall& op) { return op.flag("training", true); }

}  // namespace

OpDef definition_of_pointwise() {
  OpDef def;
  def.kind = OpKind::kPointwise;
  def.traits = OpTrait::kKeepsIntegers;
  def.saved = SavedTensors::kNothing;
  def.over_samples = pointwise;
  def.sharding = shard_pointwise;
  def.treatment = kPerSample;
  def.summary = "element by element; all operands have their samples in one dim";
  return def;
}

// NOLINTNEXTLINE(readability-function-size): a table.
void add_pointwise(OpList& list) {
  const OpDef def = definition_of_pointwise();
  auto sum = def;
  sum.over_sums = plus;
  list.add(sum, {"sub", "subtract", "rsub"});
  sum.traits = sum.traits | OpTrait::kPassesGradient;
  list.add(sum, {"add"});
  auto linear = def;
  linear.over_sums = linear_in_all;
  list.add(linear, {"neg", "negative", "positive", "real", "imag", "conj", "resolve_conj", "resolve_neg",
                    "conj_physical", "_conj_physical"});
  auto product = def;
  product.over_sums = linear_in_one_sum;
  product.saved_by = saved_by_product;
  list.add(product, {"mul", "multiply"});
  auto ratio = def;
  ratio.over_sums = quotient;
  ratio.saved_by = saved_by_quotient;
  list.add(ratio, {"div", "divide", "true_divide"});

  list.add(def, {"ceil",
                 "floor",
                 "round",
                 "trunc",
                 "fix",
                 "frac",
                 "sign",
                 "sgn",
                 "eq",
                 "ne",
                 "not_equal",
                 "lt",
                 "less",
                 "le",
                 "less_equal",
                 "gt",
                 "greater",
                 "ge",
                 "greater_equal",
                 "isnan",
                 "isinf",
                 "isfinite",
                 "isclose",
                 "isposinf",
                 "isneginf",
                 "signbit",
                 "logical_and",
                 "logical_or",
                 "logical_not",
                 "logical_xor",
                 "bitwise_and",
                 "bitwise_or",
                 "bitwise_not",
                 "bitwise_xor",
                 "bitwise_left_shift",
                 "bitwise_right_shift",
                 "__and__",
                 "__or__",
                 "__xor__",
                 "__iand_",
                 "__ior_",
                 "__ixor_",
                 "__lshift__",
                 "__rshift__",
                 "__ilshift_",
                 "__irshift_",
                 "floor_divide",
                 "heaviside",
                 "nextafter",
                 "gcd",
                 "lcm",
                 "complex"});
  list.add(def, SavedTensors::kInput,
           {"abs",      "absolute", "square",    "pow",         "float_power", "log",        "log2",       "log10",
            "log1p",    "sin",      "cos",       "asin",        "arcsin",      "acos",       "arccos",     "atan",
            "arctan",   "sinh",     "cosh",      "asinh",       "acosh",       "atanh",      "erf",        "erfc",
            "lgamma",   "digamma",  "logit",     "sinc",        "gelu",        "silu",       "mish",       "softplus",
            "hardtanh", "relu6",    "hardswish", "hardsigmoid", "leaky_relu",  "hardshrink", "softshrink", "threshold",
            "clamp",    "clip",     "clamp_min", "clamp_max",   "nan_to_num",  "elu"});
  list.add(def, SavedTensors::kResult,
           {"celu", "selu", "relu", "sigmoid", "tanh", "exp", "exp2", "expm1", "sqrt", "rsqrt", "reciprocal", "tan"});
  auto composite = def;
  composite.autocast = AutocastRule::kNone;
  list.add(composite, SavedTensors::kInputAndResult, {"log_sigmoid"});
  list.add(def, SavedTensors::kInputs,
           {"xlogy", "polar", "remainder", "fmod", "atan2", "hypot", "maximum", "minimum", "fmax", "fmin", "logaddexp",
            "logaddexp2", "addcmul", "addcdiv", "lerp", "copysign", "ldexp"});
  list.add(def, SavedTensors::kMask, {"where", "masked_fill"});

  auto view = def;
  view.op_class = OpClass::kView;
  view.over_sums = linear_in_all;
  list.add(view, {"_conj", "_neg_view"});

  auto shared = def;
  shared.over_samples = pointwise_of_first<1>;
  list.add(shared, {"bucketize", "isin"});
  list.add(shared, SavedTensors::kInputs, {"prelu"});

  auto random = def;
  random.traits = def.traits | OpTrait::kDrawsOnDevice;
  list.add(random, {"bernoulli"});
  list.add(def, {"poisson", "binomial"});
  list.add(def, SavedTensors::kInputAndResult, {"_standard_gamma"});
  auto noisy = def;
  noisy.draws = draws_in_training;
  list.add(noisy, SavedTensors::kInputAndResult, {"rrelu"});
}

}  // namespace autopar::ops
