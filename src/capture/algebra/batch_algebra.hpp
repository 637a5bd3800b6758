#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_type.hpp"
#include "capture/ir/collectives.hpp"

namespace autopar {

/// Which samples a batch norm in training mode normalises by (DESIGN §5, batch statistics).
enum class BatchNormMode : std::uint8_t {
  kMicrobatch,  ///< by the slice; running statistics are pooled over all slices and updated once a call
  kExact        ///< by the whole batch: captured with all-reduces (CaptureOptions), else the operator mixes samples
};

struct AlgebraOptions {
  BatchNormMode batch_norm = BatchNormMode::kMicrobatch;
  /// That runs the program: what kernels keep and work with (profiles only)
  c10::DeviceType device = c10::DeviceType::CPU;
};

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

/// The prologue runs before the pipeline, on every rank, on its own local batch (n = local batch, N = global batch, so
/// weights and scales apply as in a stage). Levels in order: run `ops`, then sum `sums` and `counts` over the ranks;
/// the sums replace the local values. A rank without samples runs only ops whose results are replicated and contributes
/// zeros of the right sizes.
struct PrologueLevel {
  std::vector<OpId> ops;             ///< ascending
  std::vector<ValueId> sums;         ///< partial sums to complete
  std::vector<std::int32_t> counts;  ///< indices into BatchPlan::counts
};

/// A value that leaves the pipeline for the epilogue as a partial sum: sum over all slices of it, times n/N if
/// `weighted`.
struct EpilogueInput {
  ValueId value;
  bool weighted = false;  ///< replicated (depends on parameters): counted once
};

enum class OutputKind : std::uint8_t {
  kBatched,     ///< type in BatchPlan::values; comes back for the caller's own samples
  kPartialSum,  ///< sum over all slices, the same on every rank
  kReplicated,  ///< any slice's value; as a loss (floating, differentiable) every slice's n/N of it is summed
  kPrologue,    ///< known after the prologue
  kEpilogue,    ///< result of the epilogue
  kInput,       ///< one of the caller's own tensors, unchanged
};

struct OutputPlan {
  ValueId value;
  OutputKind kind = OutputKind::kBatched;
  bool differentiable = false;
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

enum class BufferUpdateKind : std::uint8_t {
  kReplicated,  ///< depends on parameters and buffers only: every slice computes the same; run `ops` once a call
  kPartialSum,  ///< new value = sum of `result` over all slices, or what the epilogue makes of such sums
  kWholeBatch,  ///< every slice that holds samples computes the same, that of the whole batch: `result` of the slice
                ///< with the first sample
};

/// A buffer that the forward writes (not by a batch norm of `batch_norms`). Slices never write the buffer itself: their
/// version 0 is a private copy of the value at the start of the call; at its end the buffer takes the new value. No
/// slice runs the operators of a buffer that follows itself alone and is not read afterwards (a counter).
struct BufferUpdate {
  ValueId buffer;  ///< the leaf
  ValueId result;  ///< its last version
  BufferUpdateKind kind = BufferUpdateKind::kReplicated;
  /// kReplicated: all ops that the new value needs, ascending; no samples are needed to run them
  std::vector<OpId> ops;
};

/// Everything that an engine needs to run the captured program slice by slice with the training of the whole batch.
struct BatchPlan {
  std::vector<BatchType> values;         ///< by ValueId
  std::vector<bool> depends_on_samples;  ///< by ValueId; of a replicated value: it comes from a whole-batch op.
                                         ///< What follows from completed sums is known without samples
  std::vector<OpHandling> ops;           ///< by OpId
  std::vector<LossCount> counts;
  std::vector<PrologueLevel> prologue;
  std::vector<ValueId> prologue_values;  ///< ascending; replicated constants for stages and epilogue
  std::vector<ValueId> prologue_leaves;  ///< buffers that the prologue reads: needed on every rank
  std::vector<OpId> epilogue;            ///< ascending; run on every rank, with gradients, on the completed inputs
  std::vector<EpilogueInput> epilogue_inputs;
  std::vector<OutputPlan> outputs;  ///< like OpGraph::outputs
  std::vector<BatchNormPlan> batch_norms;
  std::vector<BufferUpdate> buffer_updates;
  bool loss_mode = false;  ///< one differentiable result, a floating scalar, and it is a sum over slices
  std::int32_t loss = -1;  ///< loss_mode: index into `outputs`

  [[nodiscard]] const BatchType& type(ValueId value) const { return values[value.index()]; }
  [[nodiscard]] const OpHandling& handling(OpId op) const { return ops[op.index()]; }
  [[nodiscard]] bool is_prologue(ValueId value) const;
  /// The parameter that a value is, or a cast of it that is made once a call; none for other values.
  [[nodiscard]] ValueId parameter_behind(const OpGraph& graph, ValueId value) const;
  /// Whether what the op gives for a sample depends on which others are in its slice: a batch norm in training mode.
  [[nodiscard]] bool normalises_by_slice(OpId op) const;
  /// First op of a stage that needs the whole batch in one slice; none if every op may be split.
  [[nodiscard]] OpId first_whole_batch_op() const;
};

/// Types every value and decides each op's handling, so that Σ over slices is the whole batch *exactly* (law 1).
///
/// An operator outside the table, or one that mixes samples, is marked `whole_batch`. Refused by name: writes into
/// arguments, parameters or constants, results that belong to no sample and no sum, inputs with several batch dims.
/// @throws CaptureError naming operator, path, reason and way out
/// @cost O(ops + values), times the number of times a sum turns out to be needed early (few)
[[nodiscard]] BatchPlan analyze_batch(const OpGraph& graph, const AlgebraOptions& options = {});

/// @throws CaptureError naming the first op that mixes samples, if there is one: for plans with several slices
void require_splittable(const OpGraph& graph, const BatchPlan& plan);

}  // namespace autopar
