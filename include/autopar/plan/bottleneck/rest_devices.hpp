#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/plan/bottleneck/tables.hpp>

namespace autopar::detail {

/// The fewest devices that everything outside a tail needs, if no stage may take longer than a limit and the stages of
/// the tail have a given sum of data degrees. A sum over nodes, so that a table by tail says it at once.
///
/// Why it holds: let a stage run on d replicas with tensor degree t after (in order of the search) a sum s of data
/// degrees. Its work and its gradient sums take at most the limit T, so that t * d * work * work_share[d] / (T -
/// parameters * parameter_cost[d]), summed over its nodes, is at most t * d; the parameters of the node alone and its
/// own smallest d make each term smaller. Its bytes are at most M, and bytes in flight are held at least (s + d) / d
/// times: t * (bytes_in_flight * (s + d) + bytes * d) / M, summed, is at most t * d as well. So is any mean of the two
/// sums, weighted `mix` to 1 - `mix`, and each node chooses tensor degree and variant for itself. Edges into the tail
/// cross a border for sure and count as work of the node that they leave.
class RestDevices {
 public:
  RestDevices(const VariantTables& tables, const DownsetLattice& tails) : tables_(tables), tails_(tails) {
    const int most = std::min(tables.most_replicas, tables.devices);
    for (int sum = 0; sum <= most; sum = sum < 4 ? sum + 1 : sum + sum / 4)
      sums_.push_back(sum);
    row_of_.resize(static_cast<std::size_t>(most) + 1);
    for (std::size_t sum = 0, row = 0; sum < row_of_.size(); ++sum) {
      while (row + 1 < sums_.size() && static_cast<std::size_t>(sums_[row + 1]) <= sum)
        ++row;
      row_of_[sum] = static_cast<std::uint8_t>(row);
    }
    reached_by_.resize(tails.size());
    for (std::size_t i = tails.size(); i-- > 0;) {
      for (const auto& cover : tails.covers(DownsetId::of(i)))
        reached_by_[cover.result.index()] = {static_cast<std::uint32_t>(i), cover.added};
    }
  }

  /// Makes the table right for a limit; one made for a slightly larger limit is good enough. @cost O(tails)
  void prepare(double limit) {
    if (limit <= limit_ && limit > limit_ * (1 - kReuse)) return;
    limit_ = limit;
    tabulate_nodes();
    const std::size_t rows = sums_.size();
    rest_.resize(tails_.size() * rows);
    std::vector<double> exact(tails_.size());
    for (std::size_t row = 0; row < rows; ++row) {
      exact[0] = 0;
      for (const NodeId node : tables_.graph.nodes())
        exact[0] += share_[row][node.index()];
      for (std::size_t i = 0; i < exact.size(); ++i) {
        if (i > 0) {
          const NodeId added = reached_by_[i].added;
          exact[i] = exact[reached_by_[i].before] - share_[row][added.index()] + mix_[row] * crossing_[added.index()];
        }
        rest_[row * exact.size() + i] = static_cast<float>(std::max(0.0, exact[i] * (1 - 1e-6) - 1e-6));
      }
    }
  }

  /// Rows of the table: sums of data degrees, rounded down.
  [[nodiscard]] std::size_t row_of(int sum) const { return row_of_[static_cast<std::size_t>(sum)]; }
  [[nodiscard]] float in_row(std::size_t row, DownsetId tail) const { return rest_[row * tails_.size() + tail.index()]; }
  [[nodiscard]] float at(DownsetId tail, int sum) const { return in_row(row_of(sum), tail); }

  /// Devices that a node needs more than this bound says if its stage has the t-th tensor degree; only adds up.
  [[nodiscard]] double waste(std::size_t row, NodeId node, std::size_t t) const {
    return under_[row][node.index() * tables_.tensor_degrees.size() + t] - share_[row][node.index()];
  }

 private:
  static constexpr double kReuse = 1e-4;
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Step {
    std::uint32_t before;
    NodeId added;
  };

