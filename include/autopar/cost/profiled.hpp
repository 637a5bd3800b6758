#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include <autopar/core/cluster.hpp>
#include <autopar/core/error.hpp>
#include <autopar/cost/concepts.hpp>
#include <autopar/cost/links.hpp>
#include <autopar/cost/measured.hpp>
#include <autopar/cost/roofline.hpp>

namespace autopar {

/// Measured costs of a captured model. What was not measured has the roofline's and the cluster's costs; with nothing
/// measured it equals `RooflineCost`. A value; uses no device.
///
/// Atoms are found by `OpProfile::structure`, so equal layers share one measurement. For a number of ranks without a
/// measurement, an all-reduce uses the nearest measured number in the same class of links, scaled as a ring.
class ProfiledCost {
 public:
  static constexpr bool kCostsByValue = true;

  /// @param tensor  mean size of a trainable tensor: optimizers update one tensor after the other
  ProfiledCost(Cluster cluster, MeasuredCosts measured, Bytes tensor = Bytes(1 << 20))
      : roofline_(std::move(cluster)), measured_(std::move(measured)), tensor_(tensor) {
    expect(tensor > Bytes(0), "the mean size of a trained tensor must be positive");
  }

  [[nodiscard]] NodeCost node(const ModelGraph& graph, NodeId id, double samples) const {
    NodeCost cost = roofline_.node(graph, id, samples);
    const auto found = measured_.atoms.find(graph[id].structure);
    if (found == measured_.atoms.end()) return cost;
    const MeasuredAtom& atom = found->second;
    // Only whole backwards are measured; the part that can be deferred has the roofline's share.
    const double deferred_weight = cost.backward > Seconds{} ? cost.backward_weight / cost.backward : 0;
    cost.forward = atom.forward.at(samples);
    cost.backward = atom.backward.at(samples);
    cost.backward_weight = cost.backward * deferred_weight;
    return cost;
  }
  /// A shard takes its share of what was measured, except for launches and for what shards were measured not to divide.
  [[nodiscard]] ShardShare shard_share(const ModelGraph& graph, NodeId id, double samples, double share) const {
    const auto found = measured_.atoms.find(graph[id].structure);
    if (found == measured_.atoms.end()) return roofline_.shard_share(graph, id, samples, share);
    double forward = 0, backward = 0;  // seconds of launches
    for (const WorkItem& item : graph[id].work) {
      if (item.op_class == OpClass::kView) continue;
      forward += std::max(0.0, item.forward.launches.at(samples)) * cluster().device.launch.value();
      backward += std::max(0.0, item.backward.launches.at(samples)) * cluster().device.launch.value();
    }
    const auto of = [&](double measured, double starts, double undivided) {
      const double fixed = std::max(undivided, measured > 0 ? std::min(1.0, starts / measured) : 0);
      return fixed + (1 - fixed) * share;
    };
    const Undivided undivided = found->second.undivided.value_or(Undivided{});
    return {of(found->second.forward.at(samples).value(), forward, undivided.forward),
            of(found->second.backward.at(samples).value(), backward, undivided.backward)};
  }
  [[nodiscard]] const ValueProfile& value(const ModelGraph& graph, EdgeId edge) const { return graph[edge]; }

  [[nodiscard]] Bytes resident(const ModelGraph& graph, NodeId id) const { return roofline_.resident(graph, id); }

  /// Whether its cost per sample is no less in a small slice than in a large one.
  [[nodiscard]] bool economy_of_scale(const ModelGraph& graph, NodeId id) const {
    const auto found = measured_.atoms.find(graph[id].structure);
    if (found == measured_.atoms.end()) return roofline_.economy_of_scale(graph, id);
    return true;  // a law of CostCurve
  }

  [[nodiscard]] Seconds transfer(Bytes bytes, Rank from, Rank to) const {
    if (from == to) return {};
    const auto found = measured_.links.messages.find(link_class(cluster(), from, to));
    return found == measured_.links.messages.end() ? roofline_.transfer(bytes, from, to) : found->second(bytes);
  }

  [[nodiscard]] Seconds all_reduce(Bytes bytes, std::span<const Rank> ranks) const {
    if (ranks.size() < 2) return {};
    const auto measured = measured_sum(class_of(ranks), static_cast<int>(ranks.size()), bytes);
    return measured ? *measured : roofline_.all_reduce(bytes, ranks);
  }

  [[nodiscard]] Contention contention(std::span<const Rank> ranks) const {
    return ranks.size() < 2 ? roofline_.contention(ranks)
                            : measured_contention(class_of(ranks), static_cast<std::int64_t>(ranks.size()));
  }

  /// The longest of all classes. 0 if none was measured.
  [[nodiscard]] double message_delay() const {
    double longest = 0;
    for (const auto& [link, delay] : measured_.links.message_delays) longest = std::max(longest, delay);
    return longest;
  }

