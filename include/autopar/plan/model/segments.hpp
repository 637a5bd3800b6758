#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/acyclic_splitting.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/request.hpp>

namespace autopar {

namespace detail {

/// Cuts a topological order into runs such that the largest run saves little and few bytes lie between runs.
class SegmentCuts {
 public:
  SegmentCuts(const Workload& work, std::int64_t samples) : order_(topological_order(work.graph)), saved_{0} {
    const auto& costs = work.node_costs(samples);
    for (const NodeId node : order_)
      saved_.push_back(saved_.back() + static_cast<double>(costs[node.index()].saved.value()));
    count_crossing(work, samples);
  }

  /// The segment of each node.
  [[nodiscard]] std::vector<int> best() const {
    const auto n = static_cast<int>(order_.size());
    double least = std::numeric_limits<double>::infinity();
    std::vector<int> segment_of;
    for (int parts = 1; parts <= n; parts += std::max(1, parts / 8)) {
      const double limit = std::max(saved_.back() / parts, largest());
      std::vector<std::size_t> begins;
      const double kept = cut(limit, begins);
      if (kept + limit >= least) continue;
      least = kept + limit;
      segment_of = numbered(begins);
    }
    return segment_of;
  }

 private:
  [[nodiscard]] double largest() const {
    double most = 0;
    for (std::size_t i = 0; i + 1 < saved_.size(); ++i) most = std::max(most, saved_[i + 1] - saved_[i]);
    return most;
  }

  /// Bytes of the values that are made before a position of the order and read at it or later.
  void count_crossing(const Workload& work, std::int64_t samples) {
    const auto position = positions_in(work.graph, order_);
    std::vector<double> change(order_.size() + 1, 0);
    for (const NodeId node : order_) {
      struct Read {
        std::int32_t value;
        std::size_t last;
        double bytes;
      };
      std::vector<Read> reads;  // each value once
      for (const EdgeId edge : work.graph.out_edges(node)) {
        const ValueProfile& value = work.graph[edge];
        const std::size_t at = position[work.graph.target(edge).index()];
        const auto known = std::ranges::find(reads, value.value, &Read::value);
        if (known != reads.end())
          known->last = std::max(known->last, at);
        else
          reads.push_back({value.value, at, std::max(0.0, value.bytes.at(static_cast<double>(samples)))});
      }
      for (const Read& read : reads) {
        change[position[node.index()] + 1] += read.bytes;
        change[read.last + 1] -= read.bytes;
      }
    }
    double now = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) crossing_.push_back(now += change[i]);
  }

  /// Cuts into runs that save at most `limit` each. @return the bytes between them
  double cut(double limit, std::vector<std::size_t>& begins) const {
    const std::size_t n = order_.size();
    std::vector<double> kept(n + 1, 0);
    std::vector<std::size_t> begin_of(n + 1, 0);
    std::deque<std::size_t> window;  // of begins, the cheapest first
    const auto cost = [&](std::size_t begin) { return kept[begin] + crossing_[begin]; };
    for (std::size_t end = 1; end <= n; ++end) {
      while (!window.empty() && cost(window.back()) >= cost(end - 1)) window.pop_back();
      window.push_back(end - 1);
      while (saved_[end] - saved_[window.front()] > limit * (1 + 1e-12)) window.pop_front();
      begin_of[end] = window.front();
      kept[end] = cost(window.front());
    }
    for (std::size_t end = n; end > 0; end = begin_of[end]) begins.push_back(begin_of[end]);
    return kept[n];
  }

  /// @param begins  of the runs, the last first
  [[nodiscard]] std::vector<int> numbered(const std::vector<std::size_t>& begins) const {
    std::vector<int> segment_of(order_.size(), 0);
    std::size_t end = order_.size();
    for (std::size_t i = 0; i < begins.size(); end = begins[i++]) {
      for (std::size_t at = begins[i]; at < end; ++at)
        segment_of[order_[at].index()] = static_cast<int>(begins.size() - 1 - i);
    }
    return segment_of;
  }

  std::vector<NodeId> order_;
  std::vector<double> saved_;     // of the first nodes of the order
  std::vector<double> crossing_;  // by position
};

/// Segments as they can run. Nodes that take totals over the whole batch are in none. A segment is split if a node
/// outside it comes between two parts of it.
[[nodiscard]] inline std::vector<int> runnable_segments(const Workload& work, std::vector<int> segment_of) {
  for (const NodeId node : work.graph.nodes()) {
    if (work.graph[node].totals > Bytes(0)) segment_of[node.index()] = -1;
  }
  int segments = 0;
  std::vector<int> out(segment_of.size(), -1);
  for (const auto& part : acyclic_splitting(work.graph, segment_of)) {
    if (segment_of[part.front().index()] < 0) continue;
    for (const NodeId node : part) out[node.index()] = segments;
    ++segments;
  }
  return out;
}

}  // namespace detail

/// `Workload::segment_of` for a request: the modules that the user names, or runs of a topological order. The runs make
/// the largest segment's activations and what is kept between segments small together. Empty if nothing is to be
/// recomputed. The quotient by segments is acyclic.
/// @param samples  the slice at which activations are weighed
/// @cost O(log(nodes) * (nodes + edges))
/// @source Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, section 4
[[nodiscard]] inline std::vector<int> recompute_segments(const Workload& work, const Constraints& constraints,
                                                         std::int64_t samples) {
  if (constraints.recompute == Recompute::kNever) return {};
  if (constraints.recomputed_modules.empty()) return detail::SegmentCuts(work, samples).best();
  std::vector<int> segment_of(work.graph.node_count(), -1);
  for (const NodeId node : work.graph.nodes()) {
    const auto& modules = constraints.recomputed_modules;
    const auto inside = [&](const std::string& module) { return is_within(work.graph[node].path, module); };
    const auto found = std::ranges::find_if(modules, inside);
    if (found != modules.end()) segment_of[node.index()] = static_cast<int>(found - modules.begin());
  }
  return detail::runnable_segments(work, std::move(segment_of));
}

/// Sets consistent segments for a workload and for the coarser workload that is searched.
inline void set_segments(Workload& fine, Workload& coarse, const Partition& blocks, const Constraints& constraints,
                         std::int64_t samples) {
  const bool by_name = !constraints.recomputed_modules.empty();  // blocks belong to no module
  fine.segment_of.clear();
  coarse.segment_of.clear();
  auto& leading = by_name ? fine : coarse;
  leading.segment_of = recompute_segments(leading, constraints, samples);
  if (leading.segment_of.empty()) return;
  (by_name ? coarse : fine).segment_of.assign((by_name ? coarse : fine).graph.node_count(), -1);
  for (const NodeId node : fine.graph.nodes()) {
    int& of_block = coarse.segment_of[blocks.block_of(node).index()];
    int& of_node = fine.segment_of[node.index()];
    if (by_name)
      of_block = std::max(of_block, of_node);
    else
      of_node = of_block;
  }
  const bool interrupted =
      std::ranges::any_of(fine.graph.nodes(), [&](NodeId node) { return fine.graph[node].totals > Bytes(0); });
  if (!by_name && interrupted) fine.segment_of = detail::runnable_segments(fine, std::move(fine.segment_of));
}

}  // namespace autopar
