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

/// What an operator does with elements, for code that treats alike what moves or copies them.
enum class OpKind : std::uint8_t {
  kOther,
  kPointwise,  ///< each element of the broadcast operands by itself
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
  kMakesBatchDim = 1 << 1,       ///< its rule knows results that grow with the batch where no operand does
  kReadsSizesOnly = 1 << 2,      ///< values of operands do not matter
  kKeepsSampleNumbers = 1 << 3,  ///< numbers of samples (arange(B)) stay what they are
  kTakesSampleNumbers = 1 << 4,  ///< picks by them, in other arguments than its first
  kTakesRowStarts = 1 << 5,      ///< takes where the rows of samples begin
  kKeepsIntegers = 1 << 6,       ///< integers of its results are its operands', or follow from them one by one
  kPicksElements = 1 << 7,       ///< its results' elements are elements of its first argument
  kReadsRows = 1 << 8,           ///< of its first argument only as much as its result has
  kCopiesGradient = 1 << 9,      ///< a view whose backward makes memory
  kTakesApart = 1 << 10,         ///< gives pieces of a dim
  kRunningStatistics = 1 << 11,  ///< in training it writes `running_mean` and `running_var`, unsaid by its schema
  kDrawsOnDevice = 1 << 12,      ///< draws within kernels, by a Philox seed
  kSharesElementType = 1 << 13,  ///< its first two tensors must have one element type, whatever shape rules say
  kReadsWeights = 1 << 14,       ///< of a layer, a table, scores: not computed on slices of tokens
  kPassesGradient = 1 << 15,     ///< operands of its result's sizes have its result's gradient
  /// Returns its one result twice: the same numbers, for two readers, so that its backward gets a gradient from each.
  /// Both may be one memory: nothing writes to either. Graphs name the first alone.
  kDuplicatedOutputs = 1 << 16,
};
[[nodiscard]] constexpr OpTrait operator|(OpTrait a, OpTrait b) {
  return static_cast<OpTrait>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
[[nodiscard]] constexpr bool has(OpTrait all, OpTrait one) {
  return (static_cast<std::uint32_t>(all) & static_cast<std::uint32_t>(one)) != 0;
}

/// What is kept from forward for the backward of an operator, besides views.
enum class SavedTensors : std::uint8_t {
  kNothing,
  kInput,   ///< the first tensor argument
  kInputs,  ///< every tensor argument
  kResult,
  kInputAndResult,
  kMask,     ///< the boolean tensors among the arguments
  kIndices,  ///< the integer tensors among arguments and results
};

/// What an op keeps for its backward: tensors of the captured graph, and bytes of tensors that only the op knows.
struct SavedBytes {
  std::vector<ValueId> values;
  Affine internal;
};

/// Bytes that only the op knows, beside operands and results, while it runs and while its backward runs.
struct OpWorkspace {
  Affine forward, backward;
};

/// Where a backward makes the gradient of an operator's first operand.
enum class GradientPlace : std::uint8_t {
  kNew,
  kOverSaved,    ///< over what it keeps
  kOverOperand,  ///< over the operand, which nobody needs any more
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
  std::int32_t bias = -1;    ///< position of what is added to the product; -1: nothing is
  bool always = false;       ///< always a layer, not also a product of two values
  bool makes_loss = false;   ///< its outputs are classes of a loss, and not its result
  /// Makes the call one without its bias, whose slot is already gone. Null if `bias` is -1.
  void (*drop_bias)(OpNode& node) = nullptr;
};

/// y = f(x, weight, bias), whose backward can run in two parts: the gradient of x, and later the parameters'.
struct BackwardParts {
  /// The gradient of x from y's; empty if x never has one (indices).
  std::function<at::Tensor(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight)> input;
  /// The gradients of the weight and, if wanted, the bias. For 16-bit operands sums over the slice in single precision,
  /// as they would else add a rounding for each slice.
  std::function<std::vector<at::Tensor>(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight,
                                        bool with_bias)>
      weights;
  /// Adds them to sums of the parameters' own type, as `weights` would give them; may be empty.
  std::function<void(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight,
                     const std::vector<at::Tensor>& sums)>
      add_weights;
  std::int32_t x_at = 0, weight_at = 1, bias_at = 2;  ///< positions of the arguments, -1: has none
};

/// What integers of an argument index: a dim of so many elements.
struct PickedDim {
  ValueId indices;
  SizeExpr size;
};

/// What the library knows of an operator: a name and interfaces, of which all but `over_samples` are optional. Rules
/// see the captured call (op_call.hpp); they are pure functions, and may be asked by several threads at once.
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

  /// What it does to samples, where at least one operand has some, or where the result grows with the batch; no
  /// operand is a partial sum. Empty: not known, one slice has the whole batch.
  TypingRule over_samples{};
  /// The same with partial sums among its operands, none with samples; empty: not linear in them.
  TypingRule over_sums{};
  /// Whether these arguments make it draw random numbers; empty: always, if its schema says that it may.
  std::function<bool(const OpCall&)> draws{};
  /// Dims that integers among its arguments index (`sample_indices`); empty: none.
  std::function<std::vector<PickedDim>(const OpCall&)> picks{};
  /// Why no plan can train it, with the way out; empty text if one can. Empty: always.
  std::function<std::string(const OpCall&)> fault{};

  /// The results' sizes, types and layouts, as a boxed kernel: takes arguments off the stack, pushes results made by
  /// `at::empty` and the like of their sizes. Empty: the operator's Meta kernel, else a run on zeros.
  std::function<void(torch::jit::Stack&)> shapes{};

  OpClass op_class = OpClass::kMemory;
  /// Arithmetic operations of the forward's products, for n samples; empty or nothing: one an element of the result.
  CostRule flops{};
  /// Products of the backward for each of the forward's, where `flops` gives some; empty: one for each of the first two
  /// tensors with a gradient. Without `flops` a backward counts as two forwards.
  std::function<double(const OpCall&)> backward_products{};
  /// Changes the work counted by the rules above, if they do not say all.
  std::function<void(const OpCall&, WorkItem&)> work{};
  SavedTensors saved = SavedTensors::kInputAndResult;
  /// In place of `saved`.
  std::function<SavedBytes(const OpCall&)> saved_by{};
  std::function<OpWorkspace(const OpCall&)> workspace{};
  bool keeps_result = false;  ///< `saved_by` keeps the result
  /// Of the library's operators alone; empty: in new memory.
  std::function<GradientPlace(const OpGraph&, OpId)> gradient_place{};

  /// How tensor shards run it with operands in slices; empty: it takes whole values and gives whole ones.
  std::function<ShardedOp(ShardCall&)> sharding{};
  std::int32_t sharded_argument = 0;  ///< of ShardedOp::Kernel::kTogether: the argument whose slices shards go by
  CostRule exchanged{};               ///< of ShardedOp::Kernel::kTogether: bytes that shards exchange, or work in
  bool makes_class_loss = false;      ///< of ShardedOp::Kernel::kTogether: a loss, of which shards gather statistics
  std::optional<LayerForm> layer{};
  std::int32_t table = -1;  ///< position of a table whose rows indices pick; -1: none

  /// The formulas of a backward in two parts for this call; nothing: it stays whole.
  std::function<std::optional<BackwardParts>(const OpNode&)> split_backward{};

  /// One element of its result by those of its operands; nothing: not for these arguments. Of a `kPointwise` operator
  /// with one result: it may be joined with others into one kernel. Empty: it never is.
  std::function<std::optional<PointwiseFormula::Term>(PointwiseFormula&)> formula{};

  AutocastRule autocast = AutocastRule::kAsLibtorch;
  /// Of how many first arguments a program that computes in 16 bits throughout casts parameters, buffers and arguments.
  std::size_t low_arguments = std::numeric_limits<std::size_t>::max();

  std::string_view treatment{};  ///< "per sample", "sums", "mixes": its chapter of OPERATORS.md
  std::string_view summary{};    ///< its paragraph there

  [[nodiscard]] bool has(OpTrait trait) const { return autopar::has(traits, trait); }
  [[nodiscard]] bool is_view() const { return op_class == OpClass::kView; }
  /// Whether the library knows the operator at all.
  [[nodiscard]] bool is_known() const { return static_cast<bool>(over_samples); }
};