  /// The fastest among the link classes that contain this number of ranks.
  [[nodiscard]] Seconds least_all_reduce(Bytes bytes, int replicas) const {
    const Seconds unmeasured = roofline_.least_all_reduce(bytes, replicas);
    if (replicas < 2) return unmeasured;
    return least(unmeasured, [&](const LinkLevel& level) -> std::optional<Seconds> {
      if (level.span < replicas) return std::nullopt;
      return measured_sum(level.span, replicas, bytes).value_or(unmeasured);
    });
  }
  [[nodiscard]] Contention least_contention(int replicas) const {
    Contention least = kOneAfterTheOther;
    for (const auto& level : cluster().levels) {
      if (level.span < replicas) continue;
      const Contention own = measured_contention(level.span, replicas);
      least.of_computing = std::min(least.of_computing, own.of_computing);
      least.of_exchange = std::min(least.of_exchange, own.of_exchange);
    }
    return least;
  }
  [[nodiscard]] Seconds least_transfer(Bytes bytes) const {
    return least(roofline_.least_transfer(bytes), [&](const LinkLevel& level) -> std::optional<Seconds> {
      if (level.span < 2) return std::nullopt;
      const auto found = measured_.links.messages.find(level.span);
      return found == measured_.links.messages.end() ? level.link.transfer(bytes) : found->second(bytes);
    });
  }

  /// At the rate of the measured optimizer with the smallest state; 0 if none was measured.
  [[nodiscard]] Seconds passes(Bytes bytes) const {
    if (measured_.updates.empty()) return {};
    const auto& [state, curve] = *measured_.updates.begin();
    const double of_an_update = 3 + 2.0 * state;  // reads parameters, gradients and state, writes parameters and state
    return curve.beyond(static_cast<double>(bytes.value()) / of_an_update);
  }

  /// The measured optimizer with the nearest state size, tensor by tensor.
  [[nodiscard]] Seconds update(Bytes parameters, double state_factor) const {
    const auto& updates = measured_.updates;
    return updates.empty() ? roofline_.update(parameters, state_factor)
                           : tensor_by_tensor(updates, parameters, state_factor);
  }

  /// As measured, if both copies and updates were. For CPUs as devices, copies are the roofline's.
  [[nodiscard]] Seconds offloaded_update(Bytes parameters, double state_factor) const {
    const MeasuredHost& host = measured_.host;
    if (host.copy.empty() || host.updates.empty() || parameters == Bytes(0)) {
      return roofline_.offloaded_update(parameters, state_factor);
    }
    return 2 * host.copy(parameters) + tensor_by_tensor(host.updates, parameters, state_factor);
  }

  [[nodiscard]] const Cluster& cluster() const { return roofline_.cluster(); }
  [[nodiscard]] const MeasuredCosts& measured() const { return measured_; }

 private:
  /// The measurement with the nearest state size.
  [[nodiscard]] Seconds tensor_by_tensor(const std::map<int, CostCurve>& updates, Bytes parameters,
                                         double state_factor) const {
    const auto nearest = std::min_element(updates.begin(), updates.end(), [&](const auto& a, const auto& b) {
      return std::abs(a.first - state_factor) < std::abs(b.first - state_factor);
    });
    const double tensors = static_cast<double>(parameters.value()) / static_cast<double>(tensor_.value());
    return nearest->second(tensor_) * tensors;
  }

  /// The smallest of what `offer` returns for each level; `otherwise` if it returns nothing.
  template <class Offer>
  [[nodiscard]] Seconds least(Seconds otherwise, Offer offer) const {
    std::optional<Seconds> best;
    for (const auto& level : cluster().levels) {
      const std::optional<Seconds> time = offer(level);
      if (time && (!best || *time < *best)) best = time;
    }
    return best.value_or(otherwise);
  }

  [[nodiscard]] LinkClass class_of(std::span<const Rank> ranks) const {
    const auto [low, high] = std::minmax_element(ranks.begin(), ranks.end());
    return link_class(cluster(), *low, *high);
  }

  /// What was measured in a class of links for the nearest number of ranks; the end if nothing was.
  template <class Measured>
  [[nodiscard]] static typename Measured::const_iterator nearest(const Measured& measured, LinkClass link,
                                                                 std::int64_t ranks) {
    auto nearest = measured.end();
    for (auto at = measured.lower_bound({link, 2}); at != measured.end() && at->first.first == link; ++at) {
      const auto distance = [&](const auto& entry) { return std::abs(entry->first.second - ranks); };
      if (nearest == measured.end() || distance(at) < distance(nearest)) nearest = at;
    }
    return nearest;
  }

  [[nodiscard]] Contention measured_contention(LinkClass link, std::int64_t ranks) const {
    const auto measured = nearest(measured_.links.contention, link, ranks);
    return measured == measured_.links.contention.end() ? roofline_.least_contention(0) : measured->second;
  }

  /// From the nearest number of ranks that was measured: a ring of n ranks makes 2 (n-1) steps with 1/n of the bytes
  /// each.
  [[nodiscard]] std::optional<Seconds> measured_sum(LinkClass link, int ranks, Bytes bytes) const {
    const auto measured = nearest(measured_.links.all_reduces, link, ranks);
    if (measured == measured_.links.all_reduces.end()) return std::nullopt;
    const double n = ranks, m = measured->first.second;
    return measured->second.at(static_cast<double>(bytes.value()) * (m / n)) * ((n - 1) / (m - 1));
  }

  RooflineCost roofline_;
  MeasuredCosts measured_;
  Bytes tensor_;
};

static_assert(CostModel<ProfiledCost, ModelGraph>);
static_assert(BoundsAllReduce<ProfiledCost> && BoundsTransfer<ProfiledCost> &&
              HasEconomyOfScale<ProfiledCost, ModelGraph> && UpdatesOnHost<ProfiledCost> &&
              CostsShards<ProfiledCost, ModelGraph> && CostsContention<ProfiledCost> && DelaysByMessages<ProfiledCost>);

}  // namespace autopar
