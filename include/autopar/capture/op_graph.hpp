#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <autopar/core/ids.hpp>

namespace autopar {

using ValueId = Index<struct ValueTag>;      ///< one version of one tensor of the captured program
using OpId = Index<struct OpTag>;            ///< one operator call, in program order
using StorageId = Index<struct StorageTag>;  ///< memory that values may share

/// An integer as a function of the batch size: `per_sample * batch + fixed`.
struct SizeExpr {
  std::int64_t per_sample = 0;
  std::int64_t fixed = 0;

  [[nodiscard]] constexpr std::int64_t at(std::int64_t batch) const { return per_sample * batch + fixed; }
  [[nodiscard]] constexpr bool depends_on_batch() const { return per_sample != 0; }
  friend constexpr bool operator==(SizeExpr, SizeExpr) = default;
};

enum class SlotKind : std::uint8_t {
  kTensor,       ///< Tensor or Tensor?: one value
  kList,         ///< Tensor[]
  kOptionalList  ///< Tensor?[]
};

/// The tensors of one argument or one result of an operator.
struct Slot {
  std::int32_t position = 0;  ///< index of the argument, or of the result, in the schema
  SlotKind kind = SlotKind::kTensor;
  std::vector<ValueId> values;  ///< one for kTensor; `ValueId::none()` = None or an undefined tensor
};

enum class IntegerRole : std::uint8_t {
  kSize,       ///< size, stride, index, bound of an arange: takes the LOCAL batch (of the micro-batch and replica)
  kArithmetic  ///< operand of arithmetic (schema type Scalar), as in sum()/B: takes the GLOBAL batch
};

/// How an argument uses an integer that depends on the batch size.
enum class NumberForm : std::uint8_t {
  kInteger,        ///< the integer itself
  kMultiple,       ///< factor * integer, a floating point number
  kQuotient,       ///< factor / integer, as in sum() * (1.0 / B)
  kSingleQuotient  ///< factor / integer, both rounded to single precision before and after
};

/// An integer argument, an element of an integer-list argument, or a floating point operand of arithmetic that depends
/// on the batch size.
struct BatchInteger {
  std::int32_t argument = 0;
  std::int32_t element = -1;  ///< position in an int[] argument; -1: the argument itself
  SizeExpr expr;
  IntegerRole role = IntegerRole::kSize;
  NumberForm form = NumberForm::kInteger;  ///< other forms only in arithmetic
  double factor = 1;                       ///< for forms other than kInteger

  /// The argument as a floating point number.
  [[nodiscard]] double number_at(std::int64_t batch) const;
};

/// One operator call as the dispatcher saw it, above autograd. Autocast is already resolved into explicit casts.
struct OpNode {
  c10::OperatorHandle op;
  std::vector<c10::IValue> args{};       ///< one per schema argument; tensors and tensor lists are None here
  std::vector<Slot> inputs{};            ///< ascending by position
  std::vector<Slot> outputs{};           ///< ascending by position
  std::vector<BatchInteger> integers{};  ///< entries of `args` to replace for a batch size
  bool grad_enabled = true;              ///< grad mode at the call
  bool is_random = false;                ///< takes a generator, or draws from the default one
  std::vector<StorageId> reads{};        ///< ascending, unique; of the tensor arguments, written ones included
  std::vector<StorageId> writes{};       ///< ascending, unique; arguments written in place and storages created
  std::string path{};                    ///< nearest parameter or buffer, for messages: "layers.3.weight"
};

enum class ValueKind : std::uint8_t {
  kInput,      ///< tensor argument of the model, see `position`
  kParameter,  ///< see `name`
  kBuffer,     ///< see `name`
  kConstant,   ///< tensor made outside the forward and not registered, or by raw writes; see `constant`
  kComputed    ///< result of `definer`
};

/// One version of a tensor: an in-place operator defines a new value in the same storage (`previous` is the old one). A
/// view is a separate value, which shares `storage` with its base.
struct ValueInfo {
  ValueKind kind = ValueKind::kComputed;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<SizeExpr> sizes;
  std::vector<SizeExpr> strides;
  bool requires_grad = false;  ///< as in one process: differentiable, at any size
  StorageId storage;           ///< none for tensors without storage
  OpId definer;                ///< none for leaves
  ValueId previous;            ///< the version that `definer` overwrote; none if it overwrote nothing
  std::int32_t position = -1;  ///< kInput: index among the tensor arguments
  std::string name;            ///< kParameter, kBuffer: first name in the module
  at::Tensor constant;         ///< kConstant: the data

