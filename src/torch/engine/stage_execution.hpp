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

/// What one call brings to a rank.
struct CallContext {
  BatchSplit split;
  Rank rank;
  std::int64_t batch = 0;  ///< N
  interpret::RngKey draws;
  bool differentiate = false;                            ///< backwards will follow
  std::vector<at::Tensor> inputs;                        ///< by OpGraph::inputs: this rank's, detached, on its device
  std::vector<std::pair<ValueId, at::Tensor>> prologue;  ///< values known before the pipeline
  std::vector<at::Tensor> counts;                        ///< see SliceContext
};

/// Where a backward starts: results of a slice and their gradients.
struct BackwardRoots {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
};

/// One stage's slices of one call.
class StageExecution {
 public:
  /// @param context  must outlive the run
  StageExecution(Stage& stage, const CallContext& context);

  [[nodiscard]] Stage& stage() { return stage_; }

  void forward(const Action& action);
  /// @param sum_gradients  of complete sums
  [[nodiscard]] BackwardRoots begin_backward(const Action& action, const std::map<ValueId, at::Tensor>& sum_gradients);
  /// The slice's gradients are there.
  void end_backward(const Action& action) { sent_slice_ = action.microbatch; }
  /// Lets go of what the messages of the last compute action took along. Before the rank's next compute action,
  /// whichever stage's it is.
  void release_sent();

  /// What the slice's backward deferred; null where backwards are whole.
  [[nodiscard]] autograd::DeferredGradients* deferred(const Action& action) { return slice(action).deferred.get(); }

  /// Counts a slice's backward as ended, as far as parameters are concerned. @return whether it was the last
  [[nodiscard]] bool is_last_backward() { return --backwards_left_ == 0; }

  /// What a message takes away: the samples of a value, or of its gradient.
  [[nodiscard]] at::Tensor departing(const Action& action, const Channel& channel, ValueId value);
  /// The same of a value that becomes a result of this rank, which has `samples`. A tensor of all of them has its own
  /// memory, which neither the stage nor an argument needs; less is to be copied.
  [[nodiscard]] at::Tensor departing_result(const Action& action, const Channel& channel, ValueId value,
                                            std::int64_t samples);
  /// A piece or an addend of a value, or of its gradient, that a message brought.
  void arrive(const Action& action, const Channel& channel, ValueId value, const at::Tensor& piece);

  /// Sum over the slices, undefined if none was run here.
  [[nodiscard]] at::Tensor sum(ValueId value) const;
  /// What the slices saw of a batch norm, as one slice's statistics.
  void add_norm_samples(std::size_t batch_norm, std::vector<interpret::NormSample>& samples) const;
  /// Addends of an updated buffer's new value, in order of samples.
  void add_buffer_results(ValueId result, std::vector<at::Tensor>& results) const;

 private:
  struct Slice {
    Interval samples;
    std::map<ValueId, at::Tensor> results;  ///< values that leave the stage, and sums: roots of the backward
    std::map<ValueId, Assembly> arriving;   ///< values, then gradients
    std::map<ValueId, at::Tensor> leaves;   ///< boundary inputs as autograd saw them
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
  std::vector<interpret::NormSample> norms_;  ///< of the slices so far
  std::map<ValueId, at::Tensor> sums_;
  std::map<ValueId, std::vector<at::Tensor>> buffer_results_;
  bool has_casts_ = false;                      ///< of this call, see Stage::start_casts
  int forwards_left_ = 0, backwards_left_ = 0;  ///< of slices with samples
  int sent_slice_ = -1;                         ///< its messages have all been packed before the next compute action
};

}  // namespace autopar::engine
