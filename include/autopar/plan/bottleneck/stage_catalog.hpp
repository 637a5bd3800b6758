#pragma once

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/plan/bottleneck/least_needs.hpp>
#include <autopar/plan/bottleneck/tables.hpp>

namespace autopar::detail {

/// The convex sets of nodes that may be stages under a limit T, each once, whatever tail they stand in front of.
///
/// A set is its nodes from the last one in topological order to the first: what it has without its first node is convex
/// too, so that the sets form a tree. With each goes, under each tensor degree, the smallest data degree that is fast
/// enough with the fastest variants. Given prices of nodes, sets that take many more devices than their nodes are worth
/// may be left out.
///
/// Refers to its arguments, which must outlive it.
class StageCatalog {
 public:
  static constexpr std::size_t kMostNodes = 128;
  static constexpr std::uint8_t kNever = 255;
  using Nodes = std::bitset<kMostNodes>;

  struct Set {
    std::uint32_t parent;  ///< without `node`
    std::uint8_t node;     ///< first in topological order
  };

  /// @pre at most `kMostNodes` nodes, fewer than 255 data degrees
  StageCatalog(const VariantTables& tables, const LeastNeeds& least)
      : tables_(tables), least_(least), order_(topological_order(tables.graph)),
        degrees_(tables.tensor_degrees.size()) {
    std::reverse(order_.begin(), order_.end());
    const std::size_t nodes = order_.size();
    before_.resize(nodes);
    after_.resize(nodes);
    next_.resize(nodes);
    for (const NodeId node : order_) {
      for (const NodeId other : tables.graph.successors(node)) {
        next_[node.index()].set(other.index());
        after_[node.index()] |= after_[other.index()];
        after_[node.index()].set(other.index());
      }
    }
    for (std::size_t i = 0; i < nodes; ++i) {
      for (std::size_t j = 0; j < nodes; ++j) {
        if (after_[i][j]) before_[j].set(i);
      }
    }
    tabulate_edges();
    frames_.resize((nodes + 1) * degrees_);
  }

  /// @param prices  devices that a node is worth
  /// @param margin  sets that take so many devices more than their nodes are worth may be missing
  /// @param most    sets
  /// @return whether there are no more sets than that
  [[nodiscard]] bool build(double limit, const std::vector<double>& prices, double margin, std::size_t most) {
    limit_ = limit;
    margin_ = margin;
    prices_ = prices;
    most_ = most;
    sets_.assign(1, {0, 0});
    first_degree_.assign(degrees_, kNever);
    border_.clear();
    for (const int degree : tables_.tensor_degrees)
      border_.push_back(least_.border_share() * degree / limit);
    tabulate_gains();
    std::fill_n(frames_.begin(), degrees_, Sums{});
    return grow(0, 0, 0, Nodes{}, Nodes{});
  }

  [[nodiscard]] std::size_t size() const { return sets_.size(); }
  [[nodiscard]] const Set& operator[](std::size_t set) const { return sets_[set]; }  ///< 0 is the empty set
  /// Position of the least data degree, or `kNever`.
  [[nodiscard]] std::size_t first_degree(std::size_t set, std::size_t t) const {
    return first_degree_[set * degrees_ + t];
  }
  [[nodiscard]] double limit() const { return limit_; }
  [[nodiscard]] double margin() const { return margin_; }
  [[nodiscard]] const std::vector<double>& prices() const { return prices_; }
  /// Nodes that a node's values go to.
  [[nodiscard]] const Nodes& successors(std::size_t node) const { return next_[node]; }
  /// Nodes in the order in which sets list them.
  [[nodiscard]] const std::vector<NodeId>& order() const { return order_; }

 private:
  struct Sums {
    double work = 0, border = 0, parameters = 0, bytes = 0;
    double lost = 0;    ///< devices for work and for edges that will cross, at least, minus what the nodes are worth
    double worth = 0;
    std::size_t d = 0;  ///< at least, for the work alone
    bool grows = true;
  };
  struct Out {
    std::size_t to;
    double sent, taken;  ///< bytes that the ends pay for if the edge crosses a border
  };

  void tabulate_edges() {
    edges_.resize(order_.size() * degrees_);
    for (const EdgeId edge : tables_.graph.edges()) {
      const NodeId from = tables_.graph.source(edge), to = tables_.graph.target(edge);
      const auto outs = tables_.graph.out_edges(from), ins = tables_.graph.in_edges(to);
      const auto out = static_cast<std::size_t>(std::find(outs.begin(), outs.end(), edge) - outs.begin());
      const auto in = static_cast<std::size_t>(std::find(ins.begin(), ins.end(), edge) - ins.begin());
      for (std::size_t t = 0; t < degrees_; ++t) {
        const auto& source = least_.at(from, t).out;
        const auto& target = least_.at(to, t).in;
        edges_[from.index() * degrees_ + t].push_back(
            {to.index(), source.empty() ? 0 : source[out], target.empty() ? 0 : target[in]});
      }
    }
  }