  [[nodiscard]] bool is_leaf() const { return kind != ValueKind::kComputed; }
  /// Whether a gradient can flow into it. In one process, integers made from a differentiable tensor have none.
  [[nodiscard]] bool has_gradient() const {
    return requires_grad && (c10::isFloatingType(dtype) || c10::isComplexType(dtype));
  }
  [[nodiscard]] std::int64_t elements(std::int64_t batch) const;
};

/// "Float[B, 4]": element type and sizes, B being the batch size.
[[nodiscard]] std::string describe_form(const ValueInfo& value);

struct NamedValue {
  std::string name;
  ValueId value;
};

/// A captured forward pass: straight-line program over values. Ops are in program order, which is a topological order.
/// Plain data; equal models with equal signatures have equal `hash()` in every process.
class OpGraph {
 public:
  std::vector<OpNode> ops;
  std::vector<ValueInfo> values;
  std::vector<ValueId> inputs;         ///< tensor arguments, flat, in order (unused ones too)
  std::vector<ValueId> outputs;        ///< tensor results, flat, in order; may be leaves, may repeat
  std::vector<NamedValue> parameters;  ///< every name; tied names have the same value. Unused ones too
  std::vector<NamedValue> buffers;
  std::int32_t storage_count = 0;

  [[nodiscard]] const OpNode& op(OpId id) const { return ops[id.index()]; }
  [[nodiscard]] OpNode& op(OpId id) { return ops[id.index()]; }
  [[nodiscard]] const ValueInfo& value(ValueId id) const { return values[id.index()]; }
  [[nodiscard]] ValueInfo& value(ValueId id) { return values[id.index()]; }

  /// "aten::addmm", as the schema says; `overload(op)` is e.g. "Tensor" or empty.
  [[nodiscard]] const std::string& name(OpId id) const { return op(id).op.schema().name(); }
  [[nodiscard]] const std::string& overload(OpId id) const { return op(id).op.schema().overload_name(); }
  [[nodiscard]] bool is(OpId id, std::string_view qualified_name) const { return name(id) == qualified_name; }

  /// Ops that take the value as a tensor argument, ascending, each once. O(ops); for all values at once see `uses()`.
  [[nodiscard]] std::vector<OpId> uses(ValueId value) const;
  /// `uses()[v.index()]` for every value. O(edges).
  [[nodiscard]] std::vector<std::vector<OpId>> uses() const;

  /// The value at a tensor (non-list) argument of the op, none if the argument holds no tensor.
  [[nodiscard]] ValueId input(OpId id, std::int32_t position) const;
  /// The value of a tensor (non-list) result of the op, none if there is none.
  [[nodiscard]] ValueId output(OpId id, std::int32_t position = 0) const;

  /// For each storage, the first op that creates it; none for storages of leaves.
  [[nodiscard]] std::vector<OpId> storage_creators() const;

  /// "#12 aten::addmm (near layers.0.weight)".
  [[nodiscard]] std::string describe(OpId id) const;

  /// Structural hash: operators, arguments, wiring, value types, names, contents of constants. Paths and device numbers
  /// are left out.
  [[nodiscard]] std::uint64_t hash() const;
};

/// Calls `visit(ValueId)` for each tensor argument that is not none, in order.
template <class Visit>
void for_each_input(const OpNode& node, Visit&& visit) {
  for (const auto& slot : node.inputs) {
    for (auto value : slot.values) {
      if (value.valid()) std::invoke(visit, value);
    }
  }
}

/// Parameters that some ops read, ascending, each once.
[[nodiscard]] std::vector<ValueId> parameters_read(const OpGraph& graph, const std::vector<OpId>& ops);

/// Calls `visit(ValueId)` for each tensor result that is not none, in order.
template <class Visit>
void for_each_output(const OpNode& node, Visit&& visit) {
  for (const auto& slot : node.outputs) {
    for (auto value : slot.values) {
      if (value.valid()) std::invoke(visit, value);
    }
  }
}

}  // namespace autopar
