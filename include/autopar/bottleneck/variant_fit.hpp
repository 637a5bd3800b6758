#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <autopar/bottleneck/tables.hpp>
#include <autopar/bottleneck/variant_choice.hpp>

namespace autopar::detail {

/// Whether variants can be chosen so that a stage fits its devices and takes no longer than a limit.
///
/// Starts from each node's variant with the least seconds and walks along the nodes' lower hulls, cheapest byte first:
/// the linear relaxation. That nearly always decides; an exact knapsack does the rest.
class VariantFit {
 public:
  explicit VariantFit(const VariantTables& tables) : tables_(tables), known_(tables.tensor_degrees.size()) {}

  struct Stage {
    const std::vector<NodeId>& nodes;
    const std::vector<char>& inside;  ///< by node
    std::size_t t, d;                 ///< positions of tensor and data degree
    int in_flight;
  };

  /// For nodes whose variants differ in work and bytes only.
  /// @param spare  work allowed beyond the sum of the nodes' least work
  [[nodiscard]] bool fits_with(const Stage& stage, double spare) {
    const Known& known = known_of(stage.t, stage.in_flight);
    double over = -tables_.memory;
    for (const NodeId node : stage.nodes) over += known.bytes[node.index()];
    if (over <= 0) return true;
    const Verdict verdict = walk(known.steps, stage.inside, over, spare);
    if (verdict != Verdict::kOpen) return verdict == Verdict::kYes;
    if (known.pairs) return choose(known.steps, stage.inside, over, spare);
    return exact(stage, false) <= spare + least_cost_;
  }

  /// For any nodes. @param limit  seconds of the stage
  [[nodiscard]] bool fits_within(const Stage& stage, double limit) {
    own_.clear();
    double bytes = 0, cost = 0;
    bool pairs = true;
    for (const NodeId node : stage.nodes) {
      items_of(node, stage);
      pairs = pairs && items_.size() <= 2;
      add_steps(node, own_);
      bytes += items_.back().bytes;
      cost += items_.back().cost;
    }
    if (cost > limit) return false;
    if (bytes <= tables_.memory) return true;
    sort(own_);
    const Verdict verdict = walk(own_, stage.inside, bytes - tables_.memory, limit - cost);
    if (verdict != Verdict::kOpen) return verdict == Verdict::kYes;
    if (pairs) return choose(own_, stage.inside, bytes - tables_.memory, limit - cost);
    return exact(stage, true) <= limit;
  }

  /// Seconds of a variant in a stage: work, parameters and crossing bytes.
  [[nodiscard]] static double seconds_of(const VariantTables& tables, NodeId node, const NodeVariant& v,
                                         const std::vector<char>& inside, std::size_t d) {
    double border = 0;
    std::size_t e = 0;
    for (const NodeId before : tables.graph.predecessors(node)) {
      if (!inside[before.index()]) border += v.in[e];
      ++e;
    }
    e = 0;
    for (const NodeId after : tables.graph.successors(node)) {
      if (!inside[after.index()]) border += v.out[e];
      ++e;
    }
    return v.work * tables.work_share[d] + border * tables.border_cost[d] + v.parameters * tables.parameter_cost[d];
  }

  /// The variants with the least seconds within memory, by position in the stage's nodes; empty if nothing fits.
  [[nodiscard]] std::vector<int> fastest(const Stage& stage) {
    return VariantChoice::solve(classes(stage, true), tables_.memory).chosen;
  }

 private:
  using Item = VariantChoice::Item;
  enum class Verdict { kYes, kNo, kOpen };
  /// A step from one corner of a node's lower hull to the next, which has fewer bytes.
  struct Step {
    double rate, bytes, cost;  ///< cost per byte, bytes saved, cost added
    NodeId node;
  };

  /// The variants of a node that no other variant beats in both bytes and seconds, fewest bytes first.
  void items_of(NodeId node, const Stage& stage) {
    items_.clear();
    const auto& variants = tables_.variants[node.index()][stage.t];
    for (std::size_t v = 0; v < variants.size(); ++v) {
      items_.push_back({variants[v].bytes_in_flight * stage.in_flight + variants[v].bytes,
                        seconds_of(tables_, node, variants[v], stage.inside, stage.d), static_cast<int>(v)});
    }
    VariantChoice::drop_dominated(items_);
  }
  /// Likewise with work instead of seconds.
  void items_of(NodeId node, std::size_t t, int in_flight) {
    items_.clear();
    const auto& variants = tables_.variants[node.index()][t];
    for (std::size_t v = 0; v < variants.size(); ++v) {
      items_.push_back(
          {variants[v].bytes_in_flight * in_flight + variants[v].bytes, variants[v].work, static_cast<int>(v)});
    }
    VariantChoice::drop_dominated(items_);
  }

