#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/plan/memory/boundary_masks.hpp>
#include <autopar/plan/memory/held_by_nodes.hpp>
#include <autopar/plan/memory/microbatch_memory.hpp>
#include <autopar/plan/model/node_mask.hpp>
#include <autopar/plan/step/objective.hpp>

namespace autopar::detail {

/// A stage as the difference of two tails. A *tail* contains all successors of its members: a downset of the reversed
/// graph.
struct StageNodes {
  DownsetId from, to;  ///< its nodes are those of `to` without those of `from`
  NodeMask nodes = 0;
};

/// The staging of stages that were chosen from the last one to the first.
/// @param chosen  each with `nodes` and `replicas`
template <class Stages>
[[nodiscard]] Staging staging_of(const Stages& chosen, std::size_t nodes, int microbatches, ScheduleKind schedule) {
  Staging staging{std::vector<int>(nodes), {}, microbatches, schedule};
  for (auto stage = chosen.rbegin(); stage != chosen.rend(); ++stage) {
    for_each_node(stage->nodes, [&](NodeId node) { staging.stage_of[node.index()] = staging.stages(); });
    staging.replicas.push_back(stage->replicas);
  }
  return staging;
}

/// What any stage of a small graph takes: seconds, bytes, and what surrounds it. Costs are summed over tails, so the
/// cost of a stage is the difference of two sums.
class StageTable {
 public:
  /// Of a tail or a stage, for one number of micro-batches and one number of replicas.
  struct Sums {
    double forward = 0;  ///< of the smallest slice
    double backward = 0;
    double busy = 0;              ///< forwards and backwards of a step, of the replica with the most samples
    double largest_backward = 0;  ///< of the largest slice
    std::int64_t saved = 0;       ///< bytes of the largest slice

    friend Sums operator+(const Sums& a, const Sums& b) {
      return {a.forward + b.forward, a.backward + b.backward, a.busy + b.busy, a.largest_backward + b.largest_backward,
              a.saved + b.saved};
    }
    friend Sums operator-(const Sums& a, const Sums& b) {
      return {a.forward - b.forward, a.backward - b.backward, a.busy - b.busy, a.largest_backward - b.largest_backward,
              a.saved - b.saved};
    }
  };
  /// Tables for stages with so many replicas.
  struct Sized {
    const SliceSizes* slices = nullptr;
    std::vector<Sums> sums;      ///< by tail
    double least_recompute = 0;  ///< least seconds by which a backward grows for each byte that is not kept
    bool is_ample = false;       ///< no stage is large enough for memory to matter

    [[nodiscard]] Sums of(const StageNodes& stage) const { return sums[stage.to.index()] - sums[stage.from.index()]; }
  };

  /// @param degrees  objectives of the tensor degrees, if each stage may have its own. What holds for nodes without a
  /// stage is then the least over all degrees
  /// @pre at most 64 nodes
  /// @return nullopt if there are more than `max_tails` tails
  [[nodiscard]] static std::optional<StageTable> make(const StepObjective& objective, std::size_t max_tails,
                                                      std::vector<const StepObjective*> degrees = {}) {
    const auto& graph = objective.work().graph;
    AUTOPAR_ASSERT(graph.node_count() <= kMaskNodes, "a node mask holds 64 nodes");
    Graph<char, char> reversed;
    for (std::size_t i = 0; i < graph.node_count(); ++i) reversed.add_node();
    for (const EdgeId edge : graph.edges()) reversed.add_edge(graph.target(edge), graph.source(edge));
    auto lattice = enumerate_downsets(reversed, max_tails);
    if (!lattice) return std::nullopt;
    if (degrees.empty()) degrees = {&objective};
    return StageTable(objective, std::move(*lattice), std::move(degrees));
  }

  [[nodiscard]] const DownsetLattice& tails() const { return lattice_; }
  /// Whether a stage has all nodes, so that there is no other.
  [[nodiscard]] bool is_only(const StageNodes& stage) const {
    return stage.from == lattice_.empty_set() && stage.to == lattice_.all_nodes();
  }
  [[nodiscard]] bool mixes_samples(const StageNodes& stage) const { return (stage.nodes & whole_batch_) != 0; }

  /// The fewest and the most replicas that a stage may have on so many groups of ranks; at most 0 if it may have none.
  /// @param later  number of stages after it
  [[nodiscard]] std::pair<int, int> replicas(const StageNodes& stage, int later, int groups) const {
    const Constraints& constraints = objective_->constraints();
    const int most = mixes_samples(stage) ? std::min(1, groups) : groups;
    int fixed = constraints.replicas_of_each;
    if (!constraints.replicas.empty())
      fixed = constraints.replicas[constraints.replicas.size() - 1 - static_cast<std::size_t>(later)];
    if (fixed == 0) return {1, most};
    return {fixed, fixed <= most ? fixed : 0};
  }

