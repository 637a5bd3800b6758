#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <autopar/plan/model/pipeline_bound.hpp>
#include <autopar/plan/search/cut_tables.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// How fast the nodes without a stage can run at best. A dynamic program over tails, ranks left and stages chosen, with
/// the static memory of stages. Unlike a sum of work, it sees that memory and whole operators prevent even slices. Its
/// staging is a good start.
/// Each stage is bounded by `pipeline_bound`.
class RestBottleneck {
 public:
  /// @param max_work  most elementary steps, about a nanosecond each
  /// @return nullopt if it would take more
  [[nodiscard]] static std::optional<RestBottleneck> make(CutTables& tables, const StepObjective& objective,
                                                          int microbatches, ScheduleKind schedule,
                                                          std::int64_t max_work) {
    RestBottleneck table(tables, objective, microbatches, schedule);
    const auto a_pair = table.world_ * table.world_ * table.depth_ / 2 + 1;
    const auto cells = tables.tails().size() * static_cast<std::size_t>((table.world_ + 1) * table.depth_);
    if (cells > objective.constraints().budget.rest_cells || !table.collect_pairs(max_work / a_pair))
      return std::nullopt;
    table.work_ = static_cast<std::int64_t>(table.pairs_.size()) * a_pair;
    table.fill();
    return table;
  }

  /// Least seconds of the slowest stage among the stages of all nodes outside a tail; infinite if memory allows none.
  /// @param later  number of stages chosen already
  [[nodiscard]] double operator()(DownsetId tail, int ranks, int later) const {
    return cells_[cell(tail, ranks, std::min(later, depth_ - 1))].seconds;
  }
  [[nodiscard]] std::int64_t work() const { return work_; }

  /// The staging behind `(*this)(empty tail, ranks, 0)`; nullopt if memory allows none.
  [[nodiscard]] std::optional<Staging> staging(int ranks) const {
    Staging staging{std::vector<int>(tables_->tails().node_count(), 0), {}, microbatches_, schedule_};
    std::vector<NodeMask> stages;
    for (DownsetId tail = tables_->tails().empty_set(); tail != tables_->tails().all_nodes();) {
      const Cell& next = cells_[cell(tail, ranks, std::min(static_cast<int>(stages.size()), depth_ - 1))];
      if (next.replicas == 0) return std::nullopt;
      stages.push_back(mask_of(next.to) & ~mask_of(tail));
      staging.replicas.insert(staging.replicas.begin(), next.replicas);
      ranks -= next.replicas;
      tail = next.to;
    }
    for (std::size_t i = 0; i < stages.size(); ++i) {
      for (NodeMask rest = stages[stages.size() - 1 - i]; rest != 0; rest &= rest - 1) {
        staging.stage_of[static_cast<std::size_t>(std::countr_zero(rest))] = static_cast<int>(i);
      }
    }
    return staging;
  }

 private:
  struct Cell {
    double seconds = std::numeric_limits<double>::infinity();
    DownsetId to;
    int replicas = 0;
  };
  struct Pair {
    DownsetId from, to;
    NodeMask nodes = 0;
  };
  RestBottleneck(CutTables& tables, const StepObjective& objective, int microbatches, ScheduleKind schedule)
      : tables_(&tables),
        objective_(&objective),
        microbatches_(microbatches),
        schedule_(schedule),
        forwards_first_(puts_forwards_first(schedule) || !objective.work().loss_mode),
        world_(objective.constraints().world),
        depth_(std::min<int>(world_, static_cast<int>(tables.tails().node_count()))) {
    for (int replicas = 1; replicas <= world_; ++replicas) {
      regular_ = regular_ && objective.slices().at(microbatches, replicas, 0).regular &&
                 objective.slices().at(microbatches, replicas, 1).regular;
    }
  }

  /// Pairs of nested tails whose difference can be a stage, by descending smaller tail.
  [[nodiscard]] bool collect_pairs(std::int64_t most) {
    const auto& tails = tables_->tails();
    for (std::size_t i = tails.size() - 1; i-- > 0;) {
      NodeMask nodes = 0;
      bool few = true;
      const DownsetId from = DownsetId::of(i);
      tails.for_each_superset(
          from,
          [&](NodeId node, DownsetId to) {
            nodes |= bit(node);
            if (!few || !tables_->holds(from, to, nodes, world_)) return false;
            pairs_.push_back({from, to, nodes});
            return few = static_cast<std::int64_t>(pairs_.size()) <= most;
          },
          [&](NodeId node) { nodes &= ~bit(node); });
      if (!few) return false;
    }
    return true;
  }

