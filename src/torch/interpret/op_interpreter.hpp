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

namespace autopar::autograd {
struct CustomFunction;
}  // namespace autopar::autograd

namespace autopar::fp8 {
class Layers;
}  // namespace autopar::fp8

namespace autopar::interpret {

/// Operators of an OpInterpreter, by position in its order; the last is excluded.
struct OpRange {
  std::size_t first = 0, last = 0;
};

/// Services of a stage that its operators run with; any may be missing.
struct StageServices {
  OpHooks hooks{};                               ///< the engine's hooks
  std::shared_ptr<autograd::SideStream> side{};  ///< a second stream for weight gradients, see `run_split`
  std::shared_ptr<const TensorShards> shards{};  ///< the tensor shards that this rank belongs to; null: the operators
                                                 ///< are on one rank
  fp8::Layers* fp8 = nullptr;                    ///< layers that run in 8 bits; null: none
  std::shared_ptr<autograd::UnwrittenSums> unwritten{};  ///< where the first gradient is written, see `run_split`
};

/// Runs some operators of a captured graph on slices of the batch, each as the batch algebra says.
class OpInterpreter {
 public:
  /// @param ops   see Replayer; `graph` and `plan` must outlive the runner
  /// @param keep  values to leave in the environment; others are dropped after their last reader
  /// @param splits_backwards  whether operators with two backward parts split them, see `chosen_split`; `run` is then
  ///                          told where to defer to
  /// @param recomputed  operators of recomputed segments, whose backwards are not split, ascending
  OpInterpreter(const OpGraph& graph, const algebra::BatchSemantics& plan, const std::vector<OpId>& ops,
                const std::vector<ValueId>& keep, c10::Device device, bool splits_backwards = false,
                const std::vector<OpId>& recomputed = {}, StageServices services = {});
  OpInterpreter(const OpInterpreter&) = delete;
  OpInterpreter& operator=(const OpInterpreter&) = delete;

  /// An environment with the constants in place.
  [[nodiscard]] replay::Environment environment() const { return replayer_.environment(); }

  /// The caller's autocast state has no effect: the graph contains the casts of the capture.
  /// @param statistics  by BatchSemantics::batch_norms
  /// @param deferred    takes the weight gradients of split backwards; null = they are not deferred
  /// @throws anything that an operator throws
  void run(replay::Environment& values, const SliceContext& slice, std::vector<NormSample>& statistics,
           std::shared_ptr<autograd::DeferredGradients> deferred = nullptr);
  /// Runs a range of the operators.
  void run(replay::Environment& values, const SliceContext& slice, std::vector<NormSample>& statistics,
           std::shared_ptr<autograd::DeferredGradients> deferred, OpRange ops);

  /// Parameters with gradients that may be deferred, ascending, each once.
  [[nodiscard]] const std::vector<ValueId>& deferrable() const { return splits_.deferrable; }
  /// Linear layers whose products run in 8 bits, and which take their weight in 8 bits, too, ascending.
  [[nodiscard]] const std::vector<OpId>& in_fp8() const { return splits_.in_fp8; }

 private:
  void handle(replay::ReplayCall& call, const std::optional<autograd::SplitBackward>& split);
  void call_by_handling(replay::ReplayCall& call, const OpHandling& handling,
                        const std::optional<autograd::SplitBackward>& split);
  [[nodiscard]] std::vector<OpService*> services_at(OpId op) const;
  [[nodiscard]] const tensor_parallel::ShardedStep* step_of(OpId op) const;
  /// Whether the value's gradient is summed over tensor shards.
  [[nodiscard]] bool gradient_is_summed(ValueId value) const;
  /// Runs a call by its custom autograd function, if it has one.
  void call_function(replay::ReplayCall& call) const;
  void call_random(replay::ReplayCall& call, Draw draw) const;

  const OpGraph& graph_;
  const algebra::BatchSemantics& plan_;
  c10::Device device_;
  std::shared_ptr<autograd::SideStream> side_;
  std::shared_ptr<autograd::UnwrittenSums> unwritten_;
  std::shared_ptr<const TensorShards> shards_;
  std::size_t count_;  ///< number of operators
  std::vector<std::unique_ptr<OpService>> services_;
  SliceStatistics slice_statistics_;
  replay::Replayer replayer_;
  const SliceContext* slice_ = nullptr;  ///< of the run under way
  std::vector<NormSample>* statistics_ = nullptr;
  std::shared_ptr<autograd::DeferredGradients> deferred_;
  struct {
    std::vector<ValueId> deferrable;
    std::vector<OpId> in_fp8;
  } splits_;                                                   ///< of split backwards
  std::map<OpId, const autograd::CustomFunction*> functions_;  ///< custom functions that run operators instead of
                                                               ///< libtorch's
};

}  // namespace autopar::interpret
