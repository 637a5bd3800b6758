#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <autopar/bottleneck/tables.hpp>
#include <autopar/graph/algorithms/downsets.hpp>

namespace autopar::detail {

/// A lower bound on the devices for all nodes outside a tail. No stage may take longer than a limit T, and the stages
/// of the tail have a sum s of data degrees. The bound is a sum over nodes, tabulated by tail.
///
/// Why it holds, for a stage with d replicas and tensor degree t, so on t * d devices:
/// - Time: work and gradient sums take at most T. So t * d * work * work_share[d] / (T - parameters *
///   parameter_cost[d]), summed over its nodes, is at most t * d. Crossing edges add t * d * bytes * border_cost[d] /
///   T.
/// - Memory M of one device: with y micro-batches in flight, bytes_in_flight * y + bytes <= M. So for any price p >= 0
///   the time sum plus p * (these bytes - M) is at most t * d. Each stage's credit p * M is paid back by its borders.
///   They are nested tails, one of each size. Some node behind a border has all its predecessors in front of it, some
///   node in front has all its successors behind. So a border costs at least the edges of such a pair. (Not the whole
///   cut: an edge over many borders is paid once.)
/// - Memory of all devices: y * d >= s + d. So t * (bytes_in_flight * (s + d) + bytes * d) / M <= t * d.
///
/// Any mean of the last bound with the others holds, too. Each node chooses tensor degree and variant for itself; the d
/// of its stage is at least what the node alone needs.
/// @source Lagrangian relaxation of the stage's knapsack: Geoffrion, Math. Programming Study 2, 1974
class RestDevices {
 public:
  RestDevices(const VariantTables& tables, const DownsetLattice& tails) : tables_(tables), tails_(tails) {
    const int most = std::min(tables.most_replicas, tables.devices);
    for (int sum = 0; sum <= std::min(most, kMostSum); sum = sum < 4 ? sum + 1 : sum + sum / 4) sums_.push_back(sum);
    row_of_.resize(static_cast<std::size_t>(std::min(most, kMostSum)) + 1);
    for (std::size_t sum = 0, row = 0; sum < row_of_.size(); ++sum) {
      while (row + 1 < sums_.size() && static_cast<std::size_t>(sums_[row + 1]) <= sum) ++row;
      row_of_[sum] = static_cast<std::uint8_t>(row);
    }
    reached_by_.resize(tails.size());
    for (std::size_t i = tails.size(); i-- > 0;) {
      for (const auto& cover : tails.covers(DownsetId::of(i)))
        reached_by_[cover.result.index()] = {static_cast<std::uint32_t>(i), cover.added};
    }
    tabulate_cuts();
  }

  /// Fills the table for a limit, or keeps a table made for a slightly larger limit. @cost O(tails * rows)
  void prepare(double limit) {
    if (limit <= limit_ && limit > limit_ * (1 - kReuse)) return;
    limit_ = limit;
    tabulate_ways();
    rows_.resize(sums_.size());
    const bool far =
        limit < chosen_for_ * 0.97 || limit > chosen_for_ * 1.03;  // the old mix and price remain good for a while
    if (far) chosen_for_ = limit;
    for (std::size_t row = 0; row < rows_.size(); ++row) fill_row(rows_[row], sums_[row], far);
    tabulate_tails();
  }

  /// The row for a sum of data degrees, rounded down.
  [[nodiscard]] std::size_t row_of(int sum) const {
    return row_of_[std::min(row_of_.size() - 1, static_cast<std::size_t>(sum))];
  }
  [[nodiscard]] float in_row(std::size_t row, DownsetId tail) const {
    return rest_[row * tails_.size() + tail.index()];
  }
  [[nodiscard]] float at(DownsetId tail, int sum) const { return in_row(row_of(sum), tail); }

  /// Devices that a node needs beyond its share of the bound if its stage has the t-th tensor degree. Never negative;
  /// adds up over nodes.
  [[nodiscard]] double waste(std::size_t row, NodeId node, std::size_t t) const {
    return rows_[row].under[node.index() * tables_.tensor_degrees.size() + t] - rows_[row].share[node.index()];
  }

 private:
  static constexpr int kMostSum = 1 << 16;  // larger sums are rounded down to it
  static constexpr double kReuse = 1e-4;
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Step {
    std::uint32_t before;
    NodeId added;
  };
  /// One variant of a node under one tensor degree, at the current limit.
  struct Way {
    double busy = kNever;  ///< devices for its time
    double replicas = 0;   ///< least data degree that is fast enough
    double in_flight = 0, bytes = 0;
    double degree = 1;
    std::size_t t = 0;
  };
  struct Row {
    double mix = 1, price = 0;         ///< weight of time against memory of all devices; devices per byte of a stage
    double all = -1;                   ///< bound for the whole graph
    std::vector<double> share, under;  ///< [node], [node and tensor degree]
  };

