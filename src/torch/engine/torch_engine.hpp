#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/runtime/stage_engine.hpp>

#include "torch/engine/batch_edges.hpp"
#include "torch/engine/message_forms.hpp"
#include "torch/engine/rank_runtime.hpp"
#include "torch/engine/stage_execution.hpp"
#include "torch/engine/stage_gradient_sums.hpp"

namespace autopar::engine {

/// Runs this rank's slices of one call: models SplitBackwardEngine. Made for each call; backwards may come much later.
/// Size: a function for each that the concepts of engines (`runtime/stage_engine.hpp`) ask for.
class TorchEngine {
 public:
  TorchEngine(RankRuntime& runtime, CallContext context);
  TorchEngine(const TorchEngine&) = delete;
  TorchEngine& operator=(const TorchEngine&) = delete;

  /// Adds gradients of complete sums (the loss, other global results, epilogue inputs). Called before the first
  /// backward. Gradients of a value that is several results are added up.
  void add_sum_gradient(ValueId value, at::Tensor gradient);
  /// Adds gradients of this rank's batched results, before the first backward. Undefined gradients count as zero.
  void add_result_gradient(ValueId value, at::Tensor gradient) {
    edges_.add_result_gradient(value, std::move(gradient));
  }
  /// From now on gradients are added to new zeroed buckets. Called before the first backward.
  void start_gradients() { gradients_.start(); }

  // StageEngine
  void set_gate(ComputeGate* gate) {
    gate_ = gate;
    gradients_.set_gate(gate);
  }
  void forward(const Action& action);
  void backward(const Action& action);
  void backward_input(const Action& action);
  void backward_weight(const Action& action);
  [[nodiscard]] Buffer pack(const Action& action);
  [[nodiscard]] Buffer receive_buffer(const Action& action);
  void accept(const Action& action, const Buffer& buffer);
  [[nodiscard]] Buffer bucket(const Action& action) { return gradients_.bucket(action); }
  [[nodiscard]] DType bucket_dtype(const Action& action) const { return gradients_.bucket_dtype(action); }
  void reduced(const Action& action) { gradients_.reduced(action); }

  // PartSummingEngine
  [[nodiscard]] bool sums_parts(const Action& action) const { return gradients_.sums_parts(action); }
  void sum_parts(const Action& action, PartExchange& exchange) { gradients_.sum_parts(action, exchange); }

  // ShardingEngine
  [[nodiscard]] Buffer gathering(const Action& action);
  void gathered(const Action& action);
  void reshard(const Action& action);

  /// This rank's samples of a batched result, after the forwards. Without samples it is an empty tensor.
  [[nodiscard]] at::Tensor take_result(ValueId value) { return edges_.take_result(value); }
  /// This rank's addend of a sum; zeros if it ran no slice. Has the same sizes on every rank and the type `sum_type`.
  [[nodiscard]] at::Tensor sum(ValueId value) const;
  /// The gradient of this rank's tensor for graph input `position`: complete for batched inputs, an addend for shared
  /// ones.
  [[nodiscard]] at::Tensor take_input_gradient(std::size_t position) {
    return edges_.take_input_gradient(runtime_.graph().inputs[position]);
  }
  /// Gradients by RankRuntime::parameters, after the last backward; undefined if no slice reached the parameter. For
  /// sharded parameters, this rank's elements, flat.
  [[nodiscard]] std::deque<at::Tensor> take_gradients() { return gradients_.take_all(); }
  /// The nodes of the backwards that ran, without tensors. The caller frees them with the loss, as in one process. If
  /// they were freed earlier, malloc would merge their memory, and the next call would divide it again.
  [[nodiscard]] std::vector<std::shared_ptr<torch::autograd::Node>> take_retired() { return std::move(retired_); }
  /// Statistics of a batch norm in this rank's slices.
  [[nodiscard]] std::vector<interpret::NormSample> norm_samples(std::size_t batch_norm) const;
  /// The addends of an updated buffer's new value, in order of samples.
  [[nodiscard]] std::vector<at::Tensor> buffer_results(ValueId result) const;

 private:
  [[nodiscard]] StageExecution& run_of(StageId stage);
  [[nodiscard]] StageExecution& begin_compute(const Action& action);
  void run_backward(StageExecution& run, const Action& action, bool last);
  void run_deferred(StageExecution& run, const Action& action, bool last);

  RankRuntime& runtime_;
  CallContext context_;
  std::deque<StageExecution> runs_;  ///< by index of RankRuntime::stages
  MessageForms messages_;
  BatchEdges edges_;
  StageGradientSums gradients_;
  std::map<ValueId, at::Tensor> sum_gradients_;
  std::map<int, int> unsharded_;                     ///< by group: number of gathers that have not been resharded
  std::map<int, std::deque<at::Tensor>> in_8_bits_;  ///< by group that this call gathers so: messages on their way
  std::vector<std::shared_ptr<torch::autograd::Node>> retired_;
  ComputeGate* gate_ = nullptr;
};

static_assert(SplitBackwardEngine<TorchEngine> && ShardingEngine<TorchEngine> && PartSummingEngine<TorchEngine>);

}  // namespace autopar::engine
