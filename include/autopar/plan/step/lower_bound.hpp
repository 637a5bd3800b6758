#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include <autopar/plan/model/pipeline_bound.hpp>
#include <autopar/plan/step/stage_table.hpp>
#include <autopar/schedule/traits.hpp>

namespace autopar::detail {

/// A stage of a partial staging; the last stage of the pipeline is chosen first.
struct ChosenStage : StageNodes {
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
  StageTable* table;  ///< of stages of this degree
};

/// A lower bound on the step, however the remaining nodes are staged: `pipeline_bound` of each chosen stage, and the
/// least device-seconds of the remaining nodes on the remaining devices. Costs are for the smallest slice, messages are
/// as short as possible, and waits on links are left out, which only lowers the bound.
class LowerBound {
 public:
  LowerBound(StageTable& table, const StepObjective& objective, int microbatches, ScheduleKind schedule)
      : table_(table),
        objective_(objective),
        microbatches_(microbatches),
        message_(table.least_message()),
        forwards_first_(puts_forwards_first(schedule) || !objective.work().loss_mode),
        is_gathered_as_it_is_(std::ranges::all_of(objective.work().parameters, [](const ParameterProfile& parameter) {
          return parameter.computed_with() == parameter.bytes;
        })) {}

  /// A stage in front of `later` stages, with everything that depends on these alone.
  /// @param only   whether it is the only stage
  /// @param recompute  least seconds by which a backward grows so that the stage fits
  [[nodiscard]] ChosenStage choose(const StageDegree& degree, const StageNodes& nodes, int replicas, bool only,
                                   double recompute, const std::vector<ChosenStage>& later) const {
    ChosenStage stage{nodes, replicas, degree.tensor};
    const auto& size = degree.table->sized(microbatches_, replicas, only);
    const StageTable::Sums sums = size.of(nodes);
    stage.regular = size.slices->regular;
    stage.forward = sums.forward;
    stage.backward = sums.backward + recompute;
    stage.busy = sums.busy + recompute * size.slices->busy_times();
    stage.after = least_after(*degree.table, nodes, sums.largest_backward + recompute, replicas);
    const auto around = table_.neighbours(nodes.nodes);
    stage.before = around.before;
    stage.before_gradient = around.gradient_before;
    for (const ChosenStage& reader : later) {
      if ((around.gradient_after & reader.nodes) != 0)
        stage.below = std::max(stage.below, reader.forward + reader.backward + reader.below + 2 * message_);
    }
    return stage;
  }

  /// @param chosen   last stage of the pipeline first
  /// @param devices  left for the nodes without a stage
  [[nodiscard]] double operator()(const std::vector<ChosenStage>& chosen, int devices) {
    const DownsetId tail = chosen.empty() ? table_.tails().empty_set() : chosen.back().to;
    double bound = 0;
    if (tail != table_.tails().all_nodes()) {
      const auto& work = table_.least_work(microbatches_);
      bound = (work.back() - work[tail.index()]) / std::max(1, devices);
    }
    NodeMask staged = 0;
    bool regular = true;
    for (const ChosenStage& stage : chosen) {
      staged |= stage.nodes;
      regular = regular && stage.regular;
    }
    heads_.assign(chosen.size(), 0);
    feet_.assign(chosen.size(), 0);
    for (std::size_t i = chosen.size(); i-- > 0;) {
      path_to(chosen, i, ~staged);
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
  /// @param hidden  seconds of a backward, in which sums may run
  [[nodiscard]] double least_after(const StageTable& table, const StageNodes& nodes, double hidden,
                                   int replicas) const {
    const Constraints& constraints = objective_.constraints();
    const Bytes own(table.trainable(nodes, true)), read(table.trainable(nodes, false));
    const auto least_sum = [&](Bytes bytes) {
      return replicas > 1 && own > Bytes(0) ? objective_.work().least_all_reduce(bytes, replicas).value() : 0;
    };
    const double sum = least_sum(constraints.buckets.least_sent(own)), gathers = least_sum(own) * kHalfOfASum;
    const Contention contention = with_last_sums(objective_.work().least_contention(replicas));
    const auto after_backward = [&](double sums) {
      return std::max(contention.of_computing * sums, sums - (1 - contention.of_exchange) * hidden);
    };
    double least = std::numeric_limits<double>::infinity();
    for (const int zero : constraints.zero_levels) {
      const Bytes updated = updated_bytes(read, zero, replicas);
      least = std::min(least, after_backward(sum * (zero > 0 ? kHalfOfASum : 1)) +
                                  (is_gathered_as_it_is_ && (zero == 1 || zero == 2) ? gathers : 0) +
                                  least_update(objective_.work(), constraints, updated).value());
    }
    return least;
  }

  /// Longest paths of forwards to a stage and of backwards from it, through stages and nodes before it.
  /// @param rest  the nodes without a stage
  void path_to(const std::vector<ChosenStage>& chosen, std::size_t i, NodeMask rest) {
    const ChosenStage& stage = chosen[i];
    const auto& paths = table_.paths(microbatches_);
    for_each_node(stage.before & rest, [&](NodeId node) {
      heads_[i] = std::max(heads_[i], paths.forward[node.index()] + message_);
      if ((stage.before_gradient & bit(node)) != 0)
        feet_[i] = std::max(feet_[i], paths.backward[node.index()] + message_);
    });
    for (std::size_t j = i + 1; j < chosen.size(); ++j) {
      if ((stage.before & chosen[j].nodes) != 0)
        heads_[i] = std::max(heads_[i], heads_[j] + chosen[j].forward + message_);
      if ((stage.before_gradient & chosen[j].nodes) != 0)
        feet_[i] = std::max(feet_[i], feet_[j] + chosen[j].backward + message_);
    }
  }

  StageTable& table_;
  const StepObjective& objective_;
  int microbatches_;
  double message_;
  bool forwards_first_;
  bool is_gathered_as_it_is_;  // not copies in a smaller element type
  std::vector<double> heads_, feet_;
};

}  // namespace autopar::detail
