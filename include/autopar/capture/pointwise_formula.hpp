#pragma once

#include <cstddef>
#include <cstdint>

namespace autopar {

/// Instruction on one element of each of its operands.
enum class PointwiseCode : std::uint8_t {
  kInput,     ///< an element of an input
  kConstant,  ///< a number
  kAdd,
  kSub,
  kMul,
  kDiv,
  kPow,  ///< to a constant
  kNeg,
  kAbs,
  kExp,
  kExpm1,
  kLog,
  kLog1p,
  kSqrt,
  kRsqrt,
  kTanh,
  kErf,
  kSigmoid,
  kRelu,
  kLess,       ///< 1 or 0
  kLessEqual,  ///< 1 or 0
  kEqual,      ///< 1 or 0
  kSelect,     ///< the second operand where the first is not 0, else the third
};

/// Builds the formula of one element of a pointwise operator (`OpDef::formula`). Fused kernels evaluate it in the
/// forward, and the derivatives of its instructions in the backward. Terms are valid during the call that makes them.
class PointwiseFormula {
 public:
  using Term = std::int32_t;
  static constexpr Term kNone = -1;

  virtual ~PointwiseFormula() = default;

  /// An argument of the schema: an element of a tensor, or a number.
  [[nodiscard]] virtual Term operand(std::size_t argument) = 0;
  [[nodiscard]] virtual Term constant(double number) = 0;
  /// @param a, b, c  as many as the code takes
  [[nodiscard]] virtual Term make(PointwiseCode code, Term a, Term b = kNone, Term c = kNone) = 0;

  [[nodiscard]] virtual bool is_tensor(std::size_t argument) const = 0;
  /// Whether the argument is a number or a truth value.
  [[nodiscard]] virtual bool is_number(std::size_t argument) const = 0;
  /// @pre is_number(argument)
  [[nodiscard]] virtual double number(std::size_t argument) const = 0;

  [[nodiscard]] Term sum(Term a, Term b) { return make(PointwiseCode::kAdd, a, b); }
  [[nodiscard]] Term difference(Term a, Term b) { return make(PointwiseCode::kSub, a, b); }
  [[nodiscard]] Term product(Term a, Term b) { return make(PointwiseCode::kMul, a, b); }
  [[nodiscard]] Term quotient(Term a, Term b) { return make(PointwiseCode::kDiv, a, b); }
  [[nodiscard]] Term where(Term condition, Term a, Term b) { return make(PointwiseCode::kSelect, condition, a, b); }
  [[nodiscard]] Term less(Term a, Term b) { return make(PointwiseCode::kLess, a, b); }
  [[nodiscard]] Term at_most(Term a, Term b) { return make(PointwiseCode::kLessEqual, a, b); }
};

}  // namespace autopar
