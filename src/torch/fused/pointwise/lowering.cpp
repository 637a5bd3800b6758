#include "torch/fused/pointwise/lowering.hpp"

#include <algorithm>
#include <functional>
#include <numbers>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "ops/names.hpp"
#include "ops/registry.hpp"

namespace autopar::fused::pointwise {

namespace {

/// Formulas of one step. Gradients are derived from them. A formula with a kink is written so that its derivative at
/// the kink is libtorch's.
class Formulas final : public PointwiseFormula {
 public:
  Formulas(Builder& builder, const Step& step, const std::vector<Node>& tensors)
      : builder_(builder), step_(step), tensors_(tensors) {}

  [[nodiscard]] Node constant(double number) override { return builder_.constant(number); }
  [[nodiscard]] Node make(Code code, Node a, Node b = kNone, Node c = kNone) override {
    return builder_.make(code, a, b, c);
  }

  [[nodiscard]] const c10::IValue* given(std::size_t at) const {
    return at < step_.arguments.size() ? std::get_if<c10::IValue>(&step_.arguments[at]) : nullptr;
  }
  [[nodiscard]] bool is_none(std::size_t at) const { return given(at) != nullptr && given(at)->isNone(); }
  [[nodiscard]] bool is_number(std::size_t at) const override {
    return given(at) != nullptr && (given(at)->isInt() || given(at)->isDouble() || given(at)->isBool());
  }
  [[nodiscard]] bool is_tensor(std::size_t at) const override {
    return at < step_.arguments.size() && std::holds_alternative<TensorIndex>(step_.arguments[at]);
  }
  [[nodiscard]] double number(std::size_t at) const override { return given(at)->toScalar().to<double>(); }
  [[nodiscard]] bool is_text(std::size_t at, std::string_view text) const {
    return given(at) != nullptr && given(at)->isString() && given(at)->toStringRef() == text;
  }
  /// A tensor or a number.
  [[nodiscard]] Node operand(std::size_t at) override {
    if (!is_tensor(at)) return constant(number(at));
    return tensors_[static_cast<std::size_t>(std::get<TensorIndex>(step_.arguments[at]).at)];
  }

  [[nodiscard]] Node square(Node x) { return product(x, x); }
  /// x in [low, high], whose derivative is 1 on the bounds.
  [[nodiscard]] Node clamped(Node x, Node low, Node high) {
    if (low != kNone) x = where(less(x, low), low, x);
    return high != kNone ? where(less(high, x), high, x) : x;
  }
  /// x in [low, high], with a derivative of 0 on the bounds.
  [[nodiscard]] Node clamped_within(Node x, double low, double high) {
    return where(at_most(x, constant(low)), constant(low), where(at_most(constant(high), x), constant(high), x));
  }
  [[nodiscard]] Node silu(Node x) { return product(x, make(Code::kSigmoid, x)); }
  [[nodiscard]] Node gelu(Node x) {
    const auto half = product(x, constant(0.5));
    if (is_text(1, "none"))
      return product(half, sum(constant(1), make(Code::kErf, product(x, constant(1 / std::numbers::sqrt2)))));
    const auto inner = product(constant(std::numbers::sqrt2 * std::numbers::inv_sqrtpi),
                               sum(x, product(constant(0.044715), product(square(x), x))));
    return product(half, sum(constant(1), make(Code::kTanh, inner)));
  }
  [[nodiscard]] Node power(Node x, double exponent) {
    if (exponent == 2) return square(x);
    if (exponent == 3) return product(square(x), x);
    if (exponent == 1) return x;
    if (exponent == 0.5) return make(Code::kSqrt, x);
    if (exponent == -0.5) return make(Code::kRsqrt, x);
    if (exponent == -1) return quotient(constant(1), x);
    if (exponent == -2) return quotient(constant(1), square(x));
    return make(Code::kPow, x, constant(exponent));
  }
  // The exponential reads only values for which the logarithm is used: the gradient of a huge exponential would be NaN.
  [[nodiscard]] Node softplus(Node x, double beta, double threshold) {
    const auto scaled = product(x, constant(beta)), most = constant(threshold), is_beyond = less(most, scaled);
    const auto curve = make(Code::kLog1p, make(Code::kExp, where(is_beyond, most, scaled)));
    return where(is_beyond, x, quotient(curve, constant(beta)));
  }
  [[nodiscard]] Node elu(Node x, double alpha, double scale, double input_scale) {
    const auto zero = constant(0);
    const auto negative = where(at_most(x, zero), x, zero);
    const auto curve = make(Code::kExpm1, product(negative, constant(input_scale)));
    return where(at_most(x, zero), product(curve, constant(alpha * scale)), product(x, constant(scale)));
  }
  [[nodiscard]] Node hardswish(Node x) {
    const auto curve = product(x, quotient(sum(x, constant(3)), constant(6)));
    return where(at_most(x, constant(-3)), constant(0), where(less(x, constant(3)), curve, x));
  }
  /// The larger of two values; if they are equal, each gets half of the gradient.
  [[nodiscard]] Node larger(Node a, Node b) {
    const auto half = product(constant(0.5), sum(a, b));
    return where(less(b, a), a, where(less(a, b), b, half));
  }
  [[nodiscard]] Node smaller(Node a, Node b) {
    const auto half = product(constant(0.5), sum(a, b));
    return where(less(a, b), a, where(less(b, a), b, half));
  }
  [[nodiscard]] Node addend(std::size_t operand_at, std::size_t factor_at) {
    return product(operand(operand_at), constant(number(factor_at)));
  }
  /// Whether a conversion changes only the element type.
  [[nodiscard]] bool converts_type() const { return is_number(1) && is_none(step_.arguments.size() - 1); }

