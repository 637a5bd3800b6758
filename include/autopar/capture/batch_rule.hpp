#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <autopar/capture/batch_type.hpp>
#include <autopar/capture/op_graph.hpp>

namespace autopar {

namespace ir {
struct Collective;
}

/// How the random numbers of an operator are keyed.
enum class Draw : std::uint8_t {
  kNone,
  kPerSlice,  ///< keyed by the first global sample of the slice: slices draw different numbers
  kAlike,     ///< keyed without samples: every slice draws the same numbers
};

/// How one op runs on a slice, so that all slices together compute the whole batch. The slice has n samples, the global
/// batch N. Order: replace arguments; weight arguments; call; divide; scale.
struct OpHandling {
  bool in_prologue = false;  ///< see BatchSemantics::prologue
  bool in_stage = false;     ///< belongs to a stage of the pipeline
  bool in_epilogue = false;  ///< see BatchSemantics::epilogue; an op in none of the three has no effect and is not run

  bool whole_batch = false;  ///< exact only on a slice with n = N: one micro-batch, one replica
  /// Row of `kCollectives`: the op takes a partial sum and needs one micro-batch. If the slices are on several
  /// replicas, a stage ends before the op.
  const ir::Collective* collective = nullptr;
  std::string reason;  ///< why, for messages

  /// Schema positions of arguments (tensors or numbers) that count once per batch: times n/N before the call. A
  /// weighted argument that the op writes in place is first copied: the op writes `args[0] * (n/N)`, which becomes the
  /// result.
  std::vector<std::int32_t> weighted_arguments;
  bool copy_written = false;  ///< the argument written in place is a prologue value: write into a copy of it
  bool scale_output = false;  ///< result times n/N: a mean over the slice becomes an addend of the global mean
  std::int32_t count = -1;    ///< index into BatchSemantics::counts: result divided by that global count
  std::int32_t reduction_argument = -1;  ///< this argument is replaced by at::Reduction::Sum
  bool replace_squeeze = false;  ///< call `squeeze(self, squeeze_dims)` instead, so that n = 1 keeps the batch dim
  std::vector<std::int64_t> squeeze_dims;
  Draw draw = Draw::kNone;
  std::int32_t batch_norm = -1;  ///< index into BatchSemantics::batch_norms
  bool once = false;             ///< cast of a parameter: run once per call, for all slices
};

/// Global divisor of a loss mean: the number of targets other than `ignore_index`. With class weights, each target
/// counts its class weight. Known after the prologue, as the sum of the local counts over the ranks.
struct LossCount {
  ValueId target;  ///< class indices
  ValueId weight;  ///< one per class, or none
  std::int64_t ignore_index = -100;
};

/// A batch norm in training mode that normalises by the slice. Each slice gives, per channel, its mean m, biased
/// variance v and count c of elements. At the end of the call they are pooled over all slices of all replicas. C = sum
/// c, M = sum c*m / C, V = sum c*(v + (m-M)^2) / C. The running statistics are updated once: running_mean =
/// (1-momentum)*running_mean + momentum*M. The update of running_var has V*C/(C-1) instead of M.
///
/// An instance norm normalises each sample separately, so the slice does not matter. Its running statistics follow the
/// means, over samples, of each sample's mean and unbiased variance. M = sum c*m / C and V = sum c*v / C, where c
/// counts samples.
struct BatchNormPlan {
  OpId op;
  ValueId running_mean;  ///< buffer; none: no running statistics
  ValueId running_var;
  double momentum = 0.1;
  SizeExpr samples;        ///< elements per channel on n samples; for an instance norm, the size of dim 0
  bool by_sample = false;  ///< an instance norm
};

/// Answer of a rule.
enum class Verdict : std::uint8_t {
  kTyped,     ///< `outputs` and `handling` are valid
  kMixes,     ///< no handling makes slices exact
  kNeedsSum,  ///< exact once the partial sums among its operands are complete
};

/// Effect of an operator on samples: the types of its results, and how slices run it.
struct BatchTyping {
  Verdict verdict = Verdict::kMixes;
  std::string reason;              ///< kMixes, kNeedsSum
  std::vector<BatchType> outputs;  ///< one per tensor result, lists flattened
  OpHandling handling;
  std::optional<LossCount> count;  ///< divide by this global count
  std::optional<BatchNormPlan> batch_norm;

  /// @param why  completes "the operator runs on the whole batch: …"
  [[nodiscard]] static BatchTyping mixes(std::string why) {
    BatchTyping result;
    result.reason = std::move(why);
    return result;
  }
  [[nodiscard]] static BatchTyping needs_sum(std::string why) {
    BatchTyping result = mixes(std::move(why));
    result.verdict = Verdict::kNeedsSum;
    return result;
  }
};

}  // namespace autopar