  /// Visits the stages that end before a tail, each with its nodes in topological order of the reversed graph.
  /// @param visit  visit(const StageNodes&): whether stages with more nodes are of interest
  template <class Visit>
  void for_each_stage(DownsetId from, const Visit& visit) const {
    StageNodes stage{from, from, 0};
    lattice_.for_each_superset(
        from,
        [&](NodeId node, DownsetId to) {
          stage.nodes |= bit(node);
          stage.to = to;
          return visit(std::as_const(stage));
        },
        [&](NodeId node) { stage.nodes &= ~bit(node); });
  }

  /// The nodes next to a stage, outside it.
  struct Neighbours {
    NodeMask before = 0, after = 0;                    ///< whose values it reads, that read its values
    NodeMask gradient_before = 0, gradient_after = 0;  ///< likewise along values that have a gradient
  };
  [[nodiscard]] Neighbours neighbours(NodeMask nodes) const {
    Neighbours out;
    for_each_node(nodes, [&](NodeId node) {
      const Neighbours& own = neighbours_[node.index()];
      out.before |= own.before;
      out.after |= own.after;
      out.gradient_before |= own.gradient_before;
      out.gradient_after |= own.gradient_after;
    });
    for (NodeMask* mask : {&out.before, &out.after, &out.gradient_before, &out.gradient_after}) *mask &= ~nodes;
    return out;
  }

  /// Least bytes that each of so many replicas of a stage holds, whatever the batch.
  [[nodiscard]] std::int64_t held(const StageNodes& stage, int replicas) const {
    LeastHeld sum = held_[stage.to.index()] - held_[stage.from.index()];
    for (const auto& tied : tied_) {
      if ((tied.readers & stage.nodes) != 0) sum += tied.held;
    }
    return sum.at(replicas);
  }
  /// Whether `held` is within the memory.
  [[nodiscard]] bool holds(const StageNodes& stage, int replicas) const {
    const std::int64_t memory = objective_->constraints().memory.value();
    return everything_ <= memory || held(stage, replicas) <= memory;
  }
  /// Least bytes of a stage's saved activations, beside `held`, whose gradients may not exist yet while they do.
  [[nodiscard]] std::int64_t saved(const StageNodes& stage, const Sums& sums, int in_flight, int microbatches,
                                   int replicas) const {
    const std::int64_t saved = sums.saved * in_flight;
    if (!gradients_follow_activations(microbatches, replicas)) return saved;
    return saved - std::min(saved, trainable(stage, false));
  }
  /// Bytes of the values that cross the borders of a stage, and of their gradients.
  [[nodiscard]] std::int64_t boundary(const StageNodes& stage, std::int64_t slice, int in_flight,
                                      int microbatches) const {
    return boundaries_(stage.nodes).bytes(slice, in_flight, microbatches);
  }
  /// Least seconds by which a micro-batch's backward grows so that a stage fits. Leaves out workspace, values that
  /// several stages read, and what is kept between segments. Infinite if the stage cannot fit.
  /// @param only  whether it is the only stage
  [[nodiscard]] double recomputing_to_fit(const StageNodes& stage, int in_flight, int microbatches, int replicas,
                                          bool only) {
    const Sized& size = sized(microbatches, replicas, only);
    if (size.is_ample) return 0;
    const Sums sums = size.of(stage);
    const std::int64_t over = held(stage, replicas) + saved(stage, sums, in_flight, microbatches, replicas) +
                              boundary(stage, size.slices->largest, in_flight, microbatches) -
                              objective_->constraints().memory.value();
    if (over <= 0) return 0;
    if (over > sums.saved * in_flight || objective_->constraints().recompute == Recompute::kNever)
      return std::numeric_limits<double>::infinity();
    return static_cast<double>(over) / in_flight * size.least_recompute;
  }
  /// Trainable bytes that a stage reads. `own` leaves out parameters with several readers, whose gradients may be
  /// summed elsewhere.
  [[nodiscard]] std::int64_t trainable(const StageNodes& stage, bool own) const {
    std::int64_t sum = trainable_[stage.to.index()] - trainable_[stage.from.index()];
    if (own) return sum;
    for (const auto& tied : tied_) sum += (tied.readers & stage.nodes) != 0 ? tied.trainable : 0;
    return sum;
  }

