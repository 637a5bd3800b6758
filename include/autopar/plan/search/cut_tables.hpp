#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <autopar/graph/algorithms/downsets.hpp>
#include <autopar/plan/memory/held_by_nodes.hpp>
#include <autopar/plan/memory/microbatch_memory.hpp>
#include <autopar/plan/model/node_mask.hpp>
#include <autopar/plan/search/boundary_masks.hpp>
#include <autopar/plan/step/objective.hpp>

namespace autopar::detail {

/// What pipelines of a workload consist of, last stage first. *Tails* are sets that contain all successors of their
/// members, so downsets of the reversed graph. Costs are summed over tails, so the cost of a stage is the difference of
/// two tails.
class CutTables {
 public:
  /// Sums over a tail for one number of micro-batches and one number of replicas.
  struct Sums {
    double forward = 0;  ///< of the smallest slice
    double backward = 0;
    double busy = 0;              ///< forwards and backwards of a step, of the replica with the most samples
    double largest_backward = 0;  ///< of the largest slice
    std::int64_t saved = 0;       ///< bytes of the largest slice
  };
  /// Tables for stages with so many replicas.
  struct Sized {
    const SliceSizes* slices = nullptr;
    std::vector<Sums> sums;      ///< by tail
    double least_recompute = 0;  ///< least seconds by which a backward grows for each byte that is not kept
    bool is_ample = false;       ///< no stage is large enough for memory to matter
  };

  /// @param degrees  objectives of the tensor degrees, if each stage may have its own. What holds for nodes without a
  /// stage is then the least over all degrees
  /// @pre at most 64 nodes
  /// @return nullopt if there are more than `max_tails` tails
  [[nodiscard]] static std::optional<CutTables> make(const StepObjective& objective, std::size_t max_tails,
                                                     std::vector<const StepObjective*> degrees = {}) {
    const auto& graph = objective.work().graph;
    AUTOPAR_ASSERT(graph.node_count() <= kMaskNodes, "a node mask holds 64 nodes");
    Graph<char, char> reversed;
    for (std::size_t i = 0; i < graph.node_count(); ++i) reversed.add_node();
    for (const EdgeId edge : graph.edges()) reversed.add_edge(graph.target(edge), graph.source(edge));
    auto lattice = enumerate_downsets(reversed, max_tails);
    if (!lattice) return std::nullopt;
    if (degrees.empty()) degrees = {&objective};
    return CutTables(objective, std::move(*lattice), std::move(degrees));
  }

  [[nodiscard]] const DownsetLattice& tails() const { return lattice_; }
  [[nodiscard]] NodeMask all() const { return all_; }
  [[nodiscard]] NodeMask successors(NodeId node) const { return successors_[node.index()]; }
  [[nodiscard]] NodeMask predecessors(NodeId node) const { return predecessors_[node.index()]; }
  /// Successors along edges whose value has a gradient.
  [[nodiscard]] NodeMask gradient_successors(NodeId node) const { return gradient_successors_[node.index()]; }
  [[nodiscard]] NodeMask gradient_predecessors(NodeId node) const { return gradient_predecessors_[node.index()]; }
  [[nodiscard]] NodeMask whole_batch() const { return whole_batch_; }

