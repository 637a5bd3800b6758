#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>

#include <autopar/cost/model_profile.hpp>

namespace autopar {

/// Operators that treat samples alike. A family has one typing rule (src/capture/algebra/rules_*.cpp).
enum class OpFamily : std::uint8_t {
  kUnknown,      ///< not in the table: assumed to mix samples
  kPointwise,    ///< broadcasts its tensors; each element by itself
  kCopyValue,    ///< the same values: clone, to, detach, contiguous
  kFactory,      ///< sizes from integers; content constant or random
  kLikeFactory,  ///< sizes from a tensor, whose values do not matter
  kFill,         ///< overwrites its first argument with a number
  kCopyInto,     ///< overwrites its first argument with the second
  kArange,
  kReshape,
  kPermute,
  kSqueeze,
  kUnsqueeze,
  kExpand,
  kBroadcastTensors,  ///< a list of tensors, expanded to one shape
  kSelect,
  kSlice,  ///< slice, narrow
  kSplit,  ///< chunk, split, unbind: lists of pieces along a dim
  kRepeat,
  kRepeatInterleave,
  kAlongDims,  ///< works along its `dim`/`dims`, keeps the others: softmax, cumsum, sort, flip
  kReduceSum,
  kReduceMean,
  kReduce,  ///< other reductions
  kCat,
  kStack,
  kContraction,  ///< matmul and its relatives
  kLinear,
  kRows,         ///< each row of its `dim` by itself: renorm
  kReplacePart,  ///< a copy of its first argument, a part of which is its second: slice_scatter
  kMatrix,       ///< works on matrices in the last two dims, and on vectors and numbers that go with them
  kTrailing,     ///< works on its last `parameter` dims
  kLayerNorm,    ///< works on the last dims that `normalized_shape` names
  kLeading,      ///< samples are dim 0 of its data arguments (`parameter` of them), the rest is shared
  kAttention,
  kRecurrent,  ///< lstm, gru, rnn over sequences
  kDropout,
  kFeatureDropout,  ///< drops whole channels: samples must be dim 0 or 1
  kEmbedding,
  kEmbeddingBag,  ///< bags of one size, whose first entries are numbered by an arange
  kIndex,
  kIndexPut,
  kIndexSelect,
  kIndexAdd,
  kGather,
  kScatter,
  kDiagonal,       ///< of the matrices in two dims, and back: diagonal, diag_embed
  kAppendDim,      ///< pointwise with other last dims: one_hot, complex from pairs
  kPointwiseLoss,  ///< has `reduction`
  kRowLoss,        ///< has `reduction`; samples are dim 0
  kClassLoss,      ///< has `reduction`, `ignore_index`, class weights: cross entropy, nll
  kClassHead,      ///< a linear layer and its cross entropy, see ir/class_head.hpp
  kSequenceLoss,   ///< has `reduction`; samples are dim 1 of the sequences and dim 0 of targets and lengths: ctc
  kBatchNorm,
  kCollective,  ///< a row of `kCollectives`
  kMixing,      ///< known to mix samples whatever its arguments
};

/// What libtorch keeps from forward for the backward of an operator (its derivative formulas), besides views.
enum class SavedTensors : std::uint8_t {
  kNothing,
  kInput,   ///< the first tensor argument
  kInputs,  ///< every differentiable pair: for a product each factor that the other's gradient needs
  kResult,  ///< the result
  kInputAndResult,
  kMask,           ///< one byte an element of the result
  kConvolution,    ///< input and weight
  kNormalisation,  ///< input and two statistics a row
  kAttention,      ///< query, key, value, result, one statistic a row
  kRecurrent,      ///< input and gates of every step
  kIndices,        ///< the integer tensors among the arguments
  kJoined,         ///< of joined point-wise operators: what their gradients are cheapest made of
};

/// One line of the closed operator table.
struct OpTraits {
  std::string_view name;  ///< without namespace and trailing underscore: "add"
  OpFamily family = OpFamily::kUnknown;
  OpClass op_class = OpClass::kMemory;
  SavedTensors saved = SavedTensors::kNothing;
  std::int32_t parameter = 0;  ///< see the family
};

[[nodiscard]] std::span<const OpTraits> op_table();

/// The line of an aten operator; in-place twins share that of the functional one. Others: family kUnknown.
/// @param qualified_name  "aten::add_"
/// @cost O(1)
[[nodiscard]] const OpTraits& traits_of(std::string_view qualified_name);

/// Likewise; an operator outside the table, aten's or registered by a user, is pointwise if its registration says so
/// (`at::Tag::pointwise`).
[[nodiscard]] const OpTraits& traits_of(const c10::OperatorHandle& op);

}  // namespace autopar
