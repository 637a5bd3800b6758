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

  /// Gradients of complete sums (the loss, other global results, epilogue inputs), before the first backward. Those of
  /// a value that several results are add up.
  void add_sum_gradient(ValueId value, at::Tensor gradient);
  /// Gradients of this rank's batched results, likewise; undefined ones count as zero.
  void add_result_gradient(ValueId value, at::Tensor gradient);
  /// Adds gradients to fresh zeroed buckets from now on. Before the first backward.
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

  /// This rank's samples of a batched result. After the forwards; zero samples give an empty tensor.
  [[nodiscard]] at::Tensor take_result(ValueId value);
  /// This rank's addend of a sum, zeros if it ran no slice of it. Same sizes on every rank; in `sum_type`.
  [[nodiscard]] at::Tensor sum(ValueId value) const;
  /// Gradient of this rank's tensor for graph input `position`: complete for batched inputs, an addend for shared ones.
  [[nodiscard]] at::Tensor take_input_gradient(std::size_t position);
  /// Gradients by RankRuntime::parameters, undefined where no slice reached one; of parameters that are held in shards,
  /// this rank's elements, flat. After the last backward.
  [[nodiscard]] std::deque<at::Tensor> take_gradients();
  /// Nodes of the backwards that ran, empty of tensors. In one process they die with the loss: earlier, malloc would
  /// merge their memory for the next large piece, and the next call divide it again.
  [[nodiscard]] std::vector<std::shared_ptr<torch::autograd::Node>> take_spent() { return std::move(spent_); }
  /// Slices' statistics of a batch norm of this rank.
  [[nodiscard]] std::vector<interpret::NormSample> norm_samples(std::size_t batch_norm) const;
  /// Addends of an updated buffer's new value, in order of samples.
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
  std::deque<StageExecution> runs_;  ///< like RankRuntime::stages
  std::map<ValueId, at::Tensor> sum_gradients_;
  std::map<ValueId, Assembly> results_;  ///< whole local batch
  std::map<ValueId, at::Tensor> result_gradients_;
  std::map<ValueId, Assembly> input_gradients_;  ///< whole local batch
  /// By group, null where not a member. Of sums into shards within compute actions: until the sum starts, from the
  /// first gradient on.
  std::vector<std::unique_ptr<gradients::GradientBuckets>> buckets_;
  std::vector<std::deque<at::Tensor>> on_their_way_;  ///< by group: buckets of sums into shards within compute actions
  std::set<int> summed_;                              ///< groups whose sum of this compute action has started
  std::map<int, int> whole_;                          ///< by group: gatherings that have not been resharded
  bool sums_in_some_computes_ = false;
  std::vector<at::Tensor> shares_;  ///< by group: this rank's part of sums into shards
  /// By RankRuntime::parameters. In small pieces: for a large one malloc would first merge all that the graph of the
  /// last call has freed, which costs more than 1 % of a call of tiny operators.
  std::deque<at::Tensor> gradients_;
  std::vector<std::shared_ptr<torch::autograd::Node>> spent_;
  ComputeGate* gate_ = nullptr;
  std::map<ValueId, std::pair<int, int>> bucket_of_;  ///< parameter to (group, bucket)
  std::map<ValueId, std::size_t> place_of_;           ///< likewise, in the group's layout
  /// Gradients that stages have to add in their last backwards until the bucket is full.
  std::map<std::pair<int, int>, int> missing_;
};

static_assert(SplitBackwardEngine<TorchEngine> && ShardingEngine<TorchEngine>);

}  // namespace autopar::engine
