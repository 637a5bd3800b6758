#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <vector>

#include <autopar/plan/model/slices.hpp>
#include <autopar/plan/step/staging_costs.hpp>
#include <autopar/schedule/given_orders.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/simulate.hpp>

namespace autopar::detail {

using Orders = std::vector<std::vector<ComputeAction>>;  ///< [rank]

/// The phases that a call consists of.
[[nodiscard]] inline std::vector<Phase> phases(bool loss_mode) {
  if (loss_mode) return {Phase::kStep};
  return {Phase::kForward, Phase::kBackward};
}

/// The phases of a call, one after the other, without the optimizer's update.
struct CallTimeline {
  explicit CallTimeline(std::size_t ranks) : busy(ranks), end(ranks), communicating(ranks), summing(ranks) {}

  void add(const Program& actions, const Timeline& timeline) {
    const Seconds before = step;
    step += timeline.step;
    for (std::size_t r = 0; r < busy.size(); ++r) {
      busy[r] += timeline.busy[r];
      end[r] = before;
      for (std::size_t i = 0; i < timeline.spans[r].size(); ++i) {
        const Span& span = timeline.spans[r][i];
        const ActionKind kind = actions.ranks[r][i].kind;
        end[r] = std::max(end[r], before + span.end);
        if (kind == ActionKind::kSend || kind == ActionKind::kReceive) communicating[r] += span.end - span.start;
        if (kind == ActionKind::kAllReduce) summing[r] += span.end - span.start;
      }
    }
  }

  Seconds step{};
  std::vector<Seconds> busy, end, communicating, summing;  // by rank
};

/// The programs of a staging, simulated once. Gradient sums can be added for all costs under which compute actions last
/// as long.
class PlayedPipeline {
 public:
  /// @param orders  [rank] of a synthesised schedule, else none @pre the workload and the pipeline outlive it
  PlayedPipeline(const Workload& work, const Staging& staging, const SizedPipeline& sized, const SliceTable& slices,
                 const Orders& orders, const StagingCosts& costs)
      : costs_(costs) {
    const BatchLayout layout{slices.local(), staging.microbatches};
    const GivenOrders given{orders, staging.microbatches};
    for (const Phase phase : phases(work.loss_mode)) {
      programs_.push_back(make_program(sized.pipeline, layout, staging.schedule, phase, given));
      simulations_.emplace_back(sized.pipeline, programs_.back(), costs_).play();
    }
  }
  PlayedPipeline(const PlayedPipeline&) = delete;  // simulations refer to its programs and costs
  PlayedPipeline& operator=(const PlayedPipeline&) = delete;

  [[nodiscard]] bool holds_for(const StagingCosts& costs) const { return costs_.computes_last_as_long(costs); }

  /// With gradient sums at these costs.
  [[nodiscard]] CallTimeline timeline(const StagingCosts& costs) {
    CallTimeline timeline(programs_.front().ranks.size());
    for (std::size_t p = 0; p < programs_.size(); ++p) timeline.add(programs_[p], simulations_[p].sum(costs));
    return timeline;
  }

 private:
  StagingCosts costs_;  // with which it was simulated
  std::deque<Program> programs_;
  std::deque<Simulation<StagingCosts>> simulations_;
};

}  // namespace autopar::detail
