#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

#include <autopar/plan/model/pipeline_bound.hpp>
#include <autopar/plan/search/cut_tables.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// A stage of a partial staging; the last stage of the pipeline is chosen first.
struct ChosenStage {
  DownsetId from, to;  ///< tails: its nodes are those of `to` without those of `from`
  NodeMask nodes = 0;
  int replicas = 1;
  int tensor = 1;  ///< one of the degrees of a search, see `StageDegree`
  bool regular = true;
  double forward = 0, backward = 0;  ///< smallest slice
  double busy = 0;
  double after = 0;                          ///< gradient sums that no backward hides, and the update
  NodeMask before = 0, before_gradient = 0;  ///< nodes whose values it reads, gradients it returns
  double below = 0;                          ///< longest path of forward and backward through later stages
};

/// A tensor degree that stages may have.
struct StageDegree {
  int tensor = 1;     ///< ranks of a replica
  CutTables* tables;  ///< of stages of this degree
};

/// A lower bound on the step, however the remaining nodes are staged: `pipeline_bound` of each chosen stage, and the
/// least device-seconds of the remaining nodes on the remaining devices. Costs are for the smallest slice, messages are
/// as short as possible, and waits on links are left out, which only lowers the bound.
class LowerBound {
 public:
  LowerBound(CutTables& tables, const StepObjective& objective, int microbatches, ScheduleKind schedule)
      : tables_(tables),
        objective_(objective),
        microbatches_(microbatches),
        message_(tables.least_message()),
        forwards_first_(puts_forwards_first(schedule) || !objective.work().loss_mode),
        is_gathered_as_it_is_(std::ranges::all_of(objective.work().parameters, [](const ParameterProfile& parameter) {
          return parameter.computed_with() == parameter.bytes;
        })) {}

  /// The stage between two tails in front of `later` stages, with everything that depends on these alone.
  /// @param only   whether it is the only stage
  /// @param recompute  least seconds by which a backward grows so that the stage fits
  [[nodiscard]] ChosenStage choose(const StageDegree& degree, DownsetId from, DownsetId to, NodeMask nodes,
                                   int replicas, bool only, double recompute, const std::vector<ChosenStage>& later) {
    ChosenStage stage{.from = from, .to = to, .nodes = nodes, .replicas = replicas, .tensor = degree.tensor};
    const auto& size = degree.tables->sized(microbatches_, replicas, only);
    const auto &low = size.sums[from.index()], &high = size.sums[to.index()];
    stage.forward = high.forward - low.forward;
    const SliceSizes& slices = *size.slices;
    stage.backward = high.backward - low.backward + recompute;
    stage.busy = high.busy - low.busy + recompute * slices.busy_times();
    stage.regular = slices.regular;
    const Workload& work = objective_.work();
    const Bytes own(degree.tables->trainable(from, to, nodes, true));
    const Bytes read(degree.tables->trainable(from, to, nodes, false));
    const double sum = replicas > 1 && own > Bytes(0) ? work.least_all_reduce(own, replicas).value() : 0;
    stage.after = least_after(sum, high.largest_backward - low.largest_backward + recompute, read, replicas);
    NodeMask below = 0;
    for (NodeMask rest = nodes; rest != 0; rest &= rest - 1) {
      const NodeId node(std::countr_zero(rest));
      stage.before |= tables_.predecessors(node);
      stage.before_gradient |= tables_.gradient_predecessors(node);
      below |= tables_.gradient_successors(node);
    }
    stage.before &= ~nodes;
    stage.before_gradient &= ~nodes;
    for (const ChosenStage& reader : later) {
      if ((below & reader.nodes) != 0)
        stage.below = std::max(stage.below, reader.forward + reader.backward + reader.below + 2 * message_);
    }
    return stage;
  }

  /// @param chosen   last stage of the pipeline first
  /// @param devices  left for the nodes without a stage
  [[nodiscard]] double operator()(const std::vector<ChosenStage>& chosen, int devices) {
    const DownsetId tail = chosen.empty() ? tables_.tails().empty_set() : chosen.back().to;
    double bound = 0;
    NodeMask staged = 0;
    for (const ChosenStage& stage : chosen) staged |= stage.nodes;
    const NodeMask rest = tables_.all() & ~staged;
    if (rest != 0) {
      const auto& work = tables_.least_work(microbatches_);
      bound = (work[tables_.tails().all_nodes().index()] - work[tail.index()]) / std::max(1, devices);
    }
    heads_.assign(chosen.size(), 0);
    feet_.assign(chosen.size(), 0);
    bool regular = true;
    for (const ChosenStage& stage : chosen) regular = regular && stage.regular;
    for (std::size_t i = chosen.size(); i-- > 0;) {
      path_to(chosen, i, rest);
      const ChosenStage& stage = chosen[i];
      const StagePath own{.forward = stage.forward,
                          .backward = stage.backward,
                          .busy = stage.busy,
                          .head = heads_[i],
                          .foot = std::max(feet_[i], stage.after),
                          .below = stage.below};
      bound = std::max(bound, pipeline_bound(own, microbatches_, static_cast<int>(i), forwards_first_, regular));
    }
    return bound;
  }

 private:
  /// Least seconds after the last backward: gradient sums that no backward hides, the update, and what ZeRO gathers
  /// after it unless that may be copies.
  [[nodiscard]] double least_after(double sum, double hidden, Bytes read, int replicas) const {
    const Constraints& constraints = objective_.constraints();
    double least = std::numeric_limits<double>::infinity();
    for (const int zero : constraints.zero_levels) {
      const double half = sum * kHalfOfASum;
      const Bytes updated = updated_bytes(read, zero, static_cast<std::size_t>(replicas));
      least = std::min(least, std::max(0.0, (zero > 0 ? half : sum) - hidden) +
                                  (is_gathered_as_it_is_ && (zero == 1 || zero == 2) ? half : 0) +
                                  least_update(objective_.work(), constraints, updated).value());
    }
    return least;
  }

  /// Longest paths of forwards to a stage and of backwards from it, through stages and nodes before it.
  void path_to(const std::vector<ChosenStage>& chosen, std::size_t i, NodeMask rest) {
    const ChosenStage& stage = chosen[i];
    const auto& paths = tables_.paths(microbatches_);
    for (NodeMask mask = stage.before & rest; mask != 0; mask &= mask - 1) {
      const auto node = static_cast<std::size_t>(std::countr_zero(mask));
      heads_[i] = std::max(heads_[i], paths.forward[node] + message_);
      if ((stage.before_gradient >> node & 1) != 0) feet_[i] = std::max(feet_[i], paths.backward[node] + message_);
    }
    for (std::size_t j = i + 1; j < chosen.size(); ++j) {
      if ((stage.before & chosen[j].nodes) != 0)
        heads_[i] = std::max(heads_[i], heads_[j] + chosen[j].forward + message_);
      if ((stage.before_gradient & chosen[j].nodes) != 0)
        feet_[i] = std::max(feet_[i], feet_[j] + chosen[j].backward + message_);
    }
  }

  CutTables& tables_;
  const StepObjective& objective_;
  int microbatches_;
  double message_;
  bool forwards_first_;
  bool is_gathered_as_it_is_;  // not copies in a smaller element type
  std::vector<double> heads_, feet_;
};

}  // namespace autopar::detail
