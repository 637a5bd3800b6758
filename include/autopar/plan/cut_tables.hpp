#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/plan/boundary.hpp>
#include <autopar/plan/objective.hpp>

namespace autopar::detail {

using NodeMask = std::uint64_t;
inline constexpr std::size_t kMaskNodes = 64;

[[nodiscard]] constexpr NodeMask bit(NodeId node) {
  return NodeMask{1} << node.index();
}

/// What pipelines of a workload are made of, last stage first: the *tails* (sets that hold all successors of their
/// members, which are the downsets of the reversed graph) and sums of costs over them, so that the cost of a stage is
/// the difference of two tails.
class CutTables {
 public:
  /// Sums over a tail for one number of micro-batches and one of replicas.
  struct Sums {
    double forward = 0;  ///< of the smallest share
    double backward = 0;
    double busy = 0;              ///< forwards and backwards of a step, of the replica with the most samples
    double largest_backward = 0;  ///< of the largest share
    std::int64_t saved = 0;       ///< bytes of the largest share
  };

  /// @pre at most 64 nodes @return nullopt if there are more than `max_tails` tails
  [[nodiscard]] static std::optional<CutTables> make(const StepObjective& objective, std::size_t max_tails) {
    const auto& graph = objective.work().graph;
    AUTOPAR_ASSERT(graph.node_count() <= kMaskNodes, "a node mask holds 64 nodes");
    Graph<char, char> reversed;
    for (std::size_t i = 0; i < graph.node_count(); ++i)
      reversed.add_node();
    for (const EdgeId edge : graph.edges())
      reversed.add_edge(graph.target(edge), graph.source(edge));
    auto lattice = enumerate_downsets(reversed, max_tails);
    if (!lattice) return std::nullopt;
    return CutTables(objective, std::move(*lattice));
  }

  [[nodiscard]] const DownsetLattice& tails() const { return lattice_; }
  [[nodiscard]] NodeMask all() const { return all_; }
  [[nodiscard]] NodeMask successors(NodeId node) const { return successors_[node.index()]; }
  [[nodiscard]] NodeMask predecessors(NodeId node) const { return predecessors_[node.index()]; }
  /// Along edges whose value has a gradient.
  [[nodiscard]] NodeMask gradient_successors(NodeId node) const { return gradient_successors_[node.index()]; }
  [[nodiscard]] NodeMask gradient_predecessors(NodeId node) const { return gradient_predecessors_[node.index()]; }
  [[nodiscard]] NodeMask whole_batch() const { return whole_batch_; }

  /// Bytes that each of so many replicas of the stage between two tails holds at least, whatever the batch.
  [[nodiscard]] std::int64_t held(DownsetId from, DownsetId to, NodeMask stage, int replicas) const {
    LeastHeld sum = held_[to.index()] - held_[from.index()];
    for (const auto& tied : tied_) {
      if ((tied.readers & stage) != 0) sum += tied.held;
    }
    return sum.at(replicas);
  }
  /// Least seconds by which a micro-batch's backward grows, so that the stage between two tails fits: workspace, values
  /// that several stages read and what is kept between segments left out. Infinite if it cannot fit.
  /// @param stages  1 for the only stage, else 0
  [[nodiscard]] double recomputing_to_fit(DownsetId from, DownsetId to, NodeMask nodes, const Boundary& boundary,
                                          int in_flight, int microbatches, int replicas, int stages) {
    const Shares& shares = objective_->shares().at(microbatches, replicas, stages);
    const auto& sums = this->sums(microbatches, replicas, stages);
    const std::int64_t saved = (sums[to.index()].saved - sums[from.index()].saved) * in_flight;
    const std::int64_t over = held(from, to, nodes, replicas) + saved +
                              boundary.bytes(shares.largest, in_flight, microbatches) -
                              objective_->constraints().memory.value();
    if (over <= 0) return 0;
    if (over > saved || objective_->constraints().recompute == Recompute::kNever)
      return std::numeric_limits<double>::infinity();
    const bool keeps = stages == 1 && replicas == objective_->constraints().world;
    const auto [entry, added] = least_again_.try_emplace({microbatches, keeps ? -1 : replicas});
    if (added) entry->second = least_again(shares);
    return static_cast<double>(over) / in_flight * entry->second;
  }
  /// What flows over the borders of a stage. Worked out once for each; O(edges) the first time.
  [[nodiscard]] const Boundary& boundary(NodeMask stage) {
    const auto [entry, added] = boundaries_.try_emplace(stage);
    if (added) {
      entry->second = boundary_of(objective_->work(), [&](NodeId node) { return (stage & bit(node)) != 0; });
    }
    return entry->second;
  }
  /// Trainable bytes read by the stage between two tails; `own` leaves out parameters with several readers, which may
  /// be summed elsewhere.
  [[nodiscard]] std::int64_t trainable(DownsetId from, DownsetId to, NodeMask stage, bool own) const {
    std::int64_t sum = trainable_[to.index()] - trainable_[from.index()];
    if (own) return sum;
    for (const auto& tied : tied_)
      sum += (tied.readers & stage) != 0 ? tied.trainable : 0;
    return sum;
  }

