#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <autopar/runtime/compute_gate.hpp>
#include <autopar/schedule/action.hpp>

#include "torch/engine/rank_runtime.hpp"
#include "torch/parameters/gradient_buckets.hpp"

namespace autopar::engine {

/// The gradients of a rank's parameters in one call: added up over its stages and micro-batches, in buckets of their
/// reduction groups, and told to the gate when a bucket is complete.
///
/// Buckets of ZeRO 2 and 3 are reduced within compute actions: they exist from the first gradient until the reduction
/// starts, and each compute action with weight gradients fills them (`expect`, `report_rest`).
class StageGradientSums {
 public:
  /// @param runtime  outlives this
  explicit StageGradientSums(RankRuntime& runtime) : runtime_(runtime) {}

  /// Allocates buckets.
  void start();
  void set_gate(ComputeGate* gate) { gate_ = gate; }
  /// Asks the gate for parameters that a formula reads.
  void unshard(const std::vector<ValueId>& parameters);

  // ---- a compute action

  /// Whether gradients of the stage are reported while a backward runs.
  [[nodiscard]] bool sums_in_some_computes() const { return sums_in_some_computes_; }
  [[nodiscard]] bool sums_in_computes(ValueId parameter) const;
  /// Before an action with weight gradients.
  void expect(const Stage& stage);
  /// After it: adds gradients that it did not report, or that came in an unknown order.
  void report_rest(const Stage& stage);
  /// Compute copies have gradients while a backward runs only, since another call's may run between two of this one.
  void bind(Stage& stage);
  void unbind(Stage& stage);
  /// Autograd has just added the gradient to the compute copy.
  /// @param last  it is the stage's last backward
  void take(Stage& stage, ValueId parameter, bool last);
  /// Adds the gradient that a deferred formula gives; undefined: there is none.
  void add(const Stage& stage, ValueId parameter, at::Tensor gradient, bool last);
  /// The gradient will not grow in this action any more.
  void complete(ValueId parameter, bool last);
  /// The sum that a formula may add to in place; undefined if there is none.
  [[nodiscard]] at::Tensor growing_sum(const Stage& stage, ValueId parameter) const;

  // ---- reductions, as StageEngine

  [[nodiscard]] Buffer bucket(const Action& action);
  [[nodiscard]] DType bucket_dtype(const Action& action) const;
  [[nodiscard]] bool sums_parts(const Action& action) const { return runtime_.summing_stream_of(action) != nullptr; }
  void sum_parts(const Action& action, PartExchange& exchange);
  void reduced(const Action& action);

  /// By RankRuntime::parameters, after the last backward; undefined if no slice reached the parameter. For sharded
  /// parameters, this rank's elements, flat.
  [[nodiscard]] std::deque<at::Tensor> take_all();

 private:
  [[nodiscard]] at::Tensor& sum_of(ValueId parameter) { return sums_[runtime_.position_of(parameter)]; }
  /// A sum whose bucket exists until it is complete.
  struct Sum {
    at::Tensor flat;
    SummingStream::Done done{};  ///< if it is rounded
  };
  /// The bucket of a reduction that starts; one within a compute action is the caller's from now on.
  [[nodiscard]] at::Tensor take_bucket(const Action& action);
  [[nodiscard]] std::unique_ptr<parameters::GradientBuckets> make_buckets(std::size_t group) const;
  void move_into_bucket(ValueId parameter);
  void count_down(ValueId parameter);

  RankRuntime& runtime_;
  ComputeGate* gate_ = nullptr;
  /// By RankRuntime::parameters. A deque allocates small pieces. For a large one malloc would first merge the freed
  /// memory of the last call's graph, more than 1 % of a call of tiny operators.
  std::deque<at::Tensor> sums_;
  std::vector<std::unique_ptr<parameters::GradientBuckets>> buckets_;  ///< by group, null if this rank is not a member
  std::map<int, std::deque<Sum>> on_their_way_;  ///< by group: in flight, which end in their order
  std::vector<at::Tensor> shares_;               ///< by group: this rank's shard of the reduced gradients
  std::set<int> summed_;                         ///< groups whose reduction within this compute action has started
  bool sums_in_some_computes_ = false;
  std::map<ValueId, std::pair<int, int>> bucket_of_;  ///< parameter to (group, bucket)
  std::map<ValueId, std::size_t> place_of_;           ///< parameter to index in the group's layout
  /// Number of gradients that stages have yet to add before the bucket is ready.
  std::map<std::pair<int, int>, int> missing_;
};

}  // namespace autopar::engine