  /// In device-seconds: the cost that a node adds to the edges into a tail that it joins. And a lower bound on the cost
  /// of each border.
  void tabulate_cuts() {
    double cost = kNever;
    for (std::size_t d = 0; d < tables_.replicas.size(); ++d)
      cost = std::min(cost, tables_.replicas[d] * tables_.border_cost[d]);
    const std::size_t nodes = tables_.graph.node_count();
    joins_.assign(nodes, 0);
    std::vector<double> sends(nodes, 0), takes(nodes, 0);
    for (const EdgeId edge : tables_.graph.edges()) {
      const NodeId from = tables_.graph.source(edge), to = tables_.graph.target(edge);
      const double sent = cost * least_bytes(from, edge, false);
      joins_[to.index()] += sent;
      joins_[from.index()] -= sent;
      sends[from.index()] += sent;
      takes[to.index()] += cost * least_bytes(to, edge, true);
    }
    tabulate_borders(sends, takes);
  }
  void tabulate_borders(const std::vector<double>& sends, const std::vector<double>& takes) {
    sent_.assign(tails_.size(), kNever);
    std::vector<double> taken(tails_.size(), kNever);
    for (std::size_t i = 0; i < tails_.size(); ++i) {
      for (const auto& cover : tails_.covers(DownsetId::of(i))) {
        sent_[i] = std::min(sent_[i], sends[cover.added.index()]);
        taken[cover.result.index()] = std::min(taken[cover.result.index()], takes[cover.added.index()]);
      }
    }
    sent_.front() = sent_.back() = 0;  // no border
    cheapest_border_.assign(tables_.graph.node_count() + 1, kNever);
    cheapest_taken_ = cheapest_border_;
    for (std::size_t i = 1; i + 1 < tails_.size(); ++i) {
      const std::size_t size = tails_.cardinality(DownsetId::of(i));
      cheapest_border_[size] = std::min(cheapest_border_[size], (sent_[i] + taken[i]) * (1 - 1e-9));
      cheapest_taken_[size] = std::min(cheapest_taken_[size], taken[i] * (1 - 1e-9));
    }
  }
  [[nodiscard]] double least_bytes(NodeId node, EdgeId edge, bool incoming) const {
    const auto edges = incoming ? tables_.graph.in_edges(node) : tables_.graph.out_edges(node);
    const auto e = static_cast<std::size_t>(std::find(edges.begin(), edges.end(), edge) - edges.begin());
    double least = kNever;
    for (std::size_t t = 0; t < tables_.tensor_degrees.size(); ++t) {
      for (const NodeVariant& v : tables_.variants[node.index()][t])
        least = std::min(least, tables_.tensor_degrees[t] * (incoming ? v.in : v.out)[e]);
    }
    return least;
  }

  void tabulate_ways() {
    ways_.assign(tables_.graph.node_count(), {});
    for (std::size_t n = 0; n < ways_.size(); ++n) {
      for (std::size_t t = 0; t < tables_.tensor_degrees.size(); ++t) {
        for (const NodeVariant& v : tables_.variants[n][t]) {
          const Way way = way_of(v, t);
          if (way.busy < kNever) ways_[n].push_back(way);
        }
      }
    }
  }
  [[nodiscard]] Way way_of(const NodeVariant& v, std::size_t t) const {
    Way way{.in_flight = v.bytes_in_flight, .bytes = v.bytes, .t = t};
    way.degree = tables_.tensor_degrees[t];
    for (std::size_t d = 0; d < tables_.replicas.size(); ++d) {
      const double left = limit_ - v.parameters * tables_.parameter_cost[d];
      if (v.work * tables_.work_share[d] > left) continue;
      const double replicas = tables_.replicas[d];
      if (way.busy == kNever) way.replicas = replicas;
      way.busy = std::min(way.busy, v.work > 0 ? way.degree * replicas * v.work * tables_.work_share[d] / left : 0);
    }
    return way;
  }

  /// @param choose  whether to look for the mean and the price with the best bound for the whole graph
  void fill_row(Row& best, int sum, bool choose) const {
    std::vector<double> waiting;  // least micro-batches in flight, by tensor degree
    for (const int degree : tables_.tensor_degrees) {
      const int most = std::min(tables_.most_replicas - sum, (tables_.devices - sum) / degree);
      waiting.push_back(most < 1 ? sum + 1 : 1 + (sum + most - 1) / most);
    }
    std::vector<std::vector<double>> held(ways_.size());  // share of all memory, by node and way
    for (std::size_t n = 0; n < ways_.size(); ++n) {
      for (const Way& way : ways_[n]) {
        const double replicas = least_replicas(way, sum);
        held[n].push_back(way.degree * (way.in_flight * (sum + replicas) + way.bytes * replicas) / tables_.memory);
      }
    }
    if (!choose) {
      fill(best, held, waiting);
      return;
    }
    best.all = -1;
    Row row;
    const std::vector<double> prices = sensible_prices();
    for (const double mix : {1.0, 0.9, 0.75, 0.6, 0.45, 0.3, 0.15, 0.0}) {
      for (const double price : prices) {
        if (mix == 0 && price > 0) continue;
        row.mix = mix;
        row.price = price;
        fill(row, held, waiting);
        if (row.all > best.all) std::swap(best, row);
      }
    }
  }

