#pragma once

#include <algorithm>
#include <span>
#include <utility>

#include <autopar/core/cluster.hpp>
#include <autopar/cost/concepts.hpp>
#include <autopar/cost/contention.hpp>
#include <autopar/cost/links.hpp>
#include <autopar/cost/model_profile.hpp>

namespace autopar {

/// Shares of a device's peak rates that operators of a class reach, relative to `Device::efficiency`.
struct ClassEfficiency {
  double matmul = 1;
  double convolution = 0.8;
  double attention = 0.7;
  double memory = 1;  ///< of the memory bandwidth, relative to `Device::efficiency`

  /// Share of the peak rate of arithmetic.
  [[nodiscard]] double arithmetic(OpClass op_class) const {
    switch (op_class) {
      case OpClass::kConvolution:
        return convolution;
      case OpClass::kAttention:
        return attention;
      default:
        return matmul;
    }
  }
  friend bool operator==(const ClassEfficiency&, const ClassEfficiency&) = default;
};

/// Time of work on a device: the longer of arithmetic and memory traffic, plus launches.
/// @source Williams, Waterman, Patterson, "Roofline", CACM 2009
[[nodiscard]] inline Seconds roofline_time(const Device& device, const ClassEfficiency& efficiency, OpClass op_class,
                                           DType dtype, const Work& work, double samples) {
  if (op_class == OpClass::kView) return {};
  const double rate = device.peak(dtype).value() * device.efficiency * efficiency.arithmetic(op_class);
  const double bandwidth = device.memory_bandwidth.value() * device.efficiency * efficiency.memory;
  const double busy = std::max(work.flops.at(samples) / rate, work.bytes.at(samples) / bandwidth);
  return Seconds(std::max(0.0, busy)) + device.launch * std::max(0.0, work.launches.at(samples));
}

using ModelGraph = Graph<OpProfile, ValueProfile>;

/// Costs of a captured model from the peak rates of a cluster's devices and links. Uses no device.
class RooflineCost {
 public:
  static constexpr bool kCostsByValue = true;

  explicit RooflineCost(Cluster cluster, ClassEfficiency efficiency = {})
      : cluster_(std::move(cluster)), efficiency_(efficiency), fastest_(fastest_link(cluster_)) {}

  [[nodiscard]] NodeCost node(const ModelGraph& graph, NodeId id, double samples) const {
    const OpProfile& op = graph[id];
    NodeCost cost;
    for (const auto& item : op.work) {
      cost.forward += time(item, item.forward, samples);
      const Seconds backward = time(item, item.backward, samples);
      cost.backward += backward;
      const bool has_weights = item.op_class == OpClass::kMatmul || item.op_class == OpClass::kConvolution;
      if (has_weights && !op.parameters.empty()) cost.backward_weight += backward * kWeightShare;
    }
    cost.saved = bytes_at(op.saved, samples);
    cost.workspace = bytes_at(op.workspace, samples);
    cost.deferred_weight = bytes_at(op.deferred_weight, samples);
    cost.forward_workspace = bytes_at(op.forward_workspace, samples);
    return cost;
  }
  /// Arithmetic and memory traffic are divided among shards; launches are not.
  [[nodiscard]] ShardShare shard_share(const ModelGraph& graph, NodeId id, double samples, double share) const {
    Seconds forward{}, backward{}, shard_forward{}, shard_backward{};
    for (const auto& item : graph[id].work) {
      forward += time(item, item.forward, samples);
      backward += time(item, item.backward, samples);
      shard_forward += time(item, in_slices(item.forward, share), samples);
      shard_backward += time(item, in_slices(item.backward, share), samples);
    }
    return {forward > Seconds{} ? shard_forward / forward : share,
            backward > Seconds{} ? shard_backward / backward : share};
  }
  [[nodiscard]] const ValueProfile& value(const ModelGraph& graph, EdgeId edge) const { return graph[edge]; }

