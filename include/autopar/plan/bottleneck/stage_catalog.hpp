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
    devices_.resize(degrees_ * tables.replicas.size());
    for (std::size_t t = 0; t < degrees_; ++t) {
      for (std::size_t d = 0; d < tables.replicas.size(); ++d)
        devices_[t * tables.replicas.size() + d] = static_cast<double>(tables.replicas[d]) * tables.tensor_degrees[t];
    }
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
    fewest_.assign(1, std::numeric_limits<float>::infinity());
    first_degree_.assign(degrees_, kNever);
    border_.clear();
    for (const int degree : tables_.tensor_degrees)
      border_.push_back(least_.border_share() * degree / limit);
    tabulate_items();
    std::fill_n(frames_.begin(), degrees_, Sums{});
    return grow(0, 0, 0, Nodes{}, Nodes{});
  }

  /// The sets stay: a smaller limit leaves none out that is a stage. Their least data degrees may be too small then.
  void tighten(double limit) { limit_ = limit; }

  [[nodiscard]] std::size_t size() const { return sets_.size(); }
  [[nodiscard]] const Set& operator[](std::size_t set) const { return sets_[set]; }  ///< 0 is the empty set
  /// Fewest devices of a set as a stage; infinite if it is none.
  [[nodiscard]] float devices(std::size_t set) const { return fewest_[set]; }
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
    for (std::size_t n = 0; n < order_.size(); ++n) {
      for (std::size_t t = 0; t < degrees_; ++t) {
        first_edge_.push_back(static_cast<std::uint32_t>(edges_.size()));
        std::size_t out = 0;
        for (const EdgeId edge : tables_.graph.out_edges(NodeId::of(n))) {
          const NodeId to = tables_.graph.target(edge);
          const auto ins = tables_.graph.in_edges(to);
          const auto in = static_cast<std::size_t>(std::find(ins.begin(), ins.end(), edge) - ins.begin());
          const auto& source = least_.at(NodeId::of(n), t).out;
          const auto& target = least_.at(to, t).in;
          edges_.push_back({to.index(), source.empty() ? 0 : source[out], target.empty() ? 0 : target[in]});
          ++out;
        }
      }
    }
    first_edge_.push_back(static_cast<std::uint32_t>(edges_.size()));
  }

  /// Of a node under a tensor degree, and what the nodes after it in the order may bring in: at most all that they are
  /// worth more than they take, and at most the best of them a byte.
  struct Item {
    double work = 0, parameters = 0, bytes = 0, border = 0;
    double lost = 0;
    double gain = 0, rate = 0;  ///< devices, devices a byte
    std::uint32_t first_edge = 0, last_edge = 0;
  };
  void tabulate_items() {
    const std::size_t nodes = order_.size();
    items_.assign(nodes * degrees_, {});
    for (std::size_t t = 0; t < degrees_; ++t) {
      double gain = 0, rate = 0;
      for (std::size_t i = nodes; i-- > 0;) {
        const std::size_t n = order_[i].index();
        const LeastNeeds::Node& least = least_.at(order_[i], t);
        Item& item = items_[i * degrees_ + t];
        item.work = least.work;
        item.parameters = least.parameters;
        item.bytes = least_.held(0, order_[i], t);
        item.border = least.all_in;
        item.lost = least.work * least_.work_share() * tables_.tensor_degrees[t] / limit_ - prices_[n];
        item.gain = gain;
        item.rate = rate;
        item.first_edge = first_edge_[n * degrees_ + t];
        item.last_edge = first_edge_[n * degrees_ + t + 1];
        const double more = item.bytes <= tables_.memory ? std::max(0.0, -item.lost) : 0;
        gain += more;
        rate = std::max(rate, more == 0 ? 0 : item.bytes > 0 ? more / item.bytes : 1e30);
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
          fewest_.push_back(fewest_of(row));
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
      for (std::size_t e = first_edge_[node * degrees_ + t]; e < first_edge_[node * degrees_ + t + 1]; ++e) {
        if (set[edges_[e].to]) sums.lost += edges_[e].taken * border_[t];
      }
    }
  }
  [[nodiscard]] float fewest_of(std::size_t row) const {
    double fewest = std::numeric_limits<double>::infinity();
    for (std::size_t t = 0; t < degrees_; ++t) {
      const std::size_t d = first_degree_[row + t];
      if (d != kNever) fewest = std::min(fewest, devices_[t * tables_.replicas.size() + d]);
    }
    return static_cast<float>(fewest);
  }

  /// @return whether a set with the node may be a stage, or a larger one
  [[nodiscard]] bool add(std::size_t i, std::size_t depth, const Nodes& set, std::uint8_t* first) {
    bool possible = false;
    for (std::size_t t = 0; t < degrees_; ++t) {
      const Sums& before = frames_[depth * degrees_ + t];
      Sums& sums = frames_[(depth + 1) * degrees_ + t];
      sums.grows = false;
      if (!before.grows) continue;
      const Item& item = items_[i * degrees_ + t];
      sums.bytes = before.bytes + item.bytes;
      if (sums.bytes > tables_.memory) continue;
      sums.lost = before.lost + item.lost;
      sums.border = before.border + item.border;
      for (std::size_t e = item.first_edge; e < item.last_edge; ++e) {
        if (set[edges_[e].to]) {
          sums.border -= edges_[e].taken;
        } else {
          sums.border += edges_[e].sent;
          sums.lost += edges_[e].sent * border_[t];
        }
      }
      const double gain = std::min(item.gain, (tables_.memory - sums.bytes) * item.rate);
      if (sums.lost - gain > margin_ * (1 + 1e-9) + 1e-9) continue;
      sums.work = before.work + item.work;
      sums.d = before.d;
      while (sums.d < tables_.replicas.size() && sums.work * tables_.work_share[sums.d] > limit_)
        ++sums.d;
      if (!has(sums.d, t)) continue;
      sums.parameters = before.parameters + item.parameters;
      sums.worth = before.worth + prices_[order_[i].index()];
      sums.grows = possible = true;
      first[t] = first_of(sums, t);
    }
    return possible;
  }
  [[nodiscard]] std::uint8_t first_of(const Sums& sums, std::size_t t) const {
    for (std::size_t d = sums.d; has(d, t); ++d) {
      if (sums.work * tables_.work_share[d] + sums.border * tables_.border_cost[d] +
              sums.parameters * tables_.parameter_cost[d] > limit_)
        continue;
      const double devices = devices_[t * tables_.replicas.size() + d];
      return devices - sums.worth <= margin_ ? static_cast<std::uint8_t>(d) : kNever;
    }
    return kNever;
  }
  [[nodiscard]] bool has(std::size_t d, std::size_t t) const {
    return d < tables_.replicas.size() && devices_[t * tables_.replicas.size() + d] <= tables_.devices;
  }

  const VariantTables& tables_;
  const LeastNeeds& least_;
  std::vector<NodeId> order_;
  std::size_t degrees_;
  std::vector<Nodes> before_, after_, next_;
  std::vector<Out> edges_;
  std::vector<std::uint32_t> first_edge_;  // in edges_, by node and tensor degree
  std::vector<double> devices_;            // by tensor degree and data degree

  double limit_ = 0, margin_ = 0;
  std::size_t most_ = 0;
  std::vector<double> prices_;
  std::vector<Item> items_;     // [position][tensor degree]
  std::vector<double> border_;  // devices a crossing byte, by tensor degree
  std::vector<Sums> frames_;           // [depth][tensor degree]
  std::vector<Set> sets_;
  std::vector<float> fewest_;               // by set
  std::vector<std::uint8_t> first_degree_;  // [set][tensor degree]
};

}  // namespace autopar::detail
