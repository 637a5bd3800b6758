#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <autopar/torch/batch_algebra.hpp>
#include <autopar/torch/engine/share.hpp>
#include <autopar/torch/op_graph.hpp>

namespace autopar {

/// Runs some operators of a captured graph, in program order, on shares of the batch, each as the batch algebra says.
/// Integers that depend on the batch are solved once for each pair of share and batch size.
class OpRunner {
 public:
  /// @param ops   ascending; `graph` and `plan` must outlive the runner
  /// @param kept  values to leave in the environment; what else the last reader has read is dropped
  OpRunner(const OpGraph& graph, const BatchPlan& plan, const std::vector<OpId>& ops, const std::vector<ValueId>& kept,
           c10::Device device);

  /// @param statistics  by BatchPlan::batch_norms; null where running statistics are not wanted
  /// @throws what an operator throws, with its name and nearest path in front
  void run(Environment& values, const ShareContext& share, std::vector<NormSample>* statistics);

 private:
  struct Step {
    OpId op;
    bool plain = true;         ///< no treatment, no draws: the fast path
    bool grad = true;
    std::vector<ValueId> dead;  ///< not read after this step
  };
  using Arguments = std::vector<std::vector<c10::IValue>>;  ///< by step

  [[nodiscard]] const Arguments& arguments_for(const ShareContext& share);
  void push_arguments(const Step& step, const std::vector<c10::IValue>& arguments, const Environment& values);
  void store_results(const OpNode& node, Environment& values);
  void run_treated(const Step& step, const ShareContext& share, std::vector<NormSample>* statistics);
  void weigh_arguments(const OpTreatment& treatment, const ShareContext& share);
  void call(const OpNode& node, const Step& step, const OpTreatment& treatment, const ShareContext& share);
  void call_random(const OpNode& node, const Step& step, const OpTreatment& treatment, const ShareContext& share);
  void call_batch_norm(const OpNode& node, const BatchNormPlan& norm, const ShareContext& share, NormSample& sample);

  const OpGraph& graph_;
  const BatchPlan& plan_;
  c10::Device device_;
  std::vector<Step> steps_;
  std::map<std::pair<std::int64_t, std::int64_t>, Arguments> arguments_;  ///< by (n, N)
  std::vector<c10::IValue> stack_;
};

}  // namespace autopar
