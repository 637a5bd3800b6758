#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <autopar/plan/model/pipeline_bound.hpp>
#include <autopar/plan/step/stage_table.hpp>
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
  [[nodiscard]] static std::optional<RestBottleneck> make(StageTable& table, const StepObjective& objective,
                                                          int microbatches, ScheduleKind schedule,
                                                          std::int64_t max_work) {
    RestBottleneck rest(table, objective, microbatches, schedule);
    const auto a_stage = rest.world_ * rest.world_ * rest.depth_ / 2 + 1;
    const auto cells = table.tails().size() * static_cast<std::size_t>((rest.world_ + 1) * rest.depth_);
    if (cells > objective.constraints().budget.rest_cells) return std::nullopt;
    const auto stages = rest.stages(max_work / a_stage);
    if (!stages) return std::nullopt;
    rest.work_ = static_cast<std::int64_t>(stages->size()) * a_stage;
    rest.fill(*stages);
    return rest;
  }

  /// Least seconds of the slowest stage among the stages of all nodes outside a tail; infinite if memory allows none.
  /// @param later  number of stages chosen already
  [[nodiscard]] double operator()(DownsetId tail, int ranks, int later) const {
    return cells_[cell(tail, ranks, std::min(later, depth_ - 1))].seconds;
  }
  [[nodiscard]] std::int64_t work() const { return work_; }

  /// The staging behind `(*this)(empty tail, ranks, 0)`; nullopt if memory allows none.
  [[nodiscard]] std::optional<Staging> staging(int ranks) const {
    const auto& tails = table_->tails();
    std::vector<Cell> stages;
    for (DownsetId tail = tails.empty_set(); tail != tails.all_nodes(); tail = stages.back().to) {
      stages.push_back(cells_[cell(tail, ranks, std::min(static_cast<int>(stages.size()), depth_ - 1))]);
      if (stages.back().replicas == 0) return std::nullopt;
      ranks -= stages.back().replicas;
    }
    return staging_of(stages, tails.node_count(), microbatches_, schedule_);
  }

 private:
  struct Cell : StageNodes {
    double seconds = std::numeric_limits<double>::infinity();
    int replicas = 0;
  };
  RestBottleneck(StageTable& table, const StepObjective& objective, int microbatches, ScheduleKind schedule)
      : table_(&table),
        objective_(&objective),
        microbatches_(microbatches),
        schedule_(schedule),
        forwards_first_(puts_forwards_first(schedule) || !objective.work().loss_mode),
        world_(objective.constraints().world),
        depth_(std::min<int>(world_, static_cast<int>(table.tails().node_count()))),
        message_(table.least_message()) {
    for (int replicas = 1; replicas <= world_; ++replicas) {
      regular_ = regular_ && objective.slices().at(microbatches, replicas, 0).regular &&
                 objective.slices().at(microbatches, replicas, 1).regular;
    }
  }

  /// All possible stages, by descending smaller tail; nullopt if there are more than `most`.
  [[nodiscard]] std::optional<std::vector<StageNodes>> stages(std::int64_t most) const {
    std::vector<StageNodes> out;
    bool few = true;
    for (std::size_t i = table_->tails().size() - 1; few && i-- > 0;) {
      table_->for_each_stage(DownsetId::of(i), [&](const StageNodes& stage) {
        if (!few || !table_->holds(stage, world_)) return false;
        out.push_back(stage);
        return few = static_cast<std::int64_t>(out.size()) <= most;
      });
    }
    return few ? std::optional(std::move(out)) : std::nullopt;
  }

  [[nodiscard]] std::size_t cell(DownsetId tail, int ranks, int later) const {
    return (tail.index() * static_cast<std::size_t>(world_ + 1) + static_cast<std::size_t>(ranks)) *
               static_cast<std::size_t>(depth_) +
           static_cast<std::size_t>(later);
  }

  void fill(const std::vector<StageNodes>& stages) {
    const auto& tails = table_->tails();
    cells_.assign(tails.size() * static_cast<std::size_t>(world_ + 1) * static_cast<std::size_t>(depth_), {});
    for (int ranks = 0; ranks <= world_; ++ranks) {
      for (int later = 0; later < depth_; ++later) cells_[cell(tails.all_nodes(), ranks, later)].seconds = 0;
    }
    const int each = objective_->constraints().replicas_of_each;
    for (const StageNodes& stage : stages) {
      const StagePath around = surroundings(stage.nodes);
      const int most = table_->mixes_samples(stage) ? 1 : each > 0 ? each : world_;
      for (int replicas = std::max(1, each); replicas <= most; ++replicas) try_stage(stage, around, replicas);
    }
  }

  void try_stage(const StageNodes& stage, StagePath path, int replicas) {
    const bool all = table_->is_only(stage);
    for (int later = 0; later < depth_; ++later) {
      // A single stage on all ranks keeps each rank's own samples.
      const bool only = all && later == 0;
      const auto& size = table_->sized(microbatches_, replicas, only);
      const int in_flight = peak_in_flight(schedule_, objective_->work().loss_mode, 0, later + 1, microbatches_);
      const double recompute = table_->recomputing_to_fit(stage, in_flight, microbatches_, replicas, only);
      if (recompute == std::numeric_limits<double>::infinity()) continue;
      const StageTable::Sums sums = size.of(stage);
      path.forward = sums.forward;
      path.backward = sums.backward + recompute;
      path.busy = sums.busy + (recompute > 0 ? recompute * size.slices->busy_times() : 0);
      const double own = pipeline_bound(path, microbatches_, later, forwards_first_, regular_);
      for (int ranks = replicas; ranks <= world_; ++ranks) {
        const double rest = cells_[cell(stage.to, ranks - replicas, std::min(later + 1, depth_ - 1))].seconds;
        Cell& best = cells_[cell(stage.from, ranks, later)];
        if (std::max(own, rest) < best.seconds) best = {stage, std::max(own, rest), replicas};
      }
    }
  }

  /// The paths around a stage, whatever its replicas.
  [[nodiscard]] StagePath surroundings(NodeMask nodes) const {
    const auto& paths = table_->paths(microbatches_);
    const auto longest = [](NodeMask mask, const std::vector<double>& path, double messages) {
      double most = 0;
      for_each_node(mask, [&](NodeId node) { most = std::max(most, path[node.index()] + messages); });
      return most;
    };
    const auto around = table_->neighbours(nodes);
    return {.head = longest(around.before, paths.forward, message_),
            .foot = longest(around.gradient_before, paths.backward, message_),
            .below = longest(around.gradient_after, paths.round_below, 2 * message_),
            .forward_below = longest(around.after, paths.forward_below, message_)};
  }

  StageTable* table_;
  const StepObjective* objective_;
  int microbatches_;
  ScheduleKind schedule_;
  bool forwards_first_;
  bool regular_ = true;
  int world_, depth_;
  double message_;
  std::int64_t work_ = 0;
  std::vector<Cell> cells_;  // [tail][ranks][later]
};

}  // namespace autopar::detail