  /// @param only  whether it is the only stage, which on all ranks keeps each rank's own samples
  [[nodiscard]] const Sized& sized(int microbatches, int replicas, bool only) {
    auto& of_all = sized_[microbatches];
    if (of_all.empty()) of_all.resize(static_cast<std::size_t>(objective_->constraints().world) + 1);
    const bool keeps = only && replicas == objective_->constraints().world;
    auto& size = of_all[static_cast<std::size_t>(keeps ? 0 : replicas)];
    if (!size) {
      const SliceSizes& slices = objective_->slices().at(microbatches, replicas, only ? 1 : 0);
      size = std::make_unique<Sized>(made(microbatches, slices));
    }
    return *size;
  }
  /// Least seconds of any message between stages: of the smallest value for one sample. 0 if there may be none.
  /// @cost O(edges)
  [[nodiscard]] double least_message() const {
    const auto& graph = objective_->work().graph;
    Bytes least(std::numeric_limits<std::int64_t>::max());
    for (const EdgeId edge : graph.edges()) least = std::min(least, bytes_at(graph[edge].bytes, 1));
    return graph.edge_count() > 0 && least > Bytes(0) ? objective_->work().least_transfer(least).value() : 0;
  }

  /// Least device-seconds of the nodes of a tail, whatever the replicas of their stages.
  [[nodiscard]] const std::vector<double>& least_work(int microbatches) {
    auto& table = least_work_[microbatches];
    if (!table.empty()) return table;
    std::vector<double> node(objective_->work().graph.node_count(), std::numeric_limits<double>::infinity());
    for (const StepObjective* degree : degrees_) {
      const int ranks = degree->constraints().tensor / objective_->constraints().tensor;  // of a replica
      for (int r = 1; r <= degree->constraints().world; ++r) {
        for (const int stages : {0, 1}) {
          const SliceSizes& slices = degree->slices().at(microbatches, r, stages);
          for (std::size_t i = 0; i < node.size(); ++i)
            node[i] = std::min(node[i], r * ranks * busy(degree->work(), slices, i));
        }
      }
    }
    table = summed<double>([&](NodeId id) { return node[id.index()]; });
    return table;
  }

  /// Longest paths at the smallest slice of any stage, by node, including the node.
  struct Paths {
    std::vector<double> forward, backward;  ///< of forwards (backwards) that end at the node
    std::vector<double> forward_below;      ///< of forwards that begin at the node
    std::vector<double> round_below;        ///< of forwards that begin at the node, and of backwards back to it
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

  StageTable(const StepObjective& objective, DownsetLattice lattice, std::vector<const StepObjective*> degrees)
      : objective_(&objective),
        degrees_(std::move(degrees)),
        lattice_(std::move(lattice)),
        boundaries_(objective.work()),
        neighbours_(lattice_.node_count()),
        parents_(lattice_.size()) {
    const auto& graph = objective.work().graph;
    for (const EdgeId edge : graph.edges()) {
      Neighbours &from = neighbours_[graph.source(edge).index()], &to = neighbours_[graph.target(edge).index()];
      from.after |= bit(graph.target(edge));
      to.before |= bit(graph.source(edge));
      if (!graph[edge].differentiable) continue;
      from.gradient_after |= bit(graph.target(edge));
      to.gradient_before |= bit(graph.source(edge));
    }
    for (const NodeId node : graph.nodes()) whole_batch_ |= graph[node].whole_batch ? bit(node) : 0;
    for (std::size_t i = 0; i < lattice_.size(); ++i) {
      for (const auto& cover : lattice_.covers(DownsetId::of(i))) parents_[cover.result.index()] = {i, cover.added};
    }
    add_parameters();
  }

  void add_parameters() {
    const HeldByNodes nodes(objective_->work(), objective_->constraints());
    for (const LeastHeld& own : nodes.held) everything_ += own.at(1);
    for (const auto& tied : nodes.tied) {
      tied_.push_back({0, tied.held, tied.trained.value()});
      for (const NodeId node : tied.readers) tied_.back().readers |= bit(node);
      everything_ += tied.held.at(1);
    }
    held_ = summed<LeastHeld>([&](NodeId id) { return nodes.held[id.index()]; });
    trainable_ = summed<std::int64_t>([&](NodeId id) { return nodes.trained[id.index()].value(); });
  }

  /// Sum of a value of the nodes over each tail.
  template <class T, class F>
  [[nodiscard]] std::vector<T> summed(const F& value) const {
    std::vector<T> sums(lattice_.size(), T{});
    for (std::size_t i = 1; i < sums.size(); ++i) sums[i] = sums[parents_[i].first] + value(parents_[i].second);
    return sums;
  }

  /// Least seconds of the smallest slice's forward for each byte that the largest slice keeps, over all nodes. Nodes
  /// that a stage may compute in slices or whole count both ways.
  [[nodiscard]] double least_recompute(const SliceSizes& slices) const {
    double least = std::numeric_limits<double>::infinity();
    for (const Workload* work : {&objective_->work(), &objective_->whole()}) {
      const auto& small = work->node_costs(slices.smallest);
      const auto& large = work->node_costs(slices.largest);
      for (std::size_t i = 0; i < small.size(); ++i) {
        const auto saved = large[i].saved.value();
        if (saved > 0) least = std::min(least, small[i].forward.value() / static_cast<double>(saved));
      }
    }
    return least;
  }