/// Makes a user's operator (`TORCH_LIBRARY`) known: from now on it is captured, cut, sharded and planned like
/// libtorch's. Called in every rank, with equal definitions, before the first capture of the process. Ranks whose
/// definitions differ in name or version are named by the first call of a model; plan files hold both.
/// @throws InvalidArgument if the name has no namespace or is libtorch's or this library's, if no operator of that name
///         is registered, if it has a definition already, if `over_samples` is empty, the version is less than 1, if an
///         interface of the library's operators alone is set, or something has been captured already
void register_op(OpDef def);

/// Rules for `OpDef`, as libtorch's own operators have them.
namespace ops {

/// Each element of the broadcast tensors by itself; samples lie in one dim.
[[nodiscard]] BatchTyping pointwise(const OpCall& op);
/// Samples are dim 0 of the first `data` arguments (a list counts as one), the others have none.
[[nodiscard]] OpDef::TypingRule samples_first(std::int32_t data);
/// Works on its last `dims` dims alone; all tensors have as many dims.
[[nodiscard]] OpDef::TypingRule last_dims(std::int64_t dims);
/// Works along the dims that the arguments `dim` or `dims` name, and keeps the others.
[[nodiscard]] BatchTyping along_dims(const OpCall& op);
/// Linear in its only partial sum, as a product with something that all samples share.
[[nodiscard]] BatchTyping linear_in_one_sum(const OpCall& op);

/// A dim counted from the front.
[[nodiscard]] constexpr std::int64_t wrap_dim(std::int64_t dim, std::int64_t rank) {
  return dim < 0 ? dim + rank : dim;
}

/// All results have this type, and slices run the operator as it is.
[[nodiscard]] BatchTyping typed(const OpCall& op, BatchType type);

/// Broadcasts operands (aligned at the last dim) to `rank` dims: the type they share there. Replicated operands fit
/// any.
/// @return nullopt if two operands have samples in different dims or layouts
[[nodiscard]] std::optional<BatchType> broadcast(const OpCall& op, const std::vector<ValueId>& operands,
                                                 std::int64_t rank);

/// Elements of a value as a function of the batch; a product of two batch dims is linearised at one and two samples.
[[nodiscard]] Affine elements(const std::vector<SizeExpr>& sizes);
/// Bytes of a value.
[[nodiscard]] Affine bytes_of(const OpGraph& graph, ValueId value);
/// Each element by itself, whatever the dim that is cut.
[[nodiscard]] ShardedOp shard_pointwise(ShardCall& call);
/// As `over_samples` treats samples: for operators that move dims, or work along others.
[[nodiscard]] ShardedOp shard_by_dims(ShardCall& call);

}  // namespace ops

}  // namespace autopar