  void tabulate_nodes() {
    tabulate_edges();
    mix_.assign(sums_.size(), 0);
    share_.assign(sums_.size(), {});
    under_.assign(sums_.size(), {});
    std::vector<double> share, under;
    for (std::size_t row = 0; row < sums_.size(); ++row) {
      double best = -1;
      for (const double mix : {1.0, 0.9, 0.75, 0.6, 0.45, 0.3, 0.15, 0.0}) {
        const double all = shares(sums_[row], mix, share, under);
        if (all <= best) continue;
        best = all;
        mix_[row] = mix;
        share_[row] = share;
        under_[row] = under;
      }
    }
  }

  /// What the devices of earlier stages have to send and take back if a node joins the tail: for its incoming edges, no
  /// more for its outgoing ones.
  void tabulate_edges() {
    double cost = kNever;  // device-seconds a byte
    for (std::size_t d = 0; d < tables_.replicas.size(); ++d)
      cost = std::min(cost, tables_.replicas[d] * tables_.border_cost[d]);
    crossing_.assign(tables_.graph.node_count(), 0);
    for (const NodeId node : tables_.graph.nodes()) {
      const auto edges = tables_.graph.out_edges(node);
      for (std::size_t e = 0; e < edges.size(); ++e) {
        double bytes = kNever;
        for (std::size_t t = 0; t < tables_.tensor_degrees.size(); ++t) {
          for (const NodeVariant& v : tables_.variants[node.index()][t])
            bytes = std::min(bytes, tables_.tensor_degrees[t] * v.out[e]);
        }
        crossing_[tables_.graph.target(edges[e]).index()] += bytes * cost / limit_;
        crossing_[node.index()] -= bytes * cost / limit_;
      }
    }
  }

  double shares(int sum, double mix, std::vector<double>& share, std::vector<double>& under) const {
    const std::size_t degrees = tables_.tensor_degrees.size();
    share.assign(tables_.graph.node_count(), kNever);
    under.assign(share.size() * degrees, kNever);
    double all = 0;
    for (std::size_t n = 0; n < share.size(); ++n) {
      for (std::size_t t = 0; t < degrees; ++t) {
        for (const NodeVariant& v : tables_.variants[n][t])
          under[n * degrees + t] = std::min(under[n * degrees + t], share_of(v, tables_.tensor_degrees[t], sum, mix));
        share[n] = std::min(share[n], under[n * degrees + t]);
      }
      share[n] = std::min(share[n], 1e9);  // no degree is fast enough: no plan
      all += share[n];
    }
    return all;
  }

  [[nodiscard]] double share_of(const NodeVariant& v, int degree, int sum, double mix) const {
    double busy = kNever, held = kNever;
    for (std::size_t d = 0; d < tables_.replicas.size(); ++d) {
      const double spent = v.parameters * tables_.parameter_cost[d], left = limit_ - spent;
      if (v.work * tables_.work_share[d] > left) continue;
      const double replicas = tables_.replicas[d];
      if (v.work > 0) busy = std::min(busy, replicas * v.work * tables_.work_share[d] / left);
      if (held == kNever) held = (v.bytes_in_flight * (sum + replicas) + v.bytes * replicas) / tables_.memory;
    }
    if (held == kNever) return kNever;
    return degree * (mix * (v.work > 0 ? busy : 0) + (1 - mix) * held);
  }

  const VariantTables& tables_;
  const DownsetLattice& tails_;
  double limit_ = 0;
  std::vector<int> sums_;             // ascending from 0
  std::vector<std::uint8_t> row_of_;  // by sum
  std::vector<Step> reached_by_;      // by tail
  std::vector<double> mix_;           // by row
  std::vector<double> crossing_;      // by node that joins a tail
  std::vector<std::vector<double>> share_, under_;  // [row][node], [row][node and tensor degree]
  std::vector<float> rest_;                         // [row][tail]
};

}  // namespace autopar::detail