  /// Sums of each tail. @param stages 1 for the only stage, else 0
  [[nodiscard]] const std::vector<Sums>& sums(int microbatches, int replicas, int stages) {
    const bool keeps = stages == 1 && replicas == objective_->constraints().world;
    auto& table = sums_[{microbatches, keeps ? -1 : replicas}];
    if (table.empty()) fill(table, objective_->shares().at(microbatches, replicas, stages));
    return table;
  }

  /// Device-seconds that the nodes of a tail take at least, whatever the replicas of their stages.
  [[nodiscard]] const std::vector<double>& least_work(int microbatches) {
    auto& table = least_work_[microbatches];
    if (!table.empty()) return table;
    std::vector<double> node(objective_->work().graph.node_count(), std::numeric_limits<double>::infinity());
    for (int r = 1; r <= objective_->constraints().world; ++r) {
      for (const int stages : {0, 1}) {
        const Shares& shares = objective_->shares().at(microbatches, r, stages);
        for (std::size_t i = 0; i < node.size(); ++i)
          node[i] = std::min(node[i], r * busy(shares, i));
      }
    }
    table = summed<double>([&](NodeId id) { return node[id.index()]; });
    return table;
  }

  /// Longest paths at the smallest share of any stage, by node, the node itself included.
  struct Paths {
    std::vector<double> forward, backward;  ///< of forwards (backwards) that end at the node
    std::vector<double> forward_below;      ///< of forwards that begin at it
    std::vector<double> round_below;        ///< of forwards and back again that begin at it
  };
  [[nodiscard]] const Paths& paths(int microbatches) {
    auto [entry, added] = paths_.try_emplace(microbatches);
    if (added) fill(entry->second, microbatches);
    return entry->second;
  }

 private:
  struct Tied {
    NodeMask readers = 0;
    LeastHeld held;
    std::int64_t trainable = 0;
  };

  CutTables(const StepObjective& objective, DownsetLattice lattice)
      : objective_(&objective), lattice_(std::move(lattice)) {
    const auto& graph = objective.work().graph;
    const std::size_t n = graph.node_count();
    all_ = n == kMaskNodes ? ~NodeMask{0} : (NodeMask{1} << n) - 1;
    for (auto* masks : {&successors_, &predecessors_, &gradient_successors_, &gradient_predecessors_})
      masks->assign(n, 0);
    for (const EdgeId edge : graph.edges()) {
      const NodeId from = graph.source(edge), to = graph.target(edge);
      successors_[from.index()] |= bit(to);
      predecessors_[to.index()] |= bit(from);
      if (!graph[edge].differentiable) continue;
      gradient_successors_[from.index()] |= bit(to);
      gradient_predecessors_[to.index()] |= bit(from);
    }
    for (const NodeId node : graph.nodes())
      whole_batch_ |= graph[node].whole_batch ? bit(node) : 0;
    add_parameters();
  }

  void add_parameters() {
    const Workload& work = objective_->work();
    std::vector<Tied> parameters(work.parameters.size());
    for (const NodeId node : work.graph.nodes()) {
      for (const ParameterId p : work.graph[node].parameters)
        parameters[p.index()].readers |= bit(node);
    }
    std::vector<LeastHeld> held(work.graph.node_count());
    std::vector<std::int64_t> trainable(held.size(), 0);
    for (const NodeId node : work.graph.nodes())
      held[node.index()].whole = work.graph[node].resident.value();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      Tied& parameter = parameters[p];
      const int readers = std::popcount(parameter.readers);
      parameter.held = least_held(work.parameters[p], objective_->constraints(), static_cast<std::size_t>(readers));
      parameter.trainable = work.parameters[p].trainable ? work.parameters[p].bytes.value() : 0;
      if (readers > 1) tied_.push_back(parameter);
      if (readers != 1) continue;
      held[static_cast<std::size_t>(std::countr_zero(parameter.readers))] += parameter.held;
      trainable[static_cast<std::size_t>(std::countr_zero(parameter.readers))] += parameter.trainable;
    }
    held_ = summed<LeastHeld>([&](NodeId id) { return held[id.index()]; });
    trainable_ = summed<std::int64_t>([&](NodeId id) { return trainable[id.index()]; });
  }

