#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/Device.h>

#include <autopar/capture/op_graph.hpp>

#include "capture/algebra/batch_algebra.hpp"
#include "capture/replay/replay.hpp"
#include "torch/autograd/deferred_gradients.hpp"
#include "torch/autograd/split_backward.hpp"
#include "torch/interpret/norm_sample.hpp"
#include "torch/interpret/op_hooks.hpp"
#include "torch/interpret/op_service.hpp"
#include "torch/interpret/shard_steps.hpp"
#include "torch/interpret/slice.hpp"
#include "torch/interpret/slice_statistics.hpp"

namespace autopar {

struct CustomFunction;

/// Operators of an OpInterpreter, by their positions in its order; the last is not included.
struct OpRange {
  std::size_t first = 0, last = 0;
};

/// What a stage has that its operators run with; any may be missing.
struct StageServices {
  OpHooks hooks{};                                 ///< of the engine
  std::shared_ptr<SideStream> side{};              ///< a second stream for weight gradients, see `proceed_splitting`
  std::shared_ptr<const TensorShards> shards{};    ///< that this rank is one of; null: the operators are on one rank
};

/// Runs some operators of a captured graph on slices of the batch, each as the batch algebra says.
class OpInterpreter {
 public:
  /// @param ops   see Replayer; `graph` and `plan` must outlive the runner
  /// @param keep  values to leave in the environment; what else the last reader has read is dropped
  /// @param splits_backwards  of operators that have two parts, see `chosen_split`; `run` then says where to defer to
  /// @param recomputed  operators of recomputed segments, whose backwards are whole, ascending
  OpInterpreter(const OpGraph& graph, const BatchPlan& plan, const std::vector<OpId>& ops,
                const std::vector<ValueId>& keep, c10::Device device, bool splits_backwards = false,
                const std::vector<OpId>& recomputed = {}, StageServices services = {});
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
  void call_by_handling(ReplayCall& call, const OpHandling& handling, const std::optional<SplitBackward>& split);
  [[nodiscard]] std::vector<OpService*> services_at(OpId op) const;
  [[nodiscard]] const ShardedStep* step_of(OpId op) const;
  /// Over tensor shards.
  [[nodiscard]] bool gradient_is_summed(ValueId value) const;
  /// By its custom function, if it has one.
  void proceed(ReplayCall& call) const;
  void call_random(ReplayCall& call, Draw draw) const;

  const OpGraph& graph_;
  const BatchPlan& plan_;
  c10::Device device_;
  std::shared_ptr<SideStream> side_;
  std::shared_ptr<const TensorShards> shards_;
  std::size_t count_;  ///< operators
  std::vector<std::unique_ptr<OpService>> services_;
  SliceStatistics slice_statistics_;
  Replayer replayer_;
  const SliceContext* slice_ = nullptr;  ///< of the run under way
  std::vector<NormSample>* statistics_ = nullptr;
  std::shared_ptr<DeferredGradients> deferred_;
  std::vector<ValueId> deferrable_;
  std::map<OpId, const CustomFunction*> functions_;  ///< that run operators in libtorch's place
};

}  // namespace autopar