  /// Bytes of casts of parameters, which are kept for all micro-batches.
  [[nodiscard]] Bytes resident(const ModelGraph& graph, NodeId id) const { return graph[id].resident; }

  /// Whether no part of its work decreases faster than the number of samples.
  [[nodiscard]] bool economy_of_scale(const ModelGraph& graph, NodeId id) const {
    const auto scales = [](const Work& work) {
      return work.flops.fixed >= 0 && work.bytes.fixed >= 0 && work.launches.fixed >= 0;
    };
    const auto& items = graph[id].work;
    return std::all_of(items.begin(), items.end(),
                       [&](const WorkItem& item) { return scales(item.forward) && scales(item.backward); });
  }

  [[nodiscard]] Seconds transfer(Bytes bytes, Rank from, Rank to) const {
    return point_to_point(cluster_, bytes, from, to);
  }
  [[nodiscard]] Seconds all_reduce(Bytes bytes, std::span<const Rank> ranks) const {
    return all_reduce_time(cluster_, bytes, ranks);
  }
  [[nodiscard]] Seconds least_all_reduce(Bytes bytes, int replicas) const {
    return least_all_reduce_time(cluster_, bytes, replicas);
  }
  [[nodiscard]] Seconds least_transfer(Bytes bytes) const { return fastest_.transfer(bytes); }
  [[nodiscard]] Contention contention(std::span<const Rank>) const { return least_contention(0); }
  [[nodiscard]] Contention least_contention(int) const { return cluster_.host ? kNoContention : kOneAfterTheOther; }

  /// Reads parameters, gradients and state and writes parameters and state, at memory bandwidth.
  [[nodiscard]] Seconds update(Bytes parameters, double state_factor) const {
    return moved(3 + 2 * state_factor, parameters, cluster_.device.memory_bandwidth);
  }

  /// Copies gradients to the host, updates there, and copies parameters back, one after the other. If the devices are
  /// CPUs, both copies are within their memory.
  [[nodiscard]] Seconds offloaded_update(Bytes parameters, double state_factor) const {
    if (parameters == Bytes(0)) return {};
    if (!cluster_.host)
      return update(parameters, state_factor) + 2 * moved(2.0, parameters, cluster_.device.memory_bandwidth);
    const Host& host = *cluster_.host;
    return 2 * host.link.transfer(parameters) + moved(3 + 2 * state_factor, parameters, host.memory_bandwidth);
  }

  [[nodiscard]] const Cluster& cluster() const { return cluster_; }

 private:
  /// Time to move `bytes` `times` times through a memory.
  [[nodiscard]] Seconds moved(double times, Bytes bytes, BytesPerSecond bandwidth) const {
    return Seconds(static_cast<double>(bytes.value()) * times / (bandwidth.value() * cluster_.device.efficiency));
  }
  [[nodiscard]] Seconds time(const WorkItem& item, const Work& work, double samples) const {
    return roofline_time(cluster_.device, efficiency_, item.op_class, item.dtype, work, samples);
  }
  [[nodiscard]] static Work in_slices(Work work, double share) {
    for (Affine* part : {&work.flops, &work.bytes}) *part = {part->per_sample * share, part->fixed * share};
    return work;
  }
  [[nodiscard]] static Bytes bytes_at(const Affine& size, double samples) {
    return Bytes(static_cast<std::int64_t>(std::max(0.0, size.at(samples))));
  }

  /// The backward of a product has one product for each of its two factors.
  static constexpr double kWeightShare = 0.5;

  Cluster cluster_;
  ClassEfficiency efficiency_;
  Link fastest_;
};

static_assert(CostModel<RooflineCost, ModelGraph>);
static_assert(BoundsAllReduce<RooflineCost> && BoundsTransfer<RooflineCost> && UpdatesOnHost<RooflineCost>);
static_assert(HasEconomyOfScale<RooflineCost, ModelGraph> && CostsShards<RooflineCost, ModelGraph>);

}  // namespace autopar
