#pragma once

#include <algorithm>
#include <map>
#include <span>

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

/// How many of some ranks are in the groups of so many adjacent ranks that have any.
struct GroupSizes {
  std::size_t groups = 0, smallest = 0, largest = 0;
  void add(std::size_t members) {
    smallest = groups == 0 ? members : std::min(smallest, members);
    largest = std::max(largest, members);
    ++groups;
  }
};
[[nodiscard]] inline GroupSizes group_sizes(std::span<const Rank> ranks, int span) {
  GroupSizes sizes;
  if (std::is_sorted(ranks.begin(), ranks.end())) {
    for (std::size_t first = 0; first < ranks.size();) {
      const int end = (ranks[first].value() / span + 1) * span;
      std::size_t next = first + 1;
      while (next < ranks.size() && ranks[next].value() < end) ++next;
      sizes.add(next - first);
      first = next;
    }
    return sizes;
  }
  std::map<int, std::size_t> counts;
  for (const Rank rank : ranks) ++counts[rank.value() / span];
  for (const auto& [group, count] : counts) sizes.add(count);
  return sizes;
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
    const auto sizes = detail::group_sizes(ranks, level.span);
    const std::size_t members = (sizes.largest + joined - 1) / joined;
    total += detail::ring(level.link, shard, members);
    joined = std::max<std::size_t>(1, sizes.smallest);
    shard = static_cast<double>(bytes.value()) / static_cast<double>(joined);
    if (sizes.groups == 1) return total;
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
