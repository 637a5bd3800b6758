#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <autopar/bottleneck/tables.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>

namespace autopar {

/// What a search claims: a plan's stages, the seconds of its slowest stage, and a lower bound for every plan.
struct BottleneckCertificate {
  std::vector<VariantStage> stages;  ///< empty: there is no plan at all, and the bound is infinite
  double seconds = 0;
  double lower_bound = 0;
};

struct CertificateVerdict {
  bool accepted = false;
  double gap = 0;      ///< seconds / lower_bound - 1
  std::string reason;  ///< why not
};

namespace detail {

/// Recomputes cost and bound from the tables alone. It shares no code with `BottleneckSearch`. It uses sets of nodes
/// instead of the lattice, and plain fronts of (bytes, seconds) instead of the bounded knapsack. Each stage is costed
/// from its definition.
class CertificateChecker {
 public:
  explicit CertificateChecker(const VariantTables& tables) : tables_(tables), graph_(tables.graph) {}

  [[nodiscard]] CertificateVerdict check(const BottleneckCertificate& claim) {
    constexpr double kRounding = 1e-12;
    if (!(claim.lower_bound >= 0)) return {false, 0, "the bound is not a number"};
    if (claim.stages.empty()) {
      if (std::isfinite(claim.lower_bound)) return {false, 0, "there is no plan, but the bound is finite"};
      if (plan_exists(std::numeric_limits<double>::infinity())) return {false, 0, "a plan exists"};
      return {true, 0, ""};
    }
    std::string broken;
    const double seconds = slowest(claim.stages, broken);
    if (!broken.empty()) return {false, 0, broken};
    if (!(std::abs(claim.seconds - seconds) <= 1e-9 * seconds)) {
      return {false, 0, "the plan takes " + std::to_string(seconds) + " s, not " + std::to_string(claim.seconds)};
    }
    if (claim.lower_bound > seconds * (1 + kRounding)) return {false, 0, "the bound is above the plan's own seconds"};
    if (claim.lower_bound == 0) return {true, seconds > 0 ? std::numeric_limits<double>::infinity() : 0, ""};
    if (plan_exists(claim.lower_bound * (1 - kRounding))) return {false, 0, "a plan exists below the bound"};
    return {true, seconds / claim.lower_bound - 1, ""};
  }

  /// Seconds of the slowest stage. @throws InvalidArgument if the stages are no plan
  [[nodiscard]] double seconds(const std::vector<VariantStage>& stages) const {
    std::string broken;
    const double found = slowest(stages, broken);
    if (!broken.empty()) throw InvalidArgument("the stages are no plan of this instance: " + broken);
    return found;
  }

 private:
  using Set = std::vector<bool>;

  [[nodiscard]] double slowest(const std::vector<VariantStage>& stages, std::string& broken) const {
    std::vector<int> stage_of(graph_.node_count(), -1);
    std::int64_t devices = 0;
    int later = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (stages[s].nodes.empty() || stages[s].variants.size() != stages[s].nodes.size())
        broken = "a stage is incomplete";
      for (const NodeId node : stages[s].nodes) {
        if (node.index() >= stage_of.size() || stage_of[node.index()] >= 0)
          return broken = "a node is in two stages", 0;
        stage_of[node.index()] = static_cast<int>(s);
      }
      devices += static_cast<std::int64_t>(stages[s].replicas) * stages[s].tensor_degree;
      later += stages[s].replicas;
    }
    if (std::count(stage_of.begin(), stage_of.end(), -1) > 0) broken = "a node is in no stage";
    if (devices > tables_.devices) broken = "the plan uses more devices than there are";
    if (later > tables_.most_replicas) broken = "the data degrees sum up to more than is allowed";
    for (const EdgeId edge : graph_.edges()) {
      if (stage_of[graph_.source(edge).index()] > stage_of[graph_.target(edge).index()])
        broken = "an edge runs backwards";
    }
    double most = 0;
    for (std::size_t s = 0; s < stages.size() && broken.empty(); ++s) {
      most = std::max(most, seconds_of(stages[s], static_cast<int>(s), later, stage_of, broken));
      later -= stages[s].replicas;
    }
    return most;
  }

