#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <autopar/capture/batch_rule.hpp>
#include <autopar/capture/op_call.hpp>
#include <autopar/capture/op_graph.hpp>

#include "capture/ir/collectives.hpp"

namespace autopar::algebra {

/// The prologue runs before the pipeline, on every rank, on the rank's local batch. Weights and scales apply as in a
/// stage, with n = local batch and N = global batch. Levels run in order: run `ops`, then sum `sums` and `counts` over
/// the ranks; the sums replace the local values. A rank without samples runs only ops whose results are replicated and
/// contributes zeros of the right sizes.
struct PrologueLevel {
  std::vector<OpId> ops;             ///< ascending
  std::vector<ValueId> sums;         ///< partial sums to complete
  std::vector<std::int32_t> counts;  ///< indices into BatchSemantics::counts
};

/// A value that leaves the pipeline for the epilogue as a partial sum: its sum over all slices, times n/N if
/// `weighted`.
struct EpilogueInput {
  ValueId value;
  bool weighted = false;  ///< replicated (depends on parameters): counted once
};

enum class OutputKind : std::uint8_t {
  kBatched,     ///< type in BatchSemantics::values; comes back for the caller's own samples
  kPartialSum,  ///< sum over all slices, the same on every rank
  kReplicated,  ///< any slice's value; as a loss (floating, differentiable), the sum of every slice's value times n/N
  kPrologue,    ///< known after the prologue
  kEpilogue,    ///< result of the epilogue
  kInput,       ///< one of the caller's own tensors, unchanged
};

struct OutputPlan {
  ValueId value;
  OutputKind kind = OutputKind::kBatched;
  bool differentiable = false;
};

enum class BufferUpdateKind : std::uint8_t {
  kReplicated,  ///< depends on parameters and buffers only: every slice computes the same; run `ops` once per call
  kPartialSum,  ///< new value = sum of `result` over all slices, or the epilogue's result from these sums
  kWholeBatch,  ///< every slice with samples computes the value of the whole batch: `result` of the slice with the
                ///< first sample
};

/// A buffer that the forward writes (not by a batch norm of `batch_norms`). Slices never write the buffer itself. Their
/// version 0 is a private copy of the value at the start of the call. At the end of the call the buffer takes the new
/// value. No slice runs the operators of a buffer that depends only on itself and is not read afterwards (a counter).
struct BufferUpdate {
  ValueId buffer;  ///< the leaf
  ValueId result;  ///< its last version
  BufferUpdateKind kind = BufferUpdateKind::kReplicated;
  /// kReplicated: all ops that the new value needs, ascending; they run without samples
  std::vector<OpId> ops;
};

/// Everything that an engine needs to run the captured program slice by slice, with the same training as on the whole
/// batch.
struct BatchSemantics {
  std::vector<BatchType> values;         ///< by ValueId
  std::vector<bool> depends_on_samples;  ///< by ValueId; for a replicated value: it comes from a whole-batch op. Values
                                         ///< computed from completed sums are known without samples
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
  /// The parameter behind a value: a parameter itself, or a cast of one that is made once per call. None for other
  /// values.
  [[nodiscard]] ValueId parameter_behind(const OpGraph& graph, ValueId value) const;
  /// Whether the op's result for a sample depends on the other samples of its slice: a batch norm in training mode.
  [[nodiscard]] bool normalises_by_slice(OpId op) const;
  /// First op of a stage that needs the whole batch in one slice; none if every op may be split.
  [[nodiscard]] OpId first_whole_batch_op() const;
};

/// Types every value and decides each op's handling, so that Σ over slices is the whole batch *exactly* (law 1).
///
/// An operator outside the table, or one that mixes samples, is marked `whole_batch`. Refused by name: writes into
/// arguments, parameters or constants, results that belong to no sample and no sum, inputs with several batch dims.
/// @throws CaptureError naming operator, path, reason and workaround
/// @cost O(ops + values), times the number of times a sum turns out to be needed early (few)
[[nodiscard]] BatchSemantics analyze_batch(const OpGraph& graph, const AlgebraOptions& options = {});

/// @throws CaptureError naming the first op that mixes samples, if there is one: for plans with several slices
void require_splittable(const OpGraph& graph, const BatchSemantics& plan);

}  // namespace autopar::algebra
