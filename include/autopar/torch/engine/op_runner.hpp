#pragma once

#include <vector>

#include <c10/core/Device.h>

#include <autopar/torch/batch_algebra.hpp>
#include <autopar/torch/engine/share.hpp>
#include <autopar/torch/op_graph.hpp>
#include <autopar/torch/replay.hpp>

namespace autopar {

/// Runs some operators of a captured graph, in program order, on shares of the batch, each as the batch algebra says.
class OpRunner {
 public:
  /// @param ops   ascending; `graph` and `plan` must outlive the runner
  /// @param keep  values to leave in the environment; what else the last reader has read is dropped
  OpRunner(const OpGraph& graph, const BatchPlan& plan, std::vector<OpId> ops, const std::vector<ValueId>& keep,
           c10::Device device);
  OpRunner(const OpRunner&) = delete;
  OpRunner& operator=(const OpRunner&) = delete;

  /// An environment with the constants in place.
  [[nodiscard]] Environment environment() const { return replayer_.environment(); }

  /// @param statistics  by BatchPlan::batch_norms
  /// @throws what an operator throws
  void run(Environment& values, const ShareContext& share, std::vector<NormSample>& statistics);

 private:
  void treat(ReplayCall& call) const;
  void restore_layout(ReplayCall& call) const;
  void call_random(ReplayCall& call, Draw draw) const;
  void call_batch_norm(ReplayCall& call, const BatchNormPlan& norm, NormSample& sample) const;

  const OpGraph& graph_;
  const BatchPlan& plan_;
  c10::Device device_;
  std::vector<bool> layout_matters_;                  ///< by op: views of its results were captured
  Replayer replayer_;
  const ShareContext* share_ = nullptr;               ///< of the run under way
  std::vector<NormSample>* statistics_ = nullptr;
};

}  // namespace autopar
