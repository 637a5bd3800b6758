#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/runtime/stage_engine.hpp>
#include <autopar/schedule/batch_split.hpp>
#include <autopar/torch/engine/stage_runtime.hpp>

namespace autopar {

/// What one call brings to a stage.
struct CallContext {
  BatchSplit split;
  Rank rank;
  std::int64_t batch = 0;            ///< N
  DrawKey draws;
  bool differentiate = false;        ///< backwards will follow
  std::vector<at::Tensor> inputs;    ///< by OpGraph::inputs: this rank's, detached, on its device
  std::vector<std::pair<ValueId, at::Tensor>> prologue;  ///< values known before the pipeline
  std::vector<at::Tensor> counts;    ///< see ShareContext
};

/// Runs this rank's shares of one call: models StageEngine. Made for each call; backwards may come much later.
class TorchEngine {
 public:
  TorchEngine(StageRuntime& stage, CallContext context);
  TorchEngine(const TorchEngine&) = delete;
  TorchEngine& operator=(const TorchEngine&) = delete;

  /// Gradients of complete sums (the loss, other global results, epilogue inputs), before the first backward.
  void set_sum_gradient(ValueId value, at::Tensor gradient);
  /// Gradients of this rank's batched results, before the first backward; undefined ones count as zero.
  void set_result_gradient(ValueId value, at::Tensor gradient);
  /// Adds gradients to fresh zeroed buckets from now on. Before the first backward.
  void start_gradients();
  /// Called with a bucket's group and number as soon as nothing will be added to it.
  void on_bucket_ready(std::function<void(int group, int bucket)> ready) { bucket_ready_ = std::move(ready); }

  // StageEngine
  void forward(const Action& action);
  void backward(const Action& action);
  [[nodiscard]] Buffer pack(const Action& action);
  [[nodiscard]] Buffer landing(const Action& action);
  void accept(const Action& action, const Buffer& buffer);
  [[nodiscard]] Buffer bucket(const Action& action);
  [[nodiscard]] DType bucket_dtype(const Action& action) const;
  void reduced(const Action& action) { static_cast<void>(action); }

  /// This rank's samples of a batched result. After the forwards; zero samples give an empty tensor.
  [[nodiscard]] at::Tensor take_result(ValueId value);
  /// This rank's addend of a sum, zeros if it ran no share of it. Same sizes on every rank.
  [[nodiscard]] at::Tensor sum(ValueId value) const;
  /// Gradient of this rank's tensor for graph input `position`: complete for batched inputs, an addend for shared ones.
  [[nodiscard]] at::Tensor take_input_gradient(std::size_t position);
  /// Gradients by StageRuntime::parameters, undefined where no share reached one. After the last backward.
  [[nodiscard]] std::deque<at::Tensor> take_gradients() { return std::move(gradients_); }
  /// Nodes of the backwards that ran, empty of tensors. In one process they die with the loss: earlier, malloc would merge
  /// their memory for the next large piece, and the next call divide it again.
  [[nodiscard]] std::vector<std::shared_ptr<torch::autograd::Node>> take_spent() { return std::move(spent_); }
  /// Shares' statistics of a batch norm of this stage.
  [[nodiscard]] std::vector<NormSample> norm_samples(std::size_t batch_norm) const;
  /// Last versions of an updated buffer, one a share, in order of samples.
  [[nodiscard]] const std::vector<at::Tensor>& buffer_results(ValueId result) const;

  [[nodiscard]] const CallContext& context() const { return context_; }
  [[nodiscard]] StageRuntime& stage() { return stage_; }

 private:
  struct Share {
    Interval samples;
    std::map<ValueId, at::Tensor> results;  ///< values that leave the stage, and sums: roots of the backward
    std::map<ValueId, Assembly> arriving;   ///< values, then gradients
    std::map<ValueId, at::Tensor> leaves;   ///< boundary inputs as autograd saw them
    std::vector<NormSample> norms;
  };

  [[nodiscard]] Share& share(const Action& action);
  [[nodiscard]] ShareContext share_context(const Action& action) const;
  [[nodiscard]] const std::vector<ValueId>& message_values(const Action& action) const;
  [[nodiscard]] std::vector<TensorForm> message_forms(const Action& action) const;
  [[nodiscard]] Interval own_share(int microbatch) const;
  [[nodiscard]] Interval within_local(const Action& action) const;
  void bring_inputs(Share& share, const ShareContext& context);
  void keep_results(Share& share, const ShareContext& context);
  void add_root(const at::Tensor& value, at::Tensor gradient, std::vector<at::Tensor>& roots,
                std::vector<at::Tensor>& gradients);
  [[nodiscard]] at::Tensor message_part(const Action& action, ValueId value);
  void accept_at_edge(const Action& action, ValueId value, const at::Tensor& piece);
  void bind_gradients();
  void count_down(ValueId parameter);
  void unbind_gradients();
  void release_sent();

  StageRuntime& stage_;
  CallContext context_;
  std::vector<Share> shares_;                       ///< by micro-batch
  std::map<ValueId, at::Tensor> sums_;
  std::map<ValueId, at::Tensor> sum_gradients_;
  std::map<ValueId, Assembly> results_;             ///< whole local batch
  std::map<ValueId, at::Tensor> result_gradients_;
  std::map<ValueId, Assembly> input_gradients_;     ///< whole local batch
  std::map<ValueId, std::vector<at::Tensor>> buffer_results_;
  std::vector<std::unique_ptr<GradientBuckets>> buckets_;  ///< by group, null where not a member
  /// By StageRuntime::parameters. In small pieces: for a large one malloc would first merge all that the graph of the last
  /// call has freed, which costs more than 1 % of a call of tiny operators.
  std::deque<at::Tensor> gradients_;
  std::vector<std::shared_ptr<torch::autograd::Node>> spent_;
  std::function<void(int, int)> bucket_ready_;
  int backwards_left_ = 0;
  std::map<ValueId, std::pair<int, int>> bucket_of_;        ///< parameter to (group, bucket)
  std::map<std::pair<int, int>, int> missing_;              ///< gradients until the bucket is full, in the last backward
  int sent_share_ = -1;                             ///< its messages have all been packed before the next turn
};

static_assert(StageEngine<TorchEngine>);

}  // namespace autopar