  void add_steps(NodeId node, std::vector<Step>& steps) const {
    for (std::size_t at = items_.size() - 1; at > 0;) {
      std::size_t next = at - 1;
      const auto rate = [&](std::size_t to) {
        return (items_[to].cost - items_[at].cost) / (items_[at].bytes - items_[to].bytes);
      };
      for (std::size_t to = next; to-- > 0;) {
        if (rate(to) <= rate(next)) next = to;
      }
      steps.push_back({rate(next), items_[at].bytes - items_[next].bytes, items_[next].cost - items_[at].cost, node});
      at = next;
    }
  }
  static void sort(std::vector<Step>& steps) {
    std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.rate < b.rate; });
  }

  /// Steps that save equally many bytes.
  struct Group {
    double bytes;
    std::vector<double> cost;          ///< of the cheapest n members, by n
    std::vector<std::size_t> members;  ///< positions in `open_`
  };

  struct Known {
    std::vector<double> bytes{};  ///< of the variant with the least work, by node
    std::vector<Step> steps{};    ///< of all nodes
    bool pairs = true;            ///< no node has more than two undominated variants
  };
  /// Cached by tensor degree and number of micro-batches in flight.
  [[nodiscard]] const Known& known_of(std::size_t t, int in_flight) {
    Known& known = place_of(t, in_flight);
    if (!known.bytes.empty()) return known;
    known.bytes.assign(tables_.graph.node_count(), 0);
    for (const NodeId node : tables_.graph.nodes()) {
      if (tables_.variants[node.index()][t].empty()) continue;
      items_of(node, t, in_flight);
      add_steps(node, known.steps);
      known.pairs = known.pairs && items_.size() <= 2;
      known.bytes[node.index()] = items_.back().bytes;
    }
    sort(known.steps);
    return known;
  }

  [[nodiscard]] Known& place_of(std::size_t t, int in_flight) {
    if (in_flight > kMostKept) return rare_ = {};
    auto& row = known_[t];
    if (row.size() <= static_cast<std::size_t>(in_flight)) row.resize(static_cast<std::size_t>(in_flight) + 1);
    return row[static_cast<std::size_t>(in_flight)];
  }

  [[nodiscard]] static Verdict walk(const std::vector<Step>& steps, const std::vector<char>& inside, double over,
                                    double spare) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Step& step = steps[i];
      if (!inside[step.node.index()]) continue;
      if (step.bytes < over) {
        over -= step.bytes;
        spare -= step.cost;
        if (spare < 0) return Verdict::kNo;
        continue;
      }
      if (step.rate * over > spare) return Verdict::kNo;
      if (step.cost <= spare) return Verdict::kYes;
      return Verdict::kOpen;
    }
    return Verdict::kNo;
  }

  /// Whether some of the steps, each taken or left, save enough bytes at little enough cost. Of steps that save equally
  /// many bytes the cheapest are taken, so only their number is open: equal layers are one choice.
  [[nodiscard]] bool choose(const std::vector<Step>& steps, const std::vector<char>& inside, double over,
                            double spare) {
    open_.clear();
    for (const Step& step : steps) {
      if (inside[step.node.index()] && step.cost <= spare) open_.push_back(step);
    }
    groups_.clear();
    for (std::size_t i = 0; i < open_.size(); ++i) {  // ascending rates are ascending costs where bytes are equal
      const auto same = std::find_if(groups_.begin(), groups_.end(),
                                     [&](const Group& group) { return group.bytes == open_[i].bytes; });
      Group& group = same != groups_.end() ? *same : groups_.emplace_back(Group{open_[i].bytes, {0}, {}});
      group.cost.push_back(group.cost.back() + open_[i].cost);
      group.members.push_back(i);
    }
    // The count of the largest group follows from the other counts.
    std::stable_sort(groups_.begin(), groups_.end(),
                     [](const Group& x, const Group& y) { return x.members.size() < y.members.size(); });
    group_of_.resize(open_.size());
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (const std::size_t i : groups_[g].members) group_of_[i] = g;
    }
    return choose_from(0, over, spare);
  }
  [[nodiscard]] bool choose_from(std::size_t first, double over, double spare) const {
    if (over <= 0) return true;
    if (first == groups_.size()) return false;
    const Group& group = groups_[first];
    const std::size_t size = group.members.size();
    if (first + 1 == groups_.size()) {
      const double wanted = std::ceil(over / group.bytes);
      if (wanted > static_cast<double>(size)) return false;
      auto count = static_cast<std::size_t>(wanted);
      if (static_cast<double>(count) * group.bytes < over) ++count;  // the quotient was rounded
      return count <= size && group.cost[count] <= spare;
    }
    if (!relaxation_fits(first, over, spare)) return false;
    for (std::size_t count = 0; count <= size && group.cost[count] <= spare; ++count) {
      const double left = over - static_cast<double>(count) * group.bytes;
      if (choose_from(first + 1, left, spare - group.cost[count])) return true;
      if (left <= 0) break;
    }
    return false;
  }
  /// The linear relaxation: one step may be taken in part, cheapest bytes first.
  [[nodiscard]] bool relaxation_fits(std::size_t first, double over, double spare) const {
    for (std::size_t i = 0; over > 0; ++i) {
      if (i == open_.size()) return false;
      if (group_of_[i] < first) continue;
      const double part = std::min(1.0, over / open_[i].bytes);
      spare -= part * open_[i].cost;
      if (spare < 0) return false;
      over -= open_[i].bytes;
    }
    return true;
  }

  [[nodiscard]] double exact(const Stage& stage, bool whole_cost) {
    const auto all = classes(stage, whole_cost);
    least_cost_ = 0;
    for (const auto& items : all) {
      double least = std::numeric_limits<double>::infinity();
      for (const Item& item : items) least = std::min(least, item.cost);
      least_cost_ += least;
    }
    return VariantChoice::solve(all, tables_.memory).cost;
  }
  [[nodiscard]] std::vector<VariantChoice::Class> classes(const Stage& stage, bool whole_cost) {
    std::vector<VariantChoice::Class> all;
    all.reserve(stage.nodes.size());
    for (const NodeId node : stage.nodes) {
      if (whole_cost)
        items_of(node, stage);
      else
        items_of(node, stage.t, stage.in_flight);
      all.push_back(items_);
    }
    return all;
  }

  const VariantTables& tables_;
  static constexpr int kMostKept = 1 << 13;
  Known rare_;
  std::vector<std::vector<Known>> known_;  // [tensor degree][micro-batches in flight]
  std::vector<Item> items_;
  std::vector<Step> own_, open_;
  std::vector<Group> groups_;
  std::vector<std::size_t> group_of_;  // by position in `open_`
  double least_cost_ = 0;
};

}  // namespace autopar::detail