  [[nodiscard]] NodeMask mask_of(DownsetId tail) const {
    NodeMask mask = 0;
    for (const NodeId node : tables_->tails().members(tail)) mask |= bit(node);
    return mask;
  }

  [[nodiscard]] std::size_t cell(DownsetId tail, int ranks, int later) const {
    return (tail.index() * static_cast<std::size_t>(world_ + 1) + static_cast<std::size_t>(ranks)) *
               static_cast<std::size_t>(depth_) +
           static_cast<std::size_t>(later);
  }

  void fill() {
    const auto& tails = tables_->tails();
    cells_.assign(tails.size() * static_cast<std::size_t>(world_ + 1) * static_cast<std::size_t>(depth_), {});
    for (int ranks = 0; ranks <= world_; ++ranks) {
      for (int later = 0; later < depth_; ++later) cells_[cell(tails.all_nodes(), ranks, later)].seconds = 0;
    }
    for (const Pair& pair : pairs_) {
      const StagePath around = surroundings(pair.nodes);
      const int each = objective_->constraints().replicas_of_each;
      const int most = (pair.nodes & tables_->whole_batch()) != 0 ? 1 : each > 0 ? each : world_;
      for (int replicas = std::max(1, each); replicas <= most; ++replicas) try_stage(pair, around, replicas);
    }
  }

  void try_stage(const Pair& pair, StagePath path, int replicas) {
    const auto& tails = tables_->tails();
    const bool all = pair.from == tails.empty_set() && pair.to == tails.all_nodes();
    for (int later = 0; later < depth_; ++later) {
      // A single stage on all ranks keeps each rank's own samples.
      const bool only = all && later == 0;
      const auto& size = tables_->sized(microbatches_, replicas, only);
      const auto &low = size.sums[pair.from.index()], &high = size.sums[pair.to.index()];
      const int in_flight = peak_in_flight(schedule_, objective_->work().loss_mode, 0, later + 1, microbatches_);
      const double recompute =
          tables_->recomputing_to_fit(pair.from, pair.to, pair.nodes, in_flight, microbatches_, replicas, only);
      if (recompute == std::numeric_limits<double>::infinity()) continue;
      const double all_recomputed = recompute > 0 ? recompute * size.slices->busy_times() : 0;
      path.forward = high.forward - low.forward;
      path.backward = high.backward - low.backward + recompute;
      path.busy = high.busy - low.busy + all_recomputed;
      const double own = pipeline_bound(path, microbatches_, later, forwards_first_, regular_);
      for (int ranks = replicas; ranks <= world_; ++ranks) {
        const double rest = cells_[cell(pair.to, ranks - replicas, std::min(later + 1, depth_ - 1))].seconds;
        Cell& best = cells_[cell(pair.from, ranks, later)];
        if (std::max(own, rest) < best.seconds) best = {std::max(own, rest), pair.to, replicas};
      }
    }
  }

  /// The paths around a stage, whatever its replicas.
  [[nodiscard]] StagePath surroundings(NodeMask nodes) const {
    const auto& paths = tables_->paths(microbatches_);
    StagePath out;
    const double message = tables_->least_message();
    const auto longest = [](NodeMask mask, const std::vector<double>& path, double messages) {
      double most = 0;
      for (; mask != 0; mask &= mask - 1)
        most = std::max(most, path[static_cast<std::size_t>(std::countr_zero(mask))] + messages);
      return most;
    };
    NodeMask before = 0, before_gradient = 0, after = 0, after_gradient = 0;
    for (NodeMask rest = nodes; rest != 0; rest &= rest - 1) {
      const NodeId node(std::countr_zero(rest));
      before |= tables_->predecessors(node);
      before_gradient |= tables_->gradient_predecessors(node);
      after |= tables_->successors(node);
      after_gradient |= tables_->gradient_successors(node);
    }
    out.head = longest(before & ~nodes, paths.forward, message);
    out.foot = longest(before_gradient & ~nodes, paths.backward, message);
    out.below = longest(after_gradient & ~nodes, paths.round_below, 2 * message);
    out.forward_below = longest(after & ~nodes, paths.forward_below, message);
    return out;
  }

  CutTables* tables_;
  const StepObjective* objective_;
  int microbatches_;
  ScheduleKind schedule_;
  bool forwards_first_;
  bool regular_ = true;
  int world_, depth_;
  std::int64_t work_ = 0;
  std::vector<Pair> pairs_;
  std::vector<Cell> cells_;  // [tail][ranks][later]
};

}  // namespace autopar::detail
