#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/runtime/stage_engine.hpp>

#include "torch/engine/rank_runtime.hpp"
#include "torch/engine/stage_execution.hpp"

namespace autopar::engine {

/// Runs this rank's slices of one call: models SplitBackwardEngine. Made for each call; backwards may come much later.
class TorchEngine {
 public:
  TorchEngine(RankRuntime& runtime, CallContext context);
  TorchEngine(const TorchEngine&) = delete;
  TorchEngine& operator=(const TorchEngine&) = delete;

  /// Adds gradients of complete sums (the loss, other global results, epilogue inputs). Called before the first
  /// backward. Gradients of a value that is several results are added up.
  void add_sum_gradient(ValueId value, at::Tensor gradient);
  /// Adds gradients of this rank's batched results, before the first backward. Undefined gradients count as zero.
  void add_result_gradient(ValueId value, at::Tensor gradient);
  /// From now on gradients are added to new zeroed buckets. Called before the first backward.
  void start_gradients();

  // StageEngine
  void set_gate(ComputeGate* gate) { gate_ = gate; }
  void forward(const Action& action);
  void backward(const Action& action);
  void backward_input(const Action& action);
  void backward_weight(const Action& action);
  [[nodiscard]] Buffer pack(const Action& action);
  [[nodiscard]] Buffer receive_buffer(const Action& action);
  void accept(const Action& action, const Buffer& buffer);
  [[nodiscard]] Buffer bucket(const Action& action);
  [[nodiscard]] DType bucket_dtype(const Action& action) const;
  void reduced(const Action& action);

  // ShardingEngine
  [[nodiscard]] Buffer gathering(const Action& action);
  void gathered(const Action&) {}  // compute copies lie in that memory
  void reshard(const Action& action);

  /// This rank's samples of a batched result, after the forwards. Without samples it is an empty tensor.
  [[nodiscard]] at::Tensor take_result(ValueId value);
  /// This rank's addend of a sum; zeros if it ran no slice. Has the same sizes on every rank and the type `sum_type`.
  [[nodiscard]] at::Tensor sum(ValueId value) const;
  /// The gradient of this rank's tensor for graph input `position`: complete for batched inputs, an addend for shared
  /// ones.
  [[nodiscard]] at::Tensor take_input_gradient(std::size_t position);
  /// Gradients by RankRuntime::parameters, after the last backward; undefined if no slice reached the parameter. For
  /// sharded parameters, this rank's elements, flat.
  [[nodiscard]] std::deque<at::Tensor> take_gradients();
  /// The nodes of the backwards that ran, without tensors. The caller frees them with the loss, as in one process. If
  /// they were freed earlier, malloc would merge their memory, and the next call would divide it again.
  [[nodiscard]] std::vector<std::shared_ptr<torch::autograd::Node>> take_retired() { return std::move(spent_); }
  /// Statistics of a batch norm in this rank's slices.
  [[nodiscard]] std::vector<interpret::NormSample> norm_samples(std::size_t batch_norm) const;
  /// The addends of an updated buffer's new value, in order of samples.
  [[nodiscard]] std::vector<at::Tensor> buffer_results(ValueId result) const;

 private:
  [[nodiscard]] StageExecution& run_of(StageId stage);
  [[nodiscard]] StageExecution& begin_compute(const Action& action);
  void run_backward(StageExecution& run, const Action& action, bool last);
  void run_deferred(StageExecution& run, const Action& action, bool last);
  void add_gradient(const Stage& stage, ValueId parameter, at::Tensor gradient);
  [[nodiscard]] const Channel& channel_of(const Action& action) const;
  [[nodiscard]] const std::vector<ValueId>& message_values(const Action& action) const;
  [[nodiscard]] std::vector<ir::TensorForm> message_forms(const Action& action) const;
  [[nodiscard]] std::int64_t local_samples() const;
  [[nodiscard]] Interval within_local(const Action& action) const;
  [[nodiscard]] at::Tensor departing_from_edge(const Action& action, const Channel& channel, ValueId value);
  void arrive_at_edge(const Action& action, const Channel& channel, ValueId value, const at::Tensor& piece);
  void bind_gradients(Stage& stage);
  void unbind_gradients(Stage& stage);
  void count_down(ValueId parameter);
  [[nodiscard]] bool sums_in_computes(ValueId parameter) const;
  void unshard(const std::vector<ValueId>& parameters);
  [[nodiscard]] bool is_complete(ValueId parameter, bool last) const;
  void expect_gradients(const Stage& stage);
  void report_rest(const Stage& stage);
  void take_gradient(Stage& stage, ValueId parameter);
  void move_into_bucket(ValueId parameter);

  RankRuntime& runtime_;
  CallContext context_;
  std::deque<StageExecution> runs_;  ///< by index of RankRuntime::stages
  std::map<ValueId, at::Tensor> sum_gradients_;
  std::map<ValueId, Assembly> results_;  ///< of the whole local batch
  std::map<ValueId, at::Tensor> result_gradients_;
  std::map<ValueId, Assembly> input_gradients_;  ///< of the whole local batch
  /// By group, null if this rank is not a member. Buckets that are reduced within compute actions exist from the first
  /// gradient until the reduction starts.
  std::vector<std::unique_ptr<parameters::GradientBuckets>> buckets_;
  std::vector<std::deque<at::Tensor>> on_their_way_;  ///< by group: buckets in flight that are reduced into shards
                                                      ///< within compute actions
  std::set<int> summed_;                              ///< groups whose reduction within this compute action has started
  std::map<int, int> whole_;                          ///< by group: number of gathers that have not been resharded
  bool sums_in_some_computes_ = false;
  std::vector<at::Tensor> shares_;  ///< by group: this rank's shard of the reduced gradients
  /// By RankRuntime::parameters. A deque allocates small pieces. For a large one malloc would first merge the freed
  /// memory of the last call's graph, more than 1 % of a call of tiny operators.
  std::deque<at::Tensor> gradients_;
  std::vector<std::shared_ptr<torch::autograd::Node>> spent_;
  ComputeGate* gate_ = nullptr;
  std::map<ValueId, std::pair<int, int>> bucket_of_;  ///< parameter to (group, bucket)
  std::map<ValueId, std::size_t> place_of_;           ///< parameter to index in the group's layout
  /// Number of gradients that stages have yet to add before the bucket is ready.
  std::map<std::pair<int, int>, int> missing_;
};

static_assert(SplitBackwardEngine<TorchEngine> && ShardingEngine<TorchEngine>);

}  // namespace autopar::engine
