#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <autopar/capture/batch_type.hpp>
#include <autopar/capture/op_graph.hpp>

namespace autopar {

struct Collective;

/// What a random operator's draws depend on.
enum class Draw : std::uint8_t {
  kNone,
  kPerSlice,  ///< key with the first global sample of the slice: slices differ
  kAlike,     ///< key without samples: every slice draws the same
};

/// How one op is run so that the slices together give the whole batch. n = samples of the slice, N = of the global
/// batch. Order: replace arguments; weight arguments; call; divide; scale.
struct OpHandling {
  bool in_prologue = false;  ///< see BatchPlan::prologue
  bool in_stage = false;     ///< belongs to a stage of the pipeline
  bool in_epilogue = false;  ///< see BatchPlan::epilogue; an op in none of the three has no effect and is not run

  bool whole_batch = false;  ///< exact only on a slice with n = N: one micro-batch, one replica
  /// A row of `kCollectives`, which takes a partial sum: one micro-batch; where the slices are on several replicas, a
  /// stage ends before it.
  const Collective* collective = nullptr;
  std::string reason;  ///< why, for messages

  /// Schema positions of arguments (tensors or numbers) that count once: times n/N before the call. A weighted argument
  /// that the op writes in place is first copied: `args[0] * (n/N)` is the tensor that is written and becomes the
  /// result.
  std::vector<std::int32_t> weighted_arguments;
  bool copy_written = false;  ///< the argument written in place is a prologue value: write into a copy of it
  bool scale_output = false;  ///< result times n/N: a mean over the slice becomes an addend of the global mean
  std::int32_t count = -1;    ///< index into BatchPlan::counts: result divided by that global count
  std::int32_t reduction_argument = -1;  ///< this argument is replaced by at::Reduction::Sum
  bool replace_squeeze = false;  ///< call `squeeze(self, squeeze_dims)` instead, so that n = 1 keeps the batch dim
  std::vector<std::int64_t> squeeze_dims;
  Draw draw = Draw::kNone;
  std::int32_t batch_norm = -1;  ///< index into BatchPlan::batch_norms
  bool once = false;             ///< casts a parameter: run once a call, for all slices
};

/// Global count that the mean of a loss divides by: of the targets that are not `ignore_index`, each counted with its
/// class weight if there are weights. Known after the prologue; a sum over ranks of local counts.
struct LossCount {
  ValueId target;  ///< class indices
  ValueId weight;  ///< one per class, or none
  std::int64_t ignore_index = -100;
};

/// A batch norm in training mode that normalises by the slice. Each slice gives per-channel mean, biased variance and
/// count (elements per channel); at the end of the call they are pooled over all slices of all replicas,
/// M = sum c*m / C, V = sum c*(v + (m-M)^2) / C, C = sum c, and, once,
/// running_mean = (1-momentum)*running_mean + momentum*M, running_var likewise with V*C/(C-1).
///
/// An instance norm normalises each sample by itself, whatever the slice; its running statistics follow the means over
/// samples of each sample's own mean and unbiased variance: M = sum c*m / C, V = sum c*v / C with c counting samples.
struct BatchNormPlan {
  OpId op;
  ValueId running_mean;  ///< buffer; none: no running statistics
  ValueId running_var;
  double momentum = 0.1;
  SizeExpr samples;        ///< elements per channel on n samples; of an instance norm, its rows
  bool by_sample = false;  ///< an instance norm
};

/// How a rule answers.
enum class Verdict : std::uint8_t {
  kTyped,     ///< `outputs` and `handling` hold
  kMixes,     ///< no handling makes slices exact
  kNeedsSum,  ///< exact once the partial sums among its operands are complete
};

/// What an operator does to samples: the types of its results, and how slices run it.
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