  [[nodiscard]] static double busy(const Workload& work, const SliceSizes& slices, std::size_t node) {
    double sum = 0;
    for (const auto& [slice, times] : slices.heaviest) {
      const NodeCost& cost = work.node_costs(slice)[node];
      sum += times * (cost.forward + cost.backward).value();
    }
    return sum;
  }

  [[nodiscard]] Sized made(int microbatches, const SliceSizes& slices) const {
    const auto& small = objective_->work().node_costs(slices.smallest);
    const auto& large = objective_->work().node_costs(slices.largest);
    Sized out{&slices, summed<Sums>([&](NodeId node) {
                const std::size_t i = node.index();
                return Sums{small[i].forward.value(), small[i].backward.value(), busy(objective_->work(), slices, i),
                            large[i].backward.value(), large[i].saved.value()};
              }),
              least_recompute(slices)};
    const std::int64_t most = everything_ + out.sums.back().saved * microbatches +
                              boundaries_.most().bytes(slices.largest, microbatches, microbatches);
    out.is_ample = most <= objective_->constraints().memory.value();
    return out;
  }

  void fill(Paths& paths, int microbatches) const {
    const auto& graph = objective_->work().graph;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const StepObjective* degree : degrees_) {
      for (int r = 1; r <= degree->constraints().world; ++r)
        least = std::min(least, degree->slices().at(microbatches, r, 0).smallest);
    }
    std::vector<NodeCost> costs = degrees_.front()->work().node_costs(least);
    for (const StepObjective* degree : degrees_) {
      const auto& own = degree->work().node_costs(least);
      for (std::size_t i = 0; i < costs.size(); ++i) {
        costs[i].forward = std::min(costs[i].forward, own[i].forward);
        costs[i].backward = std::min(costs[i].backward, own[i].backward);
      }
    }
    for (auto* path : {&paths.forward, &paths.backward, &paths.forward_below, &paths.round_below})
      path->assign(graph.node_count(), 0);
    const auto order = topological_order(graph);
    for (const NodeId node : order) {
      double &forward = paths.forward[node.index()], &backward = paths.backward[node.index()];
      for (const EdgeId edge : graph.in_edges(node)) {
        const std::size_t before = graph.source(edge).index();
        forward = std::max(forward, paths.forward[before]);
        if (graph[edge].differentiable) backward = std::max(backward, paths.backward[before]);
      }
      forward += costs[node.index()].forward.value();
      backward += costs[node.index()].backward.value();
    }
    for (auto at = order.rbegin(); at != order.rend(); ++at) {
      double &forward = paths.forward_below[at->index()], &round = paths.round_below[at->index()];
      for (const EdgeId edge : graph.out_edges(*at)) {
        const std::size_t after = graph.target(edge).index();
        forward = std::max(forward, paths.forward_below[after]);
        if (graph[edge].differentiable) round = std::max(round, paths.round_below[after]);
      }
      const NodeCost& cost = costs[at->index()];
      forward += cost.forward.value();
      round += (cost.forward + cost.backward).value();
    }
  }

  const StepObjective* objective_;
  std::vector<const StepObjective*> degrees_;
  DownsetLattice lattice_;
  BoundaryMasks boundaries_;
  std::vector<Neighbours> neighbours_;                   // by node
  std::vector<std::pair<std::size_t, NodeId>> parents_;  // by tail: a tail with one node less, and that node
  NodeMask whole_batch_ = 0;
  std::vector<Tied> tied_;
  std::int64_t everything_ = 0;                               // bytes that a rank holds of all nodes, at least
  std::vector<LeastHeld> held_;                               // by tail, without tied parameters
  std::vector<std::int64_t> trainable_;                       // likewise
  std::map<int, std::vector<std::unique_ptr<Sized>>> sized_;  // by micro-batches and replicas; 0: all, of one stage
  std::map<int, std::vector<double>> least_work_;
  std::map<int, Paths> paths_;
};

/// An objective under other constraints, and its table.
struct TableUnder {
  TableUnder(const StepObjective& from, Constraints own, std::size_t max_tails)
      : constraints(std::move(own)),
        objective(from.under(constraints)),
        table(StageTable::make(objective, max_tails)) {}
  TableUnder(const TableUnder&) = delete;  // its members refer to one another
  TableUnder& operator=(const TableUnder&) = delete;

  Constraints constraints;
  StepObjective objective;
  std::optional<StageTable> table;  ///< none if there are too many tails
};

}  // namespace autopar::detail
