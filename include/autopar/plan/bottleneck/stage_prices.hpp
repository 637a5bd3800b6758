#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <autopar/plan/bottleneck/stage_catalog.hpp>
#include <autopar/plan/bottleneck/tables.hpp>
#include <autopar/plan/bottleneck/variant_fit.hpp>

namespace autopar::detail {

/// A lower bound on the devices of any pipeline whose stages come from a catalogue, from a price for each node.
///
/// Each stage on c devices is paid c minus the prices of its nodes. The cheapest sequence of stages, each with the sum of
/// data degrees that those before it add up to, and whatever its nodes, costs no more than a pipeline, in which each
/// node's price is taken off once: prices + cheapest sequence is a bound, and so is what starts at a later sum for the
/// nodes that are left. The best prices make it the linear relaxation of covering the nodes by stages.
/// @source Held and Karp, The traveling-salesman problem and minimum spanning trees, Operations Research 18, 1970; as
///         bound on paths through states: Christofides, Mingozzi and Toth, Networks 11, 1981
///
/// Refers to its arguments, which must outlive it.
class StagePrices {
 public:
  StagePrices(const VariantTables& tables, const LeastNeeds& least, const StageCatalog& catalog)
      : tables_(tables), least_(least), catalog_(catalog), fit_(tables), degrees_(tables.tensor_degrees.size()),
        most_sum_(std::min(tables.most_replicas, tables.devices)), inside_(tables.graph.node_count(), 0) {
    columns_.resize(degrees_ * tables.replicas.size());
    for (std::size_t t = 0; t < degrees_; ++t) {
      for (std::size_t d = 0; d < tables.replicas.size(); ++d) {
        Column& column = columns_[t * tables.replicas.size() + d];
        column.t = t;
        column.d = d;
        column.replicas = tables.replicas[d];
        column.devices = static_cast<double>(column.replicas) * tables.tensor_degrees[t];
        if (column.devices > tables.devices || column.replicas > most_sum_) continue;
        column.most = in_flight(most_sum_ - column.replicas, column.replicas);
        order_.push_back(t * tables.replicas.size() + d);
      }
    }
  }

  /// To be called when the catalogue has changed.
  void reset() {
    first_reach_.assign(catalog_.size() * degrees_, -1);
    reach_.clear();
    seconds_.clear();
  }

  /// The bound, and how often the cheapest sequence has each node more or less than once.
  double evaluate(const std::vector<double>& prices, std::vector<double>& gradient) {
    prices_ = prices;
    collect();
    find_paths();
    const std::size_t nodes = prices.size();
    gradient.assign(nodes, 1);
    for (int sum = 0; step_[static_cast<std::size_t>(sum)] != kStop;) {
      if (step_[static_cast<std::size_t>(sum)] == kMissing) {
        for (std::size_t n = 0; n < nodes; ++n)
          gradient[n] -= missing_part_[n];
        ++sum;
        continue;
      }
      const Column& column = columns_[static_cast<std::size_t>(step_[static_cast<std::size_t>(sum)])];
      const auto y = static_cast<std::size_t>(in_flight(sum, column.replicas));
      for (std::size_t set = column.best[y].set; set != 0; set = catalog_[set].parent)
        gradient[catalog_[set].node] -= 1;
      sum += column.replicas;
    }
    double all = path_[0];
    for (const double price : prices)
      all += price;
    return all;
  }

  /// Of the last prices: what the cheapest sequence from a sum on adds (at most 0), and of all nodes of a set.
  [[nodiscard]] double path(int sum) const { return path_[static_cast<std::size_t>(std::min(sum, most_sum_))]; }
  [[nodiscard]] const std::vector<double>& prices() const { return prices_; }
  [[nodiscard]] double of(std::size_t set) const { return of_set_[set]; }
  [[nodiscard]] int most_sum() const { return most_sum_; }
  /// Devices that a stage costs at least more than it is worth if the catalogue does not have it.
  [[nodiscard]] double missing() const { return missing_; }

