#include <autopar/plan/report/step_timeline.hpp>

#include <algorithm>
#include <utility>

#include <autopar/core/error.hpp>
#include <autopar/plan/verify/shape.hpp>

#include "planner/placed_plan.hpp"

namespace autopar {

BarKind bar_kind_of(const Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      return BarKind::kForward;
    case ActionKind::kSend:
      return BarKind::kSend;
    case ActionKind::kReceive:
      return BarKind::kReceive;
    case ActionKind::kAllReduce:
    case ActionKind::kReduceScatter:
    case ActionKind::kAllGather:
      return BarKind::kCollective;
    case ActionKind::kBackwardInput:
      return BarKind::kBackwardInput;
    case ActionKind::kBackwardWeight:
      return BarKind::kBackwardWeight;
    case ActionKind::kBackward:
      break;
  }
  return BarKind::kBackward;
}

namespace {

class TimelineMaker {
 public:
  explicit TimelineMaker(const PlacedPlan& placed) : placed_(placed), plan_(placed.plan) {
    timeline_.busy.assign(static_cast<std::size_t>(plan_.world), {});
    timeline_.stages.resize(timeline_.busy.size());
    bars_.resize(timeline_.busy.size());
    ends_.resize(timeline_.busy.size());
  }

  [[nodiscard]] StepTimeline make() && {
    for (const Phase phase : detail::phases(placed_.work.loss_mode)) add(phase);
    add_updates();
    for (auto& bars : bars_) {
      for (Bar& bar : bars) timeline_.bars.push_back(std::move(bar));
    }
    return std::move(timeline_);
  }

 private:
  void add(Phase phase) {
    const BatchLayout layout{placed_.constraints.local_batches(), plan_.microbatches};
    const GivenOrders orders{plan_.orders, plan_.orders.empty() ? 0 : plan_.microbatches};
    const Pipeline& pipeline = placed_.sized.pipeline;
    const Program program = make_program(pipeline, layout, plan_.schedule, phase, orders);
    const Timeline timeline = simulate(pipeline, program, placed_.stage_costs);
    const Seconds before = timeline_.step;
    for (std::size_t r = 0; r < bars_.size(); ++r) {
      timeline_.busy[r] += timeline.busy[r];
      ends_[r] = before;
      for (std::size_t i = 0; i < timeline.spans[r].size(); ++i) {
        const Action& action = program.ranks[r][i];
        const Span& span = timeline.spans[r][i];
        ends_[r] = std::max(ends_[r], before + span.end);
        if (action.peer == Rank::of(r)) continue;  // stays where it is
        bars_[r].push_back(bar_of(action, Rank::of(r), before + span.start, before + span.end));
      }
    }
    timeline_.step += timeline.step;
  }

  /// A rank updates its stages one after the other.
  void add_updates() {
    std::vector<Seconds> updating(ends_.size());
    const bool gathers = plan_.zero == 1 || plan_.zero == 2;
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      const Seconds update = placed_.stage_costs.update(StageId::of(s), plan_.optimizer_state_factor);
      for (const Rank rank : plan_.stages[s].mesh.ranks()) {
        const std::size_t r = rank.index();
        timeline_.stages[r].push_back(static_cast<int>(s));
        const Seconds begin = ends_[r] + updating[r], end = ends_[r] + (updating[r] + update);
        updating[r] += update;
        if (update > Seconds{}) {
          const std::string what = "optimizer's update of stage " + std::to_string(s) + (gathers ? ", gathered" : "");
          bars_[r].push_back({BarKind::kUpdate, rank, -1, what, begin, end, StageId::of(s)});
        }
        timeline_.busy[r] += update;
        timeline_.step = std::max(timeline_.step, end);
      }
    }
  }

  const PlacedPlan& placed_;
  const Plan& plan_;
  StepTimeline timeline_;
  std::vector<std::vector<Bar>> bars_;  // by rank
  std::vector<Seconds> ends_;
};

}  // namespace

Bar bar_of(const Action& action, Rank rank, Seconds begin, Seconds end) {
  const bool has_stage = is_compute(action.kind);
  return {
      bar_kind_of(action), rank, action.microbatch, describe(action), begin, end, has_stage ? action.stage : StageId{}};
}

std::string stages_of(const StepTimeline& timeline, Rank rank) {
  const auto& stages = timeline.stages[rank.index()];
  std::string text;
  for (const int stage : stages) text += (text.empty() ? "" : ", ") + std::to_string(stage);
  return stages.empty() ? "idle" : (stages.size() == 1 ? "stage " : "stages ") + text;
}

StepTimeline timeline_of(const Plan& plan, const ModelProfile& profile, const ProfiledCost& costs) {
  const auto fault = verify::fault_in_shape(profile, plan);
  if (!fault.empty()) throw InvalidArgument("the plan does not divide this model: " + fault);
  const PlacedPlan placed(plan, profile, costs);
  return TimelineMaker(placed).make();
}

}  // namespace autopar
