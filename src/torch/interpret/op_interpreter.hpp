#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/replay/replay.hpp"
#include "torch/autograd/deferred_gradients.hpp"
#include "torch/autograd/second_results.hpp"
#include "torch/autograd/split_backward.hpp"
#include "torch/interpret/norm_sample.hpp"
#include "torch/interpret/shard_steps.hpp"
#include "torch/interpret/slice.hpp"

namespace autopar {

struct CustomFunction;

/// Operators of an OpInterpreter, by their positions in its order; the last is not included.
struct OpRange {
  std::size_t first = 0, last = 0;
};

/// What happens around some operators of a runner. `before` may put tensors that the operator reads into the
/// environment.
struct OpHooks {
  std::set<OpId> ops;
  std::function<void(OpId)> before;
  std::function<void(OpId, const torch::jit::Stack& results)> after;
};

/// Runs some operators of a captured graph on slices of the batch, each as the batch algebra says.
class OpInterpreter {
 public:
  /// @param ops   see Replayer; `graph` and `plan` must outlive the runner
  /// @param keep  values to leave in the environment; what else the last reader has read is dropped
  /// @param splits_backwards  of operators that have two parts, see `split_backward_of`; `run` then says where to defer
  /// to
  /// @param whole  operators whose backwards are not split all the same, ascending
  /// @param side   see `proceed_splitting`
  /// @param shards  that this rank is one of; null: the operators are on one rank
  OpInterpreter(const OpGraph& graph, const BatchPlan& plan, std::vector<OpId> ops, const std::vector<ValueId>& keep,
                c10::Device device, bool splits_backwards = false, const std::vector<OpId>& whole = {},
                OpHooks hooks = {}, std::shared_ptr<SideStream> side = nullptr,
                std::shared_ptr<const TensorShards> shards = nullptr);
  OpInterpreter(const OpInterpreter&) = delete;
  OpInterpreter& operator=(const OpInterpreter&) = delete;

  /// An environment with the constants in place.
  [[nodiscard]] Environment environment() const { return replayer_.environment(); }

  /// The caller's autocast state does not matter: the graph has the casts of the capture.
  /// @param statistics  by BatchPlan::batch_norms
  /// @param deferred    takes the weight gradients of split backwards; null = they stay whole
  /// @throws what an operator throws
  void run(Environment& values, const SliceContext& slice, std::vector<NormSample>& statistics,
           std::shared_ptr<DeferredGradients> deferred = nullptr);
  /// Some of the operators.
  void run(Environment& values, const SliceContext& slice, std::vector<NormSample>& statistics,
           std::shared_ptr<DeferredGradients> deferred, OpRange ops);

  /// Parameters with gradients that may be deferred, ascending, each once.
  [[nodiscard]] const std::vector<ValueId>& deferrable() const { return deferrable_; }

 private:
  void handle(ReplayCall& call, const std::optional<SplitBackward>& split);
  static void take_given(ReplayCall& call);
  [[nodiscard]] const ShardedStep* step_of(OpId op) const;
  [[nodiscard]] bool reads_what_is_summed(OpId op, const SplitBackward& split) const;
  /// By its custom function, if it has one.
  void proceed(ReplayCall& call) const;
  void restore_layout(ReplayCall& call) const;
  void call_random(ReplayCall& call, Draw draw) const;
  void call_batch_norm(ReplayCall& call, const BatchNormPlan& norm, NormSample& sample);
  [[nodiscard]] at::Tensor zeros_for_statistic(const at::Tensor& like);

  const OpGraph& graph_;
  const BatchPlan& plan_;
  c10::Device device_;
  OpHooks hooks_;
  std::shared_ptr<SideStream> side_;
  std::shared_ptr<const TensorShards> shards_;
  std::vector<bool> layout_matters_;  ///< by op: views of its results were captured
  std::size_t count_;                 ///< operators
  SecondResults seconds_;
  Replayer replayer_;
  const SliceContext* slice_ = nullptr;  ///< of the run under way
  std::vector<NormSample>* statistics_ = nullptr;
  std::shared_ptr<DeferredGradients> deferred_;
  std::vector<ValueId> deferrable_;
  std::map<OpId, const CustomFunction*> functions_;  ///< that run operators in libtorch's place
  std::int64_t statistics_places_ = 0;  ///< elements that the running statistics of all norms take in `zeros_`
  at::Tensor zeros_;                    ///< of the run under way
  std::int64_t given_zeros_ = 0;        ///< elements of these
};

}  // namespace autopar