  [[nodiscard]] double seconds_of(const VariantStage& stage, int s, int sum, const std::vector<int>& stage_of,
                                  std::string& broken) const {
    const auto t = std::find(tables_.tensor_degrees.begin(), tables_.tensor_degrees.end(), stage.tensor_degree);
    const auto r = std::find(tables_.replicas.begin(), tables_.replicas.end(), stage.replicas);
    if (t == tables_.tensor_degrees.end() || r == tables_.replicas.end()) return broken = "a degree is not allowed", 0;
    const auto d = static_cast<std::size_t>(r - tables_.replicas.begin());
    const double in_flight = std::ceil(static_cast<double>(sum) / stage.replicas);
    double bytes = 0, seconds = 0;
    for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
      const NodeId node = stage.nodes[i];
      const auto& choices =
          tables_.variants[node.index()][static_cast<std::size_t>(t - tables_.tensor_degrees.begin())];
      const auto v = static_cast<std::size_t>(stage.variants[i]);
      if (v >= choices.size()) return broken = "a node has no such variant", 0;
      bytes += choices[v].bytes_in_flight * in_flight + choices[v].bytes;
      seconds += own_seconds(node, choices[v], d, [&](NodeId other) { return stage_of[other.index()] == s; });
    }
    if (bytes > tables_.memory * (1 + 1e-12)) broken = "a stage does not fit its devices";
    return seconds;
  }

  template <class Inside>
  [[nodiscard]] double own_seconds(NodeId node, const NodeVariant& v, std::size_t d, const Inside& inside) const {
    double border = 0;
    for (std::size_t e = 0; e < v.in.size(); ++e) {
      if (!inside(graph_.source(graph_.in_edges(node)[e]))) border += v.in[e];
    }
    for (std::size_t e = 0; e < v.out.size(); ++e) {
      if (!inside(graph_.target(graph_.out_edges(node)[e]))) border += v.out[e];
    }
    return v.work * tables_.work_share[d] + border * tables_.border_cost[d] + v.parameters * tables_.parameter_cost[d];
  }

  /// Whether some pipeline keeps every stage at or below `limit` seconds. A dynamic program from the last stage
  /// backwards: for each set of staged nodes and sum of data degrees, the fewest devices.
  [[nodiscard]] bool plan_exists(double limit) {
    limit_ = limit;
    done_.clear();
    const Set none(graph_.node_count(), false), all(graph_.node_count(), true);
    done_[{0, none}] = {{0, 0}};
    for (auto at = done_.begin(); at != done_.end(); ++at) {  // larger sets come later in the order of the map
      if (at->first.second == all) return true;
      before_ = at->second;
      tail_ = at->first.second;
      stage_.assign(graph_.node_count(), false);
      members_.clear();
      grow(0);
    }
    return false;
  }

  /// Tries every stage in front of the tail: takes or leaves each node, in reverse topological order.
  void grow(std::size_t from) {
    if (order_.empty()) order_ = topological_order(graph_);
    for (std::size_t i = from; i < order_.size(); ++i) {
      const NodeId node = order_[order_.size() - 1 - i];
      if (tail_[node.index()]) continue;
      const auto successors = graph_.successors(node);
      const bool ready = std::all_of(successors.begin(), successors.end(),
                                     [this](NodeId after) { return tail_[after.index()] || stage_[after.index()]; });
      if (!ready) continue;
      stage_[node.index()] = true;
      members_.push_back(node);
      if (could_fit()) {
        close();
        grow(i + 1);
      }
      members_.pop_back();
      stage_[node.index()] = false;
    }
  }

