#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include <autopar/core/cluster.hpp>

namespace autopar {

/// Time of one message between two ranks, alone on the innermost level's link that joins them. 0 if `from` is `to`.
/// @throws InvalidArgument if no level joins the ranks
[[nodiscard]] inline Seconds point_to_point(const Cluster& cluster, Bytes bytes, Rank from, Rank to) {
  return from == to ? Seconds{} : cluster.between(from, to).transfer(bytes);
}

namespace detail {

/// Time of 2 (n-1) consecutive messages of bytes / n, on each of the n links of a ring concurrently.
[[nodiscard]] inline Seconds ring(const Link& link, double bytes, std::size_t ranks) {
  if (ranks < 2) return {};
  const double n = static_cast<double>(ranks);
  return 2 * (n - 1) * (link.latency + Seconds(bytes / n / link.bandwidth.value()));
}

/// The number of ranks in each group of `span` adjacent ranks, by ascending group.
[[nodiscard]] inline std::vector<std::size_t> ranks_by_group(std::span<const Rank> ranks, int span) {
  std::vector<std::size_t> result;
  if (std::is_sorted(ranks.begin(), ranks.end())) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (i == 0 || ranks[i].value() / span != ranks[i - 1].value() / span) result.push_back(0);
      ++result.back();
    }
    return result;
  }
  std::map<int, std::size_t> counts;
  for (const Rank rank : ranks) ++counts[rank.value() / span];
  for (const auto& [group, count] : counts) result.push_back(count);
  return result;
}

}  // namespace detail

/// Time of one ring all-reduce over all ranks, at the rate of the slowest link in the ring.
/// @throws InvalidArgument if no level joins the ranks
[[nodiscard]] inline Seconds flat_ring_all_reduce(const Cluster& cluster, Bytes bytes, std::span<const Rank> ranks) {
  if (ranks.size() < 2) return {};
  const auto [low, high] = std::minmax_element(ranks.begin(), ranks.end());
  return detail::ring(cluster.between(*low, *high), static_cast<double>(bytes.value()), ranks.size());
}

/// Time of a hierarchical all-reduce: reduce-scatter in each group, all-reduce of the shards between groups, all-gather
/// in each group. Each level takes the time of a ring, on the bytes divided by the number of ranks already joined (the
/// smallest of any group).
/// @throws InvalidArgument if no level joins the ranks
[[nodiscard]] inline Seconds hierarchical_all_reduce(const Cluster& cluster, Bytes bytes, std::span<const Rank> ranks) {
  if (ranks.size() < 2) return {};
  Seconds total{};
  double shard = static_cast<double>(bytes.value());
  std::size_t joined = 1;  // smallest number of ranks in a group of the next inner level
  for (const auto& level : cluster.levels) {
    const auto groups = detail::ranks_by_group(ranks, level.span);
    const std::size_t largest = *std::max_element(groups.begin(), groups.end());
    const std::size_t members = (largest + joined - 1) / joined;
    total += detail::ring(level.link, shard, members);
    joined = std::max<std::size_t>(1, *std::min_element(groups.begin(), groups.end()));
    shard = static_cast<double>(bytes.value()) / static_cast<double>(joined);
    if (groups.size() == 1) return total;
  }
  throw InvalidArgument("cluster '" + cluster.name + "': no link level joins all ranks of an all-reduce; the last " +
                        "level's span must be at least " + std::to_string(cluster.devices));
}

/// Time of an all-reduce over `ranks`: the faster of a flat ring and hierarchical rings. 0 for fewer than two ranks.
[[nodiscard]] inline Seconds all_reduce_time(const Cluster& cluster, Bytes bytes, std::span<const Rank> ranks) {
  return std::min(flat_ring_all_reduce(cluster, bytes, ranks), hierarchical_all_reduce(cluster, bytes, ranks));
}

/// The lowest latency and the highest bandwidth of a cluster: no message is faster than `transfer` over this link.
[[nodiscard]] inline Link fastest_link(const Cluster& cluster) {
  if (cluster.levels.empty()) return {};
  Link best = cluster.levels.front().link;
  for (const auto& level : cluster.levels) {
    best.latency = std::min(best.latency, level.link.latency);
    best.bandwidth = std::max(best.bandwidth, level.link.bandwidth);
  }
  return best;
}

/// A lower bound on `all_reduce_time` of any `replicas` ranks: each sends and receives at least 2 (n-1)/n of the bytes.
[[nodiscard]] inline Seconds least_all_reduce_time(const Cluster& cluster, Bytes bytes, int replicas) {
  if (replicas < 2) return {};
  const Link best = fastest_link(cluster);
  const double n = replicas;
  return 2 * best.latency + Seconds(2 * (n - 1) / n * static_cast<double>(bytes.value()) / best.bandwidth.value());
}

}  // namespace autopar