  /// Least bytes that each of so many replicas of the stage between two tails holds, whatever the batch.
  [[nodiscard]] std::int64_t held(DownsetId from, DownsetId to, NodeMask stage, int replicas) const {
    LeastHeld sum = held_[to.index()] - held_[from.index()];
    for (const auto& tied : tied_) {
      if ((tied.readers & stage) != 0) sum += tied.held;
    }
    return sum.at(replicas);
  }
  /// Upper bound on the bytes of saved activations, and of gradients in `held`, that never exist together.
  [[nodiscard]] std::int64_t not_at_once(DownsetId from, DownsetId to, NodeMask stage, std::int64_t saved,
                                         int microbatches, int replicas) const {
    if (!gradients_follow_activations(microbatches, replicas)) return 0;
    return std::min(saved, trainable(from, to, stage, false));
  }
  /// Whether `held` is within the memory.
  [[nodiscard]] bool holds(DownsetId from, DownsetId to, NodeMask stage, int replicas) const {
    const std::int64_t memory = objective_->constraints().memory.value();
    return everything_ <= memory || held(from, to, stage, replicas) <= memory;
  }
  /// Least seconds by which a micro-batch's backward grows so that the stage between two tails fits. Leaves out
  /// workspace, values that several stages read, and what is kept between segments. Infinite if the stage cannot fit.
  /// @param only  whether it is the only stage
  [[nodiscard]] double recomputing_to_fit(DownsetId from, DownsetId to, NodeMask nodes, int in_flight, int microbatches,
                                          int replicas, bool only) {
    const Sized& size = sized(microbatches, replicas, only);
    if (size.is_ample) return 0;
    const std::int64_t saved = (size.sums[to.index()].saved - size.sums[from.index()].saved) * in_flight;
    const std::int64_t over =
        held(from, to, nodes, replicas) + saved - not_at_once(from, to, nodes, saved, microbatches, replicas) +
        boundary(nodes).bytes(size.slices->largest, in_flight, microbatches) - objective_->constraints().memory.value();
    if (over <= 0) return 0;
    if (over > saved || objective_->constraints().recompute == Recompute::kNever)
      return std::numeric_limits<double>::infinity();
    return static_cast<double>(over) / in_flight * size.least_recompute;
  }
  /// What crosses the borders of a stage.
  [[nodiscard]] Boundary boundary(NodeMask stage) const { return boundaries_(stage); }
  /// Trainable bytes read by the stage between two tails. `own` leaves out parameters with several readers, whose
  /// gradients may be summed elsewhere.
  [[nodiscard]] std::int64_t trainable(DownsetId from, DownsetId to, NodeMask stage, bool own) const {
    std::int64_t sum = trainable_[to.index()] - trainable_[from.index()];
    if (own) return sum;
    for (const auto& tied : tied_) sum += (tied.readers & stage) != 0 ? tied.trainable : 0;
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
  /// Least seconds of any message between stages; 0 if there may be none.
  [[nodiscard]] double least_message() const { return least_message_; }

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

  CutTables(const StepObjective& objective, DownsetLattice lattice, std::vector<const StepObjective*> degrees)
      : objective_(&objective),
        degrees_(std::move(degrees)),
        lattice_(std::move(lattice)),
        boundaries_(objective.work()) {
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
    for (const NodeId node : graph.nodes()) whole_batch_ |= graph[node].whole_batch ? bit(node) : 0;
    find_parents();
    add_parameters();
    add_messages();
  }

  /// For each tail a tail with one node less.
  void find_parents() {
    parents_.resize(lattice_.size());
    for (std::size_t i = 0; i < lattice_.size(); ++i) {
      for (const auto& cover : lattice_.covers(DownsetId::of(i))) parents_[cover.result.index()] = {i, cover.added};
    }
  }

  /// A message between stages takes at least as long as the smallest of all values for one sample.
  void add_messages() {
    const auto& graph = objective_->work().graph;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const EdgeId edge : graph.edges()) least = std::min(least, bytes_at(graph[edge].bytes, 1).value());
    if (graph.edge_count() > 0 && least > 0) least_message_ = objective_->work().least_transfer(Bytes(least)).value();
  }

  void add_parameters() {
    const HeldByNodes nodes(objective_->work(), objective_->constraints());
    everything_ = 0;
    for (const LeastHeld& own : nodes.held) everything_ += own.at(1);
    for (const auto& tied : nodes.tied) {
      NodeMask readers = 0;
      for (const NodeId node : tied.readers) readers |= bit(node);
      tied_.push_back({readers, tied.held, tied.trained.value()});
      everything_ += tied.held.at(1);
    }
    held_ = summed<LeastHeld>([&](NodeId id) { return nodes.held[id.index()]; });
    trainable_ = summed<std::int64_t>([&](NodeId id) { return nodes.trained[id.index()].value(); });
  }

  /// Sum of a value of the nodes over each tail.
  template <class T, class F>
  [[nodiscard]] std::vector<T> summed(const F& value) const {
    std::vector<T> sums(lattice_.size(), T{});
    for (std::size_t i = 1; i < sums.size(); ++i) sums[i] = sums[parents_[i].tail] + value(parents_[i].added);
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
    Sized out;
    out.slices = &slices;
    out.least_recompute = least_recompute(slices);
    const auto& small = objective_->work().node_costs(slices.smallest);
    const auto& large = objective_->work().node_costs(slices.largest);
    std::vector<Sums> each(small.size());
    for (std::size_t i = 0; i < each.size(); ++i) {
      each[i] = {small[i].forward.value(), small[i].backward.value(), busy(objective_->work(), slices, i),
                 large[i].backward.value(), large[i].saved.value()};
    }
    out.sums.resize(lattice_.size());
    for (std::size_t i = 1; i < out.sums.size(); ++i) {
      const Sums &before = out.sums[parents_[i].tail], &own = each[parents_[i].added.index()];
      out.sums[i] = {before.forward + own.forward, before.backward + own.backward, before.busy + own.busy,
                     before.largest_backward + own.largest_backward, before.saved + own.saved};
    }
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
  std::vector<const StepObjective*> degrees_;
  DownsetLattice lattice_;
  NodeMask all_ = 0, whole_batch_ = 0;
  std::vector<NodeMask> successors_, predecessors_, gradient_successors_, gradient_predecessors_;
  std::vector<Tied> tied_;
  BoundaryMasks boundaries_;
  struct Parent {
    std::size_t tail = 0;
    NodeId added;
  };
  std::vector<Parent> parents_;  // by tail
  double least_message_ = 0;
  std::int64_t everything_ = 0;                               // bytes that a rank holds of all nodes, at least
  std::vector<LeastHeld> held_;                               // by tail, without tied parameters
  std::vector<std::int64_t> trainable_;                       // likewise
  std::map<int, std::vector<std::unique_ptr<Sized>>> sized_;  // by micro-batches and replicas; 0: all, of one stage
  std::map<int, std::vector<double>> least_work_;
  std::map<int, Paths> paths_;
};

}  // namespace autopar::detail