  /// Whether the stage is feasible at best: one micro-batch in flight, the cheapest variants, free borders, all devices
  /// left.
  [[nodiscard]] bool could_fit() const {
    int fewest = tables_.devices;
    for (const auto& [sum, devices] : before_) fewest = std::min(fewest, devices);
    for (std::size_t t = 0; t < tables_.tensor_degrees.size(); ++t) {
      double bytes = 0, work = 0;
      for (const NodeId node : members_) {
        double least_bytes = std::numeric_limits<double>::infinity(), least_work = least_bytes;
        for (const NodeVariant& v : tables_.variants[node.index()][t]) {
          least_bytes = std::min(least_bytes, v.bytes_in_flight + v.bytes);
          least_work = std::min(least_work, v.work);
        }
        bytes += least_bytes;
        work += least_work;
      }
      for (std::size_t d = 0; d < tables_.replicas.size() && bytes <= tables_.memory; ++d) {
        const bool room =
            fewest + static_cast<std::int64_t>(tables_.replicas[d]) * tables_.tensor_degrees[t] <= tables_.devices;
        if (room && work * tables_.work_share[d] <= limit_) return true;
      }
    }
    return false;
  }

  void close() {
    Set next = tail_;
    for (const NodeId node : members_) next[node.index()] = true;
    const auto size = static_cast<std::size_t>(std::count(next.begin(), next.end(), true));
    std::map<std::tuple<std::size_t, std::size_t, int>, bool> fits;
    for (const auto& [sum, devices] : before_) {
      for (std::size_t t = 0; t < tables_.tensor_degrees.size(); ++t) {
        for (std::size_t d = 0; d < tables_.replicas.size(); ++d) {
          const int r = tables_.replicas[d];
          const std::int64_t wide = devices + static_cast<std::int64_t>(r) * tables_.tensor_degrees[t];
          if (wide > tables_.devices || sum + r > tables_.most_replicas) break;
          const int used = static_cast<int>(wide);
          const int in_flight = (sum + r + r - 1) / r;
          const auto [known, added] = fits.try_emplace({t, d, in_flight}, false);
          if (added) known->second = stage_fits(t, d, in_flight);
          if (!known->second) continue;
          auto& front = done_[{size, next}];
          const auto [entry, first] = front.try_emplace(sum + r, used);
          entry->second = std::min(entry->second, used);
          break;  // more replicas need more devices and leave more micro-batches in flight before this stage
        }
      }
    }
  }

  [[nodiscard]] bool stage_fits(std::size_t t, std::size_t d, int in_flight) const {
    std::map<double, double> front{{0, 0}};  // bytes -> least seconds
    for (const NodeId node : members_) {
      std::map<double, double> next;
      for (const NodeVariant& v : tables_.variants[node.index()][t]) {
        const double bytes = v.bytes_in_flight * in_flight + v.bytes;
        const double seconds = own_seconds(node, v, d, [this](NodeId other) { return stage_[other.index()]; });
        for (const auto& [held, spent] : front) {
          if (held + bytes > tables_.memory || spent + seconds > limit_) continue;
          const auto [entry, added] = next.try_emplace(held + bytes, spent + seconds);
          entry->second = std::min(entry->second, spent + seconds);
        }
      }
      double fastest = std::numeric_limits<double>::infinity();
      for (auto at = next.begin(); at != next.end();) {
        const bool better = at->second < fastest;
        fastest = std::min(fastest, at->second);
        at = better ? std::next(at) : next.erase(at);
      }
      front = std::move(next);
    }
    return !front.empty();
  }

  const VariantTables& tables_;
  const Graph<std::int64_t, char>& graph_;
  double limit_ = 0;
  std::map<std::pair<std::size_t, Set>, std::map<int, int>> done_;  // (size, nodes done) -> sum -> fewest devices
  std::map<int, int> before_;
  Set tail_, stage_;
  std::vector<NodeId> members_, order_;
};

}  // namespace detail

/// Seconds of a plan's slowest stage, by the checker's code. @pre check_tables(tables)
/// @throws InvalidArgument if the stages are no plan of these tables
[[nodiscard]] inline double slowest_stage(const VariantTables& tables, const std::vector<VariantStage>& stages) {
  return detail::CertificateChecker(tables).seconds(stages);
}

/// Recomputes a plan's cost and bound from the tables, without code of the search.
/// @pre check_tables(tables)
/// @cost up to one stage for each pair of nested cuts of the graph; meant for checks, not for speed
[[nodiscard]] inline CertificateVerdict check_certificate(const VariantTables& tables,
                                                          const BottleneckCertificate& claim) {
  return detail::CertificateChecker(tables).check(claim);
}

}  // namespace autopar
