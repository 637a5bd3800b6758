#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/request.hpp>

namespace autopar {

/// A lower bound on the step of every plan of a workload, whatever its stages, replicas and schedule, in cases by the
/// number of micro-batches m.
///
/// No slice is larger than a micro-batch. So economy of scale gives the least work of all ranks together, which grows
/// with m. The first micro-batch that has samples must pass the longest chain of atoms forward, and its input gradients
/// must pass back. Its slices are at least 1/m of the smallest local batch. Weight gradients can be deferred, so they
/// count only where the way back ends. This path shrinks with m. The bound is where the two cross.
/// @cost O((nodes + edges) * log(samples of a rank))
class StepBound {
 public:
  StepBound(const Workload& work, const Constraints& constraints)
      : work_(work), constraints_(constraints), order_(topological_order(work.graph)) {
    std::set<ParameterId> read;
    scaling_.resize(work.graph.node_count(), 0);
    for (const NodeId node : work.graph.nodes()) {
      scaling_[class_of(node)] += work.graph[node].economy_of_scale ? 1 : 0;
      mixes_ = mixes_ || work.graph[node].whole_batch;
      once_ = once_ || mixes_ || work.graph[node].totals > Bytes(0);
      read.insert(work.graph[node].parameters.begin(), work.graph[node].parameters.end());
    }
    for (const ParameterId id : read)
      trainable_ += work.parameters[id.index()].trainable ? work.parameters[id.index()].bytes : Bytes(0);
  }

  /// Cases that cover every number of micro-batches; none if no node is known to have economy of scale.
  [[nodiscard]] std::vector<BoundCase> cases() const {
    if (std::all_of(scaling_.begin(), scaling_.end(), [](int nodes) { return nodes == 0; })) return {};
    const int most = once_ ? 1 : kMost, last = once_ ? 1 : 0;
    // The smallest number of micro-batches for which work is no smaller a bound than the path.
    int low = 1, high = static_cast<int>(std::min<std::int64_t>(constraints_.largest_local_batch(), most)) + 1;
    const int beyond = high;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (work_seconds(middle) >= path_seconds(middle))
        high = middle;
      else
        low = middle + 1;
    }
    std::vector<BoundCase> out;
    if (low == beyond) return {{BoundKind::kPath, 1, last, path_seconds(most)}};
    if (low > 1) out.push_back({BoundKind::kPath, 1, low - 1, path_seconds(low - 1)});
    out.push_back({BoundKind::kWork, low, last, work_seconds(low)});
    return out;
  }

 private:
  static constexpr int kMost = 1 << 30;  // micro-batches: as good as any number

  /// Least seconds for the whole batch in the largest possible slices, spread over all ranks.
  [[nodiscard]] Seconds work_seconds(int microbatches) const {
    std::int64_t largest = 0;
    for (const auto local : constraints_.local_batches()) largest += (local + microbatches - 1) / microbatches;
    const auto& costs = costs_of_classes(largest);
    double sum = 0;
    for (std::size_t one = 0; one < scaling_.size(); ++one) {
      if (scaling_[one] > 0) sum += scaling_[one] * (costs[one].forward + costs[one].backward).value();
    }
    sum *= static_cast<double>(constraints_.batch) / static_cast<double>(largest);
    sum += work_.update(trainable_, constraints_.optimizer_state_factor).value();
    return Seconds(sum / constraints_.world);
  }

  /// Longest path of one micro-batch forward and backward.
  [[nodiscard]] Seconds path_seconds(int microbatches) const {
    const std::int64_t least = std::max<std::int64_t>(1, constraints_.batch / constraints_.world / microbatches);
    const auto& costs = costs_of_classes(least);
    const auto* whole = mixes_ ? &costs_of_classes(constraints_.batch) : nullptr;
    const std::vector<int> region_shards = most_region_shards();
    std::vector<double> down(order_.size(), 0), up(order_.size(), 0);
    double longest = 0;
    for (const NodeId node : order_) {
      double before = 0, after = 0;
      for (const EdgeId edge : work_.graph.in_edges(node)) {
        const std::size_t source = work_.graph.source(edge).index();
        before = std::max(before, down[source]);
        if (work_.graph[edge].differentiable) after = std::max(after, up[source]);
      }
      const std::int64_t samples = work_.graph[node].whole_batch ? constraints_.batch : least;
      const bool sliced = most_shards() > 1 && !work_.regions_of.empty() && !work_.regions_of[node.index()].empty();
      const NodeCost cost = sliced ? work_.node_cost_in_shards(node, samples, region_shards)
                                   : (work_.graph[node].whole_batch ? *whole : costs)[class_of(node)];
      down[node.index()] = before + cost.forward.value();
      const double weights = cost.backward_weight.value();
      up[node.index()] = cost.backward.value() - weights + std::max(after, weights);
      longest = std::max(longest, down[node.index()] + up[node.index()]);
    }
    return Seconds(longest);
  }

  /// Most tensor shards of a replica in any plan that the bound covers.
  [[nodiscard]] int most_shards() const { return constraints_.tensor_degrees.back(); }
  /// Most of them that each region admits.
  [[nodiscard]] std::vector<int> most_region_shards() const {
    std::vector<int> out;
    for (const TensorRegion& region : work_.regions) {
      out.push_back(most_shards());
      while (!region.admits(out.back())) --out.back();
    }
    return out;
  }

  /// Each node is its own class if no classes are known.
  [[nodiscard]] std::size_t class_of(NodeId node) const {
    return work_.class_of.empty() ? node.index() : static_cast<std::size_t>(work_.class_of[node.index()]);
  }
  [[nodiscard]] const std::vector<NodeCost>& costs_of_classes(std::int64_t samples) const {
    return work_.class_of.empty() ? work_.node_costs(samples) : work_.class_costs(samples);
  }

  const Workload& work_;
  const Constraints& constraints_;
  std::vector<NodeId> order_;
  std::vector<int> scaling_;  // nodes of each class that have economy of scale
  Bytes trainable_{};
  bool mixes_ = false;  // an atom needs all samples on one rank
  bool once_ = false;   // one micro-batch only
};

/// The certificate of a plan with this step, without the search's claims.
[[nodiscard]] inline Certificate make_certificate(const Workload& work, const Constraints& constraints, Seconds step) {
  Certificate out;
  out.tensor_parallel = constraints.tensor_degrees.back();
  out.cases = StepBound(work, constraints).cases();
  for (const BoundCase& one : out.cases) {
    out.lower_bound = out.lower_bound == Seconds{} ? one.seconds : std::min(out.lower_bound, one.seconds);
  }
  if (out.lower_bound > Seconds{}) out.gap = step / out.lower_bound - 1;
  return out;
}

}  // namespace autopar