  /// Largest number of micro-batches in flight with which a set fits and is fast enough; 0 if there is none.
  /// @param d  position of a data degree from `first_degree` on
  [[nodiscard]] int reach(std::size_t set, std::size_t t, std::size_t d) {
    const std::size_t first = catalog_.first_degree(set, t);
    std::int64_t& row = first_reach_[set * degrees_ + t];
    if (row < 0) {
      row = static_cast<std::int64_t>(reach_.size());
      reach_.resize(reach_.size() + tables_.replicas.size() - first, kUnknown);
      seconds_.resize(reach_.size(), 0);
    }
    std::int32_t& known = reach_[static_cast<std::size_t>(row) + d - first];
    if (known == kUnknown)
      known = largest_in_flight(set, t, d, seconds_[static_cast<std::size_t>(row) + d - first]);
    return known;
  }
  /// Seconds of a set with its fastest variants. @pre `reach` was asked for it
  [[nodiscard]] float seconds(std::size_t set, std::size_t t, std::size_t d) const {
    const std::int64_t row = first_reach_[set * degrees_ + t];
    return seconds_[static_cast<std::size_t>(row) + d - catalog_.first_degree(set, t)];
  }

  /// States that were spent since the last call.
  [[nodiscard]] std::int64_t spent() { return std::exchange(spent_, 0); }

  [[nodiscard]] static int in_flight(int sum, int replicas) { return 1 + (sum + replicas - 1) / replicas; }

 private:
  static constexpr std::int32_t kUnknown = -1;
  static constexpr std::int64_t kReachStates = 10;
  static constexpr int kStop = -1, kMissing = -2;

  struct Best {
    double price = 0;
    std::uint32_t set = 0;
  };
  /// Stages under one tensor and one data degree.
  struct Column {
    std::size_t t = 0, d = 0;
    int replicas = 1, most = 0;
    double devices = 0;
    std::vector<Best> best{};  ///< sets worth most, by micro-batches in flight
    bool used = false;
  };

  /// For each column and number of micro-batches in flight the set that is worth most.
  void collect() {
    for (const std::size_t i : order_) {
      columns_[i].best.assign(static_cast<std::size_t>(columns_[i].most) + 1, {});
      columns_[i].used = false;
    }
    of_set_.resize(catalog_.size());
    spent_ += static_cast<std::int64_t>(catalog_.size() / 8);
    of_set_[0] = 0;
    for (std::size_t set = 1; set < catalog_.size(); ++set) {
      const double price = of_set_[set] = of_set_[catalog_[set].parent] + prices_[catalog_[set].node];
      if (price <= static_cast<double>(catalog_.devices(set))) continue;
      for (std::size_t t = 0; t < degrees_; ++t) {
        const std::size_t first = catalog_.first_degree(set, t);
        if (first == StageCatalog::kNever) continue;
        for (std::size_t d = first; d < tables_.replicas.size(); ++d) {
          Column& column = columns_[t * tables_.replicas.size() + d];
          if (column.devices >= price || column.most == 0) break;
          if (column.best.back().price >= price) continue;
          const int y = std::min(reach(set, t, d), column.most);
          if (column.best[static_cast<std::size_t>(y)].price >= price) continue;
          column.best[static_cast<std::size_t>(y)] = {price, static_cast<std::uint32_t>(set)};
          column.used = column.used || y > 0;
        }
      }
    }
    for (const std::size_t i : order_) {
      auto& best = columns_[i].best;
      for (std::size_t y = best.size() - 1; y-- > 0;) {
        if (best[y + 1].price > best[y].price) best[y] = best[y + 1];
      }
    }
    bound_missing();
  }

  void find_paths() {
    const auto sums = static_cast<std::size_t>(most_sum_) + 1;
    path_.assign(sums, 0);
    step_.assign(sums, kStop);
    used_.clear();
    for (const std::size_t i : order_) {
      if (columns_[i].used) used_.push_back(i);
    }
    spent_ += static_cast<std::int64_t>(sums * used_.size() / 16);
    for (std::size_t sum = sums; sum-- > 0;) {
      for (const std::size_t i : used_) {
        const Column& column = columns_[i];
        const std::size_t after = sum + static_cast<std::size_t>(column.replicas);
        if (after >= sums) continue;
        const auto y = static_cast<std::size_t>(in_flight(static_cast<int>(sum), column.replicas));
        const double costs = column.devices - column.best[y].price + path_[after];
        if (costs < path_[sum] && column.best[y].set != 0) {
          path_[sum] = costs;
          step_[sum] = static_cast<int>(i);
        }
      }
      if (missing_ < 0 && sum + 1 < sums && missing_ + path_[sum + 1] < path_[sum]) {
        path_[sum] = missing_ + path_[sum + 1];
        step_[sum] = kMissing;
      }
    }
  }