  /// Sum of a value of the nodes over each tail.
  template <class T, class F>
  [[nodiscard]] std::vector<T> summed(const F& value) const {
    std::vector<T> sums(lattice_.size(), T{});
    for (std::size_t i = 0; i < sums.size(); ++i) {
      for (const auto& cover : lattice_.covers(DownsetId::of(i)))
        sums[cover.result.index()] = sums[i] + value(cover.added);
    }
    return sums;
  }

  /// Seconds of the smallest share's forward for each byte that the largest share would keep, of the node with fewest.
  [[nodiscard]] double least_again(const Shares& shares) const {
    const auto& small = objective_->work().node_costs(shares.smallest);
    const auto& large = objective_->work().node_costs(shares.largest);
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < small.size(); ++i) {
      const auto saved = large[i].saved.value();
      if (saved > 0) least = std::min(least, small[i].forward.value() / static_cast<double>(saved));
    }
    return least;
  }

  [[nodiscard]] double busy(const Shares& shares, std::size_t node) const {
    double sum = 0;
    for (const auto& [share, times] : shares.heaviest) {
      const NodeCost& cost = objective_->work().node_costs(share)[node];
      sum += times * (cost.forward + cost.backward).value();
    }
    return sum;
  }

  void fill(std::vector<Sums>& table, const Shares& shares) const {
    const auto& small = objective_->work().node_costs(shares.smallest);
    const auto& large = objective_->work().node_costs(shares.largest);
    const auto forward = summed<double>([&](NodeId id) { return small[id.index()].forward.value(); });
    const auto backward = summed<double>([&](NodeId id) { return small[id.index()].backward.value(); });
    const auto busy_sum = summed<double>([&](NodeId id) { return busy(shares, id.index()); });
    const auto largest = summed<double>([&](NodeId id) { return large[id.index()].backward.value(); });
    const auto saved = summed<std::int64_t>([&](NodeId id) { return large[id.index()].saved.value(); });
    table.resize(lattice_.size());
    for (std::size_t i = 0; i < table.size(); ++i)
      table[i] = {forward[i], backward[i], busy_sum[i], largest[i], saved[i]};
  }

  void fill(Paths& paths, int microbatches) const {
    const auto& graph = objective_->work().graph;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (int r = 1; r <= objective_->constraints().world; ++r) {
      least = std::min(least, objective_->shares().at(microbatches, r, 0).smallest);
    }
    const auto& costs = objective_->work().node_costs(least);
    paths.forward.assign(graph.node_count(), 0);
    paths.backward.assign(graph.node_count(), 0);
    const auto order = topological_order(graph);
    for (const NodeId node : order) {
      double forward = 0, backward = 0;
      for (const EdgeId edge : graph.in_edges(node)) {
        const std::size_t before = graph.source(edge).index();
        forward = std::max(forward, paths.forward[before]);
        if (graph[edge].differentiable) backward = std::max(backward, paths.backward[before]);
      }
      paths.forward[node.index()] = forward + costs[node.index()].forward.value();
      paths.backward[node.index()] = backward + costs[node.index()].backward.value();
    }
    paths.forward_below.assign(graph.node_count(), 0);
    paths.round_below.assign(graph.node_count(), 0);
    for (std::size_t i = order.size(); i-- > 0;) {
      const NodeId node = order[i];
      double forward = 0, round = 0;
      for (const EdgeId edge : graph.out_edges(node)) {
        const std::size_t after = graph.target(edge).index();
        forward = std::max(forward, paths.forward_below[after]);
        if (graph[edge].differentiable) round = std::max(round, paths.round_below[after]);
      }
      const NodeCost& cost = costs[node.index()];
      paths.forward_below[node.index()] = forward + cost.forward.value();
      paths.round_below[node.index()] = round + (cost.forward + cost.backward).value();
    }
  }

  const StepObjective* objective_;
  DownsetLattice lattice_;
  NodeMask all_ = 0, whole_batch_ = 0;
  std::vector<NodeMask> successors_, predecessors_, gradient_successors_, gradient_predecessors_;
  std::vector<Tied> tied_;
  std::unordered_map<NodeMask, Boundary> boundaries_;
  std::vector<LeastHeld> held_;          // by tail, without tied parameters
  std::vector<std::int64_t> trainable_;  // likewise
  std::map<std::pair<int, int>, double> least_again_;
  std::map<std::pair<int, int>, std::vector<Sums>> sums_;
  std::map<int, std::vector<double>> least_work_;
  std::map<int, Paths> paths_;
};

}  // namespace autopar::detail