  /// What the nodes from a position on may bring in: at most all that they are worth more than they take.
  void tabulate_gains() {
    const std::size_t nodes = order_.size();
    under_.assign(nodes * degrees_, 0);
    gain_.assign((nodes + 1) * degrees_, 0);
    rate_.assign((nodes + 1) * degrees_, 0);
    for (std::size_t i = nodes; i-- > 0;) {
      const std::size_t n = order_[i].index();
      for (std::size_t t = 0; t < degrees_; ++t) {
        const double bytes = least_.held(0, order_[i], t);
        under_[n * degrees_ + t] = least_.at(order_[i], t).work * least_.work_share() * tables_.tensor_degrees[t] / limit_;
        const double gain = bytes <= tables_.memory ? std::max(0.0, prices_[n] - under_[n * degrees_ + t]) : 0;
        gain_[i * degrees_ + t] = gain_[(i + 1) * degrees_ + t] + gain;
        rate_[i * degrees_ + t] =
            std::max(rate_[(i + 1) * degrees_ + t], gain == 0 ? 0 : bytes > 0 ? gain / bytes : 1e30);
      }
    }
  }

  /// @param above  nodes from which a path leads into the set
  [[nodiscard]] bool grow(std::size_t from, std::size_t depth, std::uint32_t parent, const Nodes& set, const Nodes& above) {
    for (std::size_t i = from; i < order_.size(); ++i) {
      const std::size_t node = order_[i].index();
      if ((after_[node] & above & ~set).none()) {  // no path leaves the set and returns
        if (sets_.size() >= most_) return false;
        const std::size_t row = first_degree_.size();
        first_degree_.resize(row + degrees_, kNever);
        if (add(i, depth, set, &first_degree_[row])) {
          const auto id = static_cast<std::uint32_t>(sets_.size());
          sets_.push_back({parent, static_cast<std::uint8_t>(node)});
          Nodes with = set;
          with.set(node);
          if (!grow(i + 1, depth + 1, id, with, above | before_[node])) return false;
        } else {
          first_degree_.resize(row);
        }
      }
      if ((next_[node] & set).any()) leave_out(node, depth, set);
    }
    return true;
  }

  /// Edges from a node that stays outside into the set cross its border.
  void leave_out(std::size_t node, std::size_t depth, const Nodes& set) {
    for (std::size_t t = 0; t < degrees_; ++t) {
      Sums& sums = frames_[depth * degrees_ + t];
      for (const Out& edge : edges_[node * degrees_ + t]) {
        if (set[edge.to]) sums.lost += edge.taken * border_[t];
      }
    }
  }

  /// @return whether a set with the node may be a stage, or a larger one
  [[nodiscard]] bool add(std::size_t i, std::size_t depth, const Nodes& set, std::uint8_t* first) {
    bool possible = false;
    const std::size_t node = order_[i].index();
    for (std::size_t t = 0; t < degrees_; ++t) {
      Sums& sums = frames_[(depth + 1) * degrees_ + t];
      sums = frames_[depth * degrees_ + t];
      if (!sums.grows) continue;
      const LeastNeeds::Node& least = least_.at(order_[i], t);
      sums.work += least.work;
      sums.parameters += least.parameters;
      sums.bytes += least_.held(0, order_[i], t);
      sums.worth += prices_[node];
      sums.lost += under_[node * degrees_ + t] - prices_[node];
      sums.border += least.all_in;
      for (const Out& edge : edges_[node * degrees_ + t]) {
        sums.border += set[edge.to] ? -edge.taken : edge.sent;
        if (!set[edge.to]) sums.lost += edge.sent * border_[t];
      }
      while (sums.d < tables_.replicas.size() && sums.work * tables_.work_share[sums.d] > limit_)
        ++sums.d;
      const double gain = std::min(gain_[(i + 1) * degrees_ + t],
                                   (tables_.memory - sums.bytes) * rate_[(i + 1) * degrees_ + t]);
      sums.grows = sums.bytes <= tables_.memory && has(sums.d, t) && sums.lost - gain <= margin_ * (1 + 1e-9) + 1e-9;
      if (!sums.grows) continue;
      possible = true;
      first[t] = first_of(sums, t);
    }
    return possible;
  }
  [[nodiscard]] std::uint8_t first_of(const Sums& sums, std::size_t t) const {
    for (std::size_t d = sums.d; has(d, t); ++d) {
      if (sums.work * tables_.work_share[d] + sums.border * tables_.border_cost[d] +
              sums.parameters * tables_.parameter_cost[d] > limit_)
        continue;
      const double devices = static_cast<double>(tables_.replicas[d]) * tables_.tensor_degrees[t];
      return devices - sums.worth <= margin_ ? static_cast<std::uint8_t>(d) : kNever;
    }
    return kNever;
  }
  [[nodiscard]] bool has(std::size_t d, std::size_t t) const {
    return d < tables_.replicas.size() &&
           static_cast<std::int64_t>(tables_.replicas[d]) * tables_.tensor_degrees[t] <= tables_.devices;
  }

  const VariantTables& tables_;
  const LeastNeeds& least_;
  std::vector<NodeId> order_;
  std::size_t degrees_;
  std::vector<Nodes> before_, after_, next_;
  std::vector<std::vector<Out>> edges_;  // [node][tensor degree]

  double limit_ = 0, margin_ = 0;
  std::size_t most_ = 0;
  std::vector<double> prices_;
  std::vector<double> under_;         // devices for the work, by node and tensor degree
  std::vector<double> gain_, rate_;   // of the nodes from a position on, by tensor degree: devices, devices a byte
  std::vector<double> border_;        // devices a crossing byte, by tensor degree
  std::vector<Sums> frames_;           // [depth][tensor degree]
  std::vector<Set> sets_;
  std::vector<std::uint8_t> first_degree_;  // [set][tensor degree]
};

}  // namespace autopar::detail