  /// Sets that the catalogue does not have take more devices than they were worth at its prices, by its margin. What they
  /// are worth more by now is bounded by the memory of one micro-batch.
  void bound_missing() {
    missing_ = std::numeric_limits<double>::infinity();
    missing_part_.assign(prices_.size(), 0);
    if (!std::isfinite(catalog_.margin())) return;
    struct Item {
      double above, bytes;
      std::size_t node;
    };
    std::vector<Item> items;
    for (std::size_t t = 0; t < degrees_; ++t) {
      items.clear();
      for (std::size_t n = 0; n < prices_.size(); ++n) {
        const double above = prices_[n] - catalog_.prices()[n], bytes = least_.held(0, NodeId::of(n), t);
        if (above > 0 && bytes <= tables_.memory) items.push_back({above, bytes, n});
      }
      std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
        const double x = a.above * b.bytes, y = b.above * a.bytes;
        return x != y ? x > y : a.node < b.node;
      });
      double left = tables_.memory, above = 0;
      std::vector<double> part(prices_.size(), 0);
      for (const Item& item : items) {
        const double share = item.bytes > left ? left / item.bytes : 1;
        part[item.node] = share;
        above += share * item.above;
        left -= share * item.bytes;
        if (left <= 0) break;
      }
      if (catalog_.margin() - above >= missing_) continue;
      missing_ = catalog_.margin() - above;
      missing_part_ = std::move(part);
    }
  }

  [[nodiscard]] int largest_in_flight(std::size_t set, std::size_t t, std::size_t d, float& seconds) {
    spent_ += kReachStates;
    for (const NodeId node : nodes_)
      inside_[node.index()] = 0;
    nodes_.clear();
    for (std::size_t at = set; at != 0; at = catalog_[at].parent) {
      nodes_.push_back(NodeId::of(catalog_[at].node));
      inside_[nodes_.back().index()] = 1;
    }
    double work = 0, border = 0, parameters = 0, held = 0, kept = 0, least_held = 0, least_kept = 0;
    for (const NodeId node : nodes_) {
      const LeastNeeds::Node& least = least_.at(node, t);
      work += least.work;
      parameters += least.parameters;
      held += least.in_flight;
      kept += least.bytes;
      least_held += least.least_in_flight;
      least_kept += least.least_bytes;
      std::size_t e = 0;
      for (const NodeId before : tables_.graph.predecessors(node)) {
        if (!inside_[before.index()]) border += least.in[e];
        ++e;
      }
      e = 0;
      for (const NodeId after : tables_.graph.successors(node)) {
        if (!inside_[after.index()]) border += least.out[e];
        ++e;
      }
    }
    const double took = work * tables_.work_share[d] + border * tables_.border_cost[d] +
                        parameters * tables_.parameter_cost[d];
    seconds = static_cast<float>(took);
    if (took > catalog_.limit()) return 0;
    const int most = in_flight(std::max(0, most_sum_ - tables_.replicas[d]), tables_.replicas[d]);
    const int fastest = least_.uniform() ? within(held, kept, most) : 0;
    const auto fits = [&](int y) {
      return least_.uniform()
                 ? fit_.fits_with({nodes_, inside_, t, d, y}, (catalog_.limit() - took) / tables_.work_share[d])
                 : fit_.fits_within({nodes_, inside_, t, d, y}, catalog_.limit());
    };
    int low = fastest, high = within(least_held, least_kept, most) + 1;
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return low;
  }
  /// Micro-batches in flight that fit, at most `most`.
  [[nodiscard]] int within(double held, double kept, int most) const {
    if (kept > tables_.memory) return 0;
    const double left = tables_.memory - kept;
    int y = held * most <= left ? most : static_cast<int>(left / held);
    while (y > 0 && held * y + kept > tables_.memory)  // the quotient was rounded
      --y;
    return y;
  }

  const VariantTables& tables_;
  const LeastNeeds& least_;
  const StageCatalog& catalog_;
  VariantFit fit_;
  std::size_t degrees_;
  int most_sum_;
  std::vector<double> prices_, of_set_, path_, missing_part_;
  double missing_ = 0;
  std::vector<int> step_;
  std::vector<Column> columns_;
  std::vector<std::size_t> order_, used_;  // columns that devices and sums allow; that are worth it
  std::vector<std::int64_t> first_reach_;  // [set][tensor degree]
  std::vector<std::int32_t> reach_;        // by data degree from the first one on
  std::vector<float> seconds_;             // the same
  std::vector<NodeId> nodes_;
  std::vector<char> inside_;
  std::int64_t spent_ = 0;
};

}  // namespace autopar::detail