  /// Prices to try. A credit is paid back where a cut costs more than it, so prices near the costs of cuts are best.
  [[nodiscard]] std::vector<double> sensible_prices() const {
    std::vector<double> cuts;
    for (std::size_t size = 1; size + 1 < cheapest_border_.size(); ++size)
      cuts.push_back(cheapest_border_[size] / limit_);
    std::sort(cuts.begin(), cuts.end());
    std::vector<double> prices{0};
    for (const double at : {0.1, 0.3, 0.5, 0.7, 0.9}) {
      if (!cuts.empty())
        prices.push_back(cuts[static_cast<std::size_t>(at * static_cast<double>(cuts.size()))] / tables_.memory);
    }
    if (!cuts.empty()) {
      prices.push_back(2 * cuts.back() / tables_.memory);
      prices.push_back(4 * cuts.back() / tables_.memory);
    }
    return prices;
  }

  void fill(Row& row, const std::vector<std::vector<double>>& held, const std::vector<double>& waiting) const {
    const std::size_t degrees = tables_.tensor_degrees.size();
    row.share.assign(ways_.size(), 1e9);  // if no degree is fast enough: no plan
    row.under.assign(ways_.size() * degrees, kNever);
    row.all = owed(row, 0, cheapest_border_);
    for (std::size_t n = 0; n < ways_.size(); ++n) {
      for (std::size_t w = 0; w < ways_[n].size(); ++w) {
        if (held[n][w] == kNever) continue;
        const Way& way = ways_[n][w];
        const double priced = row.price * (way.in_flight * waiting[way.t] + way.bytes);
        double& under = row.under[n * degrees + way.t];
        under = std::min(under, row.mix * (way.busy + priced) + (1 - row.mix) * held[n][w]);
        row.share[n] = std::min(row.share[n], under);
      }
      row.all += row.share[n];
    }
  }

  /// The least data degree at which the node alone is fast enough and fits; infinite if there is none.
  [[nodiscard]] double least_replicas(const Way& way, int sum) const {
    if (way.bytes > tables_.memory) return kNever;
    for (const int replicas : tables_.replicas) {
      if (replicas < way.replicas) continue;
      const int waiting = 1 + (sum + replicas - 1) / replicas;
      if (way.in_flight * waiting + way.bytes <= tables_.memory) return replicas;
    }
    return kNever;
  }

  /// Minus the credits that the stages in front of a tail may have left. @param borders  least cost of a border of each
  /// size
  [[nodiscard]] double owed(const Row& row, std::size_t size, const std::vector<double>& borders) const {
    const double credit = row.price * tables_.memory;
    double sum = -credit;
    for (std::size_t later = size + 1; later + 1 < borders.size(); ++later)
      sum -= std::max(0.0, credit - borders[later] / limit_);
    return row.mix * sum;
  }

  void tabulate_tails() {
    rest_.resize(tails_.size() * sums_.size());
    // The tail's own border costs all edges into it, or the edges of one node. Only with the latter may further borders
    // be charged for what they send.
    std::vector<double> exact(tails_.size()), by_edges(cheapest_border_.size()), by_nodes(cheapest_border_.size());
    std::vector<double> joined(tails_.size(), 0);
    for (std::size_t i = 1; i < joined.size(); ++i)
      joined[i] = joined[reached_by_[i].before] + joins_[reached_by_[i].added.index()];
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      const Row& row = rows_[r];
      for (std::size_t size = 0; size < by_edges.size(); ++size) {
        by_edges[size] = owed(row, size, cheapest_taken_);
        by_nodes[size] = owed(row, size, cheapest_border_);
      }
      exact[0] = 0;
      for (const double share : row.share) exact[0] += share;
      for (std::size_t i = 0; i < exact.size(); ++i) {
        if (i > 0) exact[i] = exact[reached_by_[i].before] - row.share[reached_by_[i].added.index()];
        const std::size_t size = tails_.cardinality(DownsetId::of(i));
        const double border =
            std::max(row.mix * joined[i] / limit_ + by_edges[size], row.mix * sent_[i] / limit_ + by_nodes[size]);
        rest_[r * exact.size() + i] = static_cast<float>(std::max(0.0, (exact[i] + border) * (1 - 1e-6) - 1e-6));
      }
    }
  }

  const VariantTables& tables_;
  const DownsetLattice& tails_;
  std::vector<int> sums_;                                 // ascending from 0, by row
  std::vector<std::uint8_t> row_of_;                      // by sum
  std::vector<Step> reached_by_;                          // by tail
  std::vector<double> joins_, sent_;                      // device-seconds, by node, by tail
  std::vector<double> cheapest_border_, cheapest_taken_;  // device-seconds, by size of a tail

  double limit_ = 0, chosen_for_ = 0;
  std::vector<std::vector<Way>> ways_;  // by node
  std::vector<Row> rows_;
  std::vector<float> rest_;  // [row][tail]
};

}  // namespace autopar::detail
