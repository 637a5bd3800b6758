#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/schedule/batch_split.hpp>

#include "torch/engine/stage.hpp"

namespace autopar::engine {

/// The data of one call on a rank.
struct CallContext {
  BatchSplit split;
  Rank rank;
  std::int64_t batch = 0;  ///< number of samples in the global batch
  interpret::RngKey draws;
  bool differentiate = false;                            ///< whether backwards will follow
  std::vector<at::Tensor> inputs;                        ///< by OpGraph::inputs: this rank's tensors, detached, on its
                                                         ///< device
  std::vector<std::pair<ValueId, at::Tensor>> prologue;  ///< values known before the pipeline
  std::vector<at::Tensor> counts;                        ///< see SliceContext
  replay::OpObserver* observer = nullptr;                ///< likewise
  std::map<ValueId, at::Tensor> copies{};                ///< see Stage::start_casts
};

/// The roots of a backward: results of a slice and their gradients.
struct BackwardRoots {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
};

/// The slices of one stage in one call.
class StageExecution {
 public:
  /// @param context  must outlive the execution
  StageExecution(Stage& stage, const CallContext& context);

  [[nodiscard]] Stage& stage() { return stage_; }

  void forward(const Action& action);
  /// @param sum_gradients  gradients of complete sums
  [[nodiscard]] BackwardRoots begin_backward(const Action& action, const std::map<ValueId, at::Tensor>& sum_gradients);
  /// Called when the slice's gradients are complete.
  void end_backward(const Action& action) { sent_slice_ = action.microbatch; }
  /// Releases the values that the messages of the last compute action carried. Called before the rank's next compute
  /// action, of any stage.
  void release_sent();

  /// The deferred part of the slice's backward; null if backwards are whole.
  [[nodiscard]] autograd::DeferredGradients* deferred(const Action& action) { return slice(action).deferred.get(); }

  /// Counts a slice's backward as complete for parameters.
  /// @return whether it was the last
  [[nodiscard]] bool is_last_backward() { return --backwards_left_ == 0; }

  /// The content of a message: the samples of a value, or of its gradient.
  [[nodiscard]] at::Tensor pack(const Action& action, const Channel& channel, ValueId value);
  /// As pack(), for a value that becomes a result of this rank, which has `samples` samples. A tensor of all of
  /// them has its own memory, not shared with the stage or an argument. This needs fewer copies.
  [[nodiscard]] at::Tensor pack_result(const Action& action, const Channel& channel, ValueId value,
                                       std::int64_t samples);
  /// Adds a piece or an addend of a value, or of its gradient, that a message brought.
  void unpack(const Action& action, const Channel& channel, ValueId value, const at::Tensor& piece);

  /// The sum over the slices; undefined if none ran here.
  [[nodiscard]] at::Tensor sum(ValueId value) const;
  /// Appends the statistics of a batch norm over this rank's slices, as one slice.
  void add_norm_samples(std::size_t batch_norm, std::vector<interpret::NormSample>& samples) const;
  /// Appends the addends of an updated buffer's new value, in order of samples.
  void add_buffer_results(ValueId result, std::vector<at::Tensor>& results) const;

 private:
  struct Slice {
    Interval samples;
    std::map<ValueId, at::Tensor> results;  ///< values that leave the stage, and sums: the roots of the backward
    std::map<ValueId, Assembly> arriving;   ///< values, then gradients, that messages bring
    std::map<ValueId, at::Tensor> leaves;   ///< boundary inputs as autograd leaves
    std::shared_ptr<autograd::DeferredGradients> deferred;
  };

  [[nodiscard]] Slice& slice(const Action& action) { return slices_[static_cast<std::size_t>(action.microbatch)]; }
  [[nodiscard]] interpret::SliceContext slice_context(const Action& action) const;
  [[nodiscard]] Interval own_slice(int microbatch) const;
  [[nodiscard]] bool goes_to_stages(ValueId value) const;
  [[nodiscard]] bool is_first_shard() const;
  void bring_inputs(Slice& slice, const interpret::SliceContext& context);
  void keep_results(Slice& slice, const interpret::SliceContext& context);

  Stage& stage_;
  const CallContext& context_;
  std::vector<Slice> slices_;                 ///< by micro-batch
  std::vector<interpret::NormSample> norms_;  ///< of all slices so far
  std::map<ValueId, at::Tensor> sums_;
  std::map<ValueId, std::vector<at::Tensor>> buffer_results_;
  bool has_casts_ = false;                      ///< whether this call made casts, see Stage::start_casts
  int forwards_left_ = 0, backwards_left_ = 0;  ///< numbers of slices with samples
  int sent_slice_ = -1;                         ///< micro-batch whose messages will all be packed before the next
                                                ///< compute action
};

}  // namespace autopar::engine
