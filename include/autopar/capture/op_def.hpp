#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <autopar/capture/batch_rule.hpp>
#include <autopar/capture/op_call.hpp>
#include <autopar/capture/pointwise_formula.hpp>
#include <autopar/capture/shard_rule.hpp>
#include <autopar/core/work.hpp>

namespace autopar {

/// Effect of an operator on elements, for code that treats all operators of a kind alike.
enum class OpKind : std::uint8_t {
  kOther,
  kPointwise,  ///< computes each element of the broadcast operands separately
  kCopy,       ///< the same values: clone, casts
  kReshape,    ///< the same elements in other dims
  kExpand,     ///< repeats dims of size one without a copy
  kPermute,
  kSelect,
  kSlice,
  kSplit,
  kFill,  ///< overwrites its first argument
};

/// Facts of an operator, joined with `|`.
enum class OpTrait : std::uint32_t {
  kNone = 0,
  kTakesBatchSizes = 1 << 0,     ///< its integers may follow the batch size
  kMakesBatchDim = 1 << 1,       ///< its rule types results that grow with the batch although no operand does
  kReadsSizesOnly = 1 << 2,      ///< values of operands do not matter
  kKeepsSampleNumbers = 1 << 3,  ///< sample indices (arange(B)) stay sample indices
  kTakesSampleNumbers = 1 << 4,  ///< indexes by sample indices, in arguments after the first
  kTakesRowStarts = 1 << 5,      ///< takes the positions where the rows of samples begin
  kKeepsIntegers = 1 << 6,       ///< integers of its results are its operands', or computed from them one by one
  kPicksElements = 1 << 7,       ///< its results' elements are elements of its first argument
  kReadsRows = 1 << 8,           ///< reads only as much of its first argument as its result holds
  kCopiesGradient = 1 << 9,      ///< a view whose backward makes memory
  kTakesApart = 1 << 10,         ///< gives pieces of a dim
  kRunningStatistics = 1 << 11,  ///< in training it writes `running_mean` and `running_var`, undeclared in its schema
  kDrawsOnDevice = 1 << 12,      ///< draws random numbers in its kernels, from a Philox seed
  kSharesElementType = 1 << 13,  ///< its first two tensors must have one element type, even if its shape rule allows
                                 ///< two
  kReadsWeights = 1 << 14,       ///< reads layer weights, a table or scores: not computed on slices of tokens
  kPassesGradient = 1 << 15,     ///< operands with the result's sizes have the result's gradient
  /// Returns its one result twice, for two readers, so that its backward gets a gradient from each. Both may share
  /// memory, since nothing writes to either. Graphs name only the first.
  kDuplicatedOutputs = 1 << 16,
};
[[nodiscard]] constexpr OpTrait operator|(OpTrait a, OpTrait b) {
  return static_cast<OpTrait>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
[[nodiscard]] constexpr bool has(OpTrait all, OpTrait one) {
  return (static_cast<std::uint32_t>(all) & static_cast<std::uint32_t>(one)) != 0;
}

/// Tensors that the forward of an operator keeps for its backward, besides views.
enum class SavedTensors : std::uint8_t {
  kNothing,
  kInput,   ///< the first tensor argument
  kInputs,  ///< every tensor argument
  kResult,
  kInputAndResult,
  kMask,     ///< the boolean tensors among the arguments
  kIndices,  ///< the integer tensors among arguments and results
};

/// Memory that an op keeps for its backward: tensors of the captured graph, and bytes of tensors internal to the op.
struct SavedBytes {
  std::vector<ValueId> values;
  Affine internal;
};

/// Bytes internal to an op, besides operands and results: while its forward runs, and while its backward runs.
struct OpWorkspace {
  Affine forward, backward;
};

/// Memory in which a backward makes the gradient of an operator's first operand.
enum class GradientPlace : std::uint8_t {
  kNew,
  kOverSaved,    ///< over its saved tensors
  kOverOperand,  ///< over the operand, which has no later reader
};

/// How autocast treats the floating tensors among the arguments (`Options::precision`).
enum class AutocastRule : std::uint8_t {
  kAsLibtorch,  ///< as libtorch registered the operator; left as they are if it did not
  kNone,        ///< left as they are
  kLow,         ///< cast to autocast's element type
  kFloat32,     ///< cast to float32
  kPromote,     ///< cast to the widest among them
};

/// A product of samples with a weight matrix: a layer that tensor shards may cut.
struct LayerForm {
  std::int32_t weight = 1;   ///< position of the weight among the arguments
  std::int32_t outputs = 0;  ///< the weight's dim that runs over outputs
  std::int32_t bias = -1;    ///< position of the addend of the product; -1: none
  bool always = false;       ///< always a layer, not also a product of two values
  bool makes_loss = false;   ///< its outputs are the classes of a loss, not a dim of its result
};

/// y = f(x, weight, bias), whose backward can run in two parts: the gradient of x, and later the parameters'.
struct BackwardParts {
  /// The gradient of x from y's; empty if x never has one (indices).
  std::function<at::Tensor(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight)> input;
  /// The gradients of the weight and, if wanted, the bias. For 16-bit operands they are sums over the slice in single
  /// precision, to avoid a rounding for each slice.
  std::function<std::vector<at::Tensor>(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight,
                                        bool with_bias)>
      weights;
  /// Adds the gradients of `weights` to `sums`, which have the parameters' type; may be empty.
  std::function<void(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight,
                     const std::vector<at::Tensor>& sums)>
      add_weights;
  std::int32_t x_at = 0, weight_at = 1, bias_at = 2;  ///< positions of the arguments, -1: has none
};

/// A dim that the integers of an argument index, and its size.
struct PickedDim {
  ValueId indices;
  SizeExpr size;
};

/// Definition of an operator: a name and rules. All rules but `over_samples` are optional. Rules see the captured call
/// (op_call.hpp). They are pure functions, and several threads may call them at once.
///
///     ap::register_op({.name = "mylib::scale_rows",       // TORCH_LIBRARY(mylib, m) { m.def("scale_rows(…)", …); }
///                      .over_samples = ap::ops::samples_first(1),
///                      .saved = ap::SavedTensors::kInputs,
///                      .sharding = ap::ops::shard_pointwise});
struct OpDef {
  using TypingRule = std::function<BatchTyping(const OpCall&)>;
  using CostRule = std::function<std::optional<Affine>(const OpCall&)>;

  std::string name;  ///< "mylib::scale_rows": namespace and operator, without overload
  int version = 1;   ///< part of what ranks and plan files must agree on; raise it when a rule changes
  OpKind kind = OpKind::kOther;
  OpTrait traits = OpTrait::kNone;

  /// Typing rule where an operand has samples, or where the result grows with the batch; no operand is a partial sum.
  /// Empty: the operator is not known, and one slice has the whole batch.
  TypingRule over_samples{};
  /// Typing rule with partial sums among the operands, and no samples. Empty: not linear in them.
  TypingRule over_sums{};
  /// Whether the call draws random numbers. Empty: always, if its schema says that it may.
  std::function<bool(const OpCall&)> draws{};
  /// Dims that integers among its arguments index (`sample_indices`); empty: none.
  std::function<std::vector<PickedDim>(const OpCall&)> picks{};
  /// Why no plan can train it, with a workaround; empty text if a plan can. Empty rule: a plan always can.
  std::function<std::string(const OpCall&)> fault{};

  /// Boxed kernel for the results' sizes, types and layouts. It takes the arguments off the stack and pushes results of
  /// the right form, made by `at::empty` or similar. Empty: the operator's Meta kernel, else a run on zeros.
  std::function<void(torch::jit::Stack&)> shapes{};

  OpClass op_class = OpClass::kMemory;
  /// Arithmetic operations of the forward's products, for n samples. Empty or nullopt: one per element of the result.
  CostRule flops{};
  /// Products of the backward per product of the forward, if `flops` gives a count. Empty: one for each of the first
  /// two tensors with a gradient. Without `flops`, a backward counts as two forwards.
  std::function<double(const OpCall&)> backward_products{};
  /// Corrects the work counted by the rules above, if they are incomplete.
  std::function<void(const OpCall&, WorkItem&)> work{};
  SavedTensors saved = SavedTensors::kInputAndResult;
  /// Used instead of `saved`, if set.
  std::function<SavedBytes(const OpCall&)> saved_by{};
  std::function<OpWorkspace(const OpCall&)> workspace{};
  bool keeps_result = false;  ///< `saved_by` keeps the result
  /// Only for the library's own operators. Empty: in new memory.
  std::function<GradientPlace(const OpGraph&, OpId)> gradient_place{};

  /// How tensor shards run it with operands in slices. Empty: it takes and gives whole values.
  std::function<ShardedOp(ShardCall&)> sharding{};
  std::int32_t sharded_argument = 0;  ///< for ShardedOp::Kernel::kTogether: the argument whose slices shards follow
  CostRule exchanged{};               ///< for ShardedOp::Kernel::kTogether: bytes of exchange buffers or workspace
  bool makes_class_loss = false;      ///< for ShardedOp::Kernel::kTogether: a loss whose statistics shards gather
  std::optional<LayerForm> layer{};
  std::int32_t table = -1;  ///< position of a table whose rows are looked up by indices; -1: none

  /// The formulas of a backward in two parts for this call; nullopt: the backward is not split.
  std::function<std::optional<BackwardParts>(const OpNode&)> split_backward{};

  /// Formula of one result element from the operands' elements; nullopt: none for these arguments. Only for a
  /// `kPointwise` operator with one result, which may be fused with others into one kernel. Empty: never fused.
  std::function<std::optional<PointwiseFormula::Term>(PointwiseFormula&)> formula{};

  AutocastRule autocast = AutocastRule::kAsLibtorch;
  /// How many of the first arguments are cast in a program that computes in 16 bits throughout. Only parameters,
  /// buffers and model arguments are cast.
  std::size_t low_arguments = std::numeric_limits<std::size_t>::max();

  std::string_view treatment{};  ///< "per sample", "sums", "mixes": its chapter of OPERATORS.md
  std::string_view summary{};    ///< its paragraph there

  [[nodiscard]] bool has(OpTrait trait) const { return autopar::has(traits, trait); }
  [[nodiscard]] bool is_view() const { return op_class == OpClass::kView; }
  /// Whether the library knows the operator at all.
  [[nodiscard]] bool is_known() const { return static_cast<bool>(over_samples); }
};

/// Registers a user's operator (`TORCH_LIBRARY`): from now on it is captured, sliced, sharded and planned like
/// libtorch's. Call it in every rank, with equal definitions, before the first capture of the process. The first call
/// of a model names ranks whose definitions differ in name or version. Plan files store both.
/// @throws InvalidArgument if the name has no namespace, belongs to libtorch or this library, or names no registered
///         operator. Also if the operator is defined already, `over_samples` is empty, or the version is less than 1.
///         Also if a rule for the library's own operators is set, or something has been captured already
void register_op(OpDef def);

/// Rules for `OpDef`, which the definitions of libtorch's operators use too.
namespace ops {

/// For operators that compute each element of the broadcast tensors separately. Samples lie in one dim.
[[nodiscard]] BatchTyping pointwise(const OpCall& op);
/// Samples are dim 0 of the first `data` arguments (a list counts as one); the others have none.
[[nodiscard]] OpDef::TypingRule samples_first(std::int32_t data);
/// For operators that work only on their last `dims` dims. All tensors have the same number of dims.
[[nodiscard]] OpDef::TypingRule last_dims(std::int64_t dims);
/// For operators that work along the dims in the argument `dim` or `dims`, and keep the others.
[[nodiscard]] BatchTyping along_dims(const OpCall& op);
/// For operators that are linear in their only partial sum, like a product with a tensor that all samples share.
[[nodiscard]] BatchTyping linear_in_one_sum(const OpCall& op);

/// A dim counted from the front.
[[nodiscard]] constexpr std::int64_t wrap_dim(std::int64_t dim, std::int64_t rank) {
  return dim < 0 ? dim + rank : dim;
}

/// All results have this type, and slices run the operator as it is.
[[nodiscard]] BatchTyping typed(const OpCall& op, BatchType type);

/// The common type of the operands after broadcasting to `rank` dims, aligned at the last dim. Replicated operands fit
/// any type.
/// @return nullopt if two operands have samples in different dims or layouts
[[nodiscard]] std::optional<BatchType> broadcast(const OpCall& op, const std::vector<ValueId>& operands,
                                                 std::int64_t rank);

/// Elements of a value as a function of the batch. A product of two batch dims is linearised at one and two samples.
[[nodiscard]] Affine elements(const std::vector<SizeExpr>& sizes);
/// Bytes of a value.
[[nodiscard]] Affine bytes_of(const OpGraph& graph, ValueId value);
/// For operators that compute each element separately; any dim may be sharded.
[[nodiscard]] ShardedOp shard_pointwise(ShardCall& call);
/// Treats units as `over_samples` treats samples. For operators that move dims, or work along other dims.
[[nodiscard]] ShardedOp shard_by_dims(ShardCall& call);

}  // namespace ops

}  // namespace autopar