 private:
  Builder& builder_;
  const Step& step_;
  const std::vector<Node>& tensors_;
};

using Formula = std::function<std::optional<Node>(Formulas&)>;

Formula of_one(Code code) {
  return [code](Formulas& f) -> std::optional<Node> { return f.make(code, f.operand(0)); };
}

std::unordered_map<std::string_view, Formula> arithmetic() {
  using F = Formulas;
  using Made = std::optional<Node>;
  return {
      {ops::kAdd, [](F& f) -> Made { return f.sum(f.operand(0), f.addend(1, 2)); }},
      {ops::kSub, [](F& f) -> Made { return f.difference(f.operand(0), f.addend(1, 2)); }},
      {ops::kRsub, [](F& f) -> Made { return f.difference(f.operand(1), f.addend(0, 2)); }},
      {ops::kMul, [](F& f) -> Made { return f.product(f.operand(0), f.operand(1)); }},
      {ops::kDiv,
       [](F& f) -> Made {
         if (f.given(2) != nullptr && !f.is_none(2)) return std::nullopt;  // a rounding mode
         return f.quotient(f.operand(0), f.operand(1));
       }},
      {ops::kReciprocal, [](F& f) -> Made { return f.quotient(f.constant(1), f.operand(0)); }},
      {ops::kSquare, [](F& f) -> Made { return f.square(f.operand(0)); }},
      {ops::kPow,
       [](F& f) -> Made {
         if (!f.is_tensor(0) || !f.is_number(1) || f.number(1) == 0) return std::nullopt;
         return f.power(f.operand(0), f.number(1));
       }},
      {ops::kAddcmul,
       [](F& f) -> Made {
         return f.sum(f.operand(0), f.product(f.constant(f.number(3)), f.product(f.operand(1), f.operand(2))));
       }},
      {ops::kAddcdiv,
       [](F& f) -> Made {
         return f.sum(f.operand(0), f.product(f.constant(f.number(3)), f.quotient(f.operand(1), f.operand(2))));
       }},
      {ops::kLerp,
       [](F& f) -> Made {
         return f.sum(f.operand(0), f.product(f.operand(2), f.difference(f.operand(1), f.operand(0))));
       }},
      {ops::kNeg, of_one(Code::kNeg)},
      {ops::kAbs, of_one(Code::kAbs)},
      {ops::kExp, of_one(Code::kExp)},
      {ops::kExpm1, of_one(Code::kExpm1)},
      {ops::kLog, of_one(Code::kLog)},
      {ops::kLog1p, of_one(Code::kLog1p)},
      {ops::kSqrt, of_one(Code::kSqrt)},
      {ops::kRsqrt, of_one(Code::kRsqrt)},
      {ops::kErf, of_one(Code::kErf)},
      {ops::kTo, [](F& f) -> Made { return f.converts_type() ? Made(f.operand(0)) : std::nullopt; }},
      {ops::kToCopy, [](F& f) -> Made { return f.converts_type() ? Made(f.operand(0)) : std::nullopt; }},
  };
}

std::unordered_map<std::string_view, Formula> activations() {
  using F = Formulas;
  using Made = std::optional<Node>;
  return {
      {ops::kTanh, of_one(Code::kTanh)},
      {ops::kSigmoid, of_one(Code::kSigmoid)},
      {ops::kRelu, of_one(Code::kRelu)},
      {ops::kSilu, [](F& f) -> Made { return f.silu(f.operand(0)); }},
      {ops::kGelu,
       [](F& f) -> Made {
         if (!f.is_text(1, "none") && !f.is_text(1, "tanh")) return std::nullopt;
         return f.gelu(f.operand(0));
       }},
      {ops::kMish,
       [](F& f) -> Made { return f.product(f.operand(0), f.make(Code::kTanh, f.softplus(f.operand(0), 1, 20))); }},
      {ops::kSoftplus, [](F& f) -> Made { return f.softplus(f.operand(0), f.number(1), f.number(2)); }},
      {ops::kElu, [](F& f) -> Made { return f.elu(f.operand(0), f.number(1), f.number(2), f.number(3)); }},
      {ops::kLeakyRelu,
       [](F& f) -> Made {
         const auto x = f.operand(0);
         return f.where(f.less(f.constant(0), x), x, f.product(x, f.constant(f.number(1))));
       }},
      {ops::kHardtanh, [](F& f) -> Made { return f.clamped_within(f.operand(0), f.number(1), f.number(2)); }},
      {ops::kRelu6, [](F& f) -> Made { return f.clamped_within(f.operand(0), 0, 6); }},
      {ops::kHardsigmoid,
       [](F& f) -> Made {
         return f.quotient(f.clamped_within(f.sum(f.operand(0), f.constant(3)), 0, 6), f.constant(6));
       }},
      {ops::kHardswish, [](F& f) -> Made { return f.hardswish(f.operand(0)); }},
  };
}

std::unordered_map<std::string_view, Formula> choices() {
  using F = Formulas;
  using Made = std::optional<Node>;
  const auto bound = [](F& f, std::size_t at) { return f.is_number(at) ? f.constant(f.number(at)) : kNone; };
  return {
      {ops::kClamp,
       [bound](F& f) -> Made {
         if (f.is_tensor(1) || f.is_tensor(2)) return std::nullopt;
         return f.clamped(f.operand(0), bound(f, 1), bound(f, 2));
       }},
      {ops::kClampMin,
       [bound](F& f) -> Made {
         return f.is_number(1) ? Made(f.clamped(f.operand(0), bound(f, 1), kNone)) : std::nullopt;
       }},
      {ops::kClampMax,
       [bound](F& f) -> Made {
         return f.is_number(1) ? Made(f.clamped(f.operand(0), kNone, bound(f, 1))) : std::nullopt;
       }},
      {ops::kMaximum, [](F& f) -> Made { return f.larger(f.operand(0), f.operand(1)); }},
      {ops::kMinimum, [](F& f) -> Made { return f.smaller(f.operand(0), f.operand(1)); }},
      {ops::kWhere,
       [](F& f) -> Made {
         if (!f.is_tensor(0) || !f.is_tensor(1) || !f.is_tensor(2)) return std::nullopt;
         return f.where(f.operand(0), f.operand(1), f.operand(2));
       }},
      {ops::kMaskedFill,
       [](F& f) -> Made {
         return f.is_number(2) ? Made(f.where(f.operand(1), f.constant(f.number(2)), f.operand(0))) : std::nullopt;
       }},
  };
}

const Formula* formula_named(std::string_view name) {
  static const auto all = [] {
    auto table = arithmetic();
    table.merge(activations());
    table.merge(choices());
    return table;
  }();
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

std::optional<Node> lower(Builder& builder, const Step& step, const std::vector<Node>& tensors) {
  Formulas formulas(builder, step, tensors);
  if (const auto* formula = formula_named(step.op.schema().name())) return (*formula)(formulas);
  const auto& of_user = ops::definition_of(step.op).formula;
  return of_user ? of_user(formulas) : std::nullopt;
}

}  // namespace

std::optional<Expression> expression_of(const Program& program) {
  Builder builder;
  Expression expression;
  std::vector<Node> tensors;
  for (const auto& input : program.inputs) {
    tensors.push_back(builder.input(static_cast<std::int32_t>(tensors.size())));
    expression.inputs.push_back(input.type);
  }
  for (const auto& step : program.steps) {
    const auto node = lower(builder, step, tensors);
    if (!node) return std::nullopt;
    tensors.push_back(*node);
    expression.steps.push_back({*node, step.type});
  }
  for (const auto result : program.results)
    expression.results.push_back({tensors[static_cast<std::size_t>(result)], program.type_of(result)});
  expression.instructions = builder.instructions();
  return expression;
}

bool has_formula(const Step& step) {
  Builder builder;
  std::vector<Node> tensors;
  for (const auto& argument : step.arguments) {
    if (const auto* tensor = std::get_if<TensorIndex>(&argument))
      tensors.resize(std::max(tensors.size(), static_cast<std::size_t>(tensor->at) + 1), builder.input(0));
  }
  return lower(builder, step, tensors).has_value();
}

}  // namespace autopar::fused::pointwise
