#include "timeline.hpp"

#include <algorithm>

#include <autopar/core/error.hpp>
#include <autopar/plan/model/tensor_shards.hpp>
#include <autopar/plan/report/make_plan.hpp>
#include <autopar/plan/step/objective.hpp>
#include <autopar/plan/verify/shape.hpp>

namespace autopar::tool {

namespace {

BarKind kind_of(const Action& action) {
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

class TimelineMaker {
 public:
  TimelineMaker(const Plan& plan, const ModelProfile& profile, const ProfiledCost& costs)
      : plan_(plan),
        costs_(costs),
        whole_(make_workload(profile, costs_)),
        staging_(staging_of(plan, profile.graph.node_count())),
        work_(staging_.tensor.empty() ? whole_ : in_shards(whole_, staging_, plan.sequence_parallel)),
        sized_(make_pipeline(work_, staging_, meshes_of(plan), plan.world, plan.buckets)),
        stage_costs_(work_, staging_, sized_, memory_optimizations_of(plan)) {
    timeline_.busy.assign(static_cast<std::size_t>(plan.world), {});
    timeline_.stages.resize(timeline_.busy.size());
    bars_.resize(timeline_.busy.size());
    ends_.resize(timeline_.busy.size());
  }

  [[nodiscard]] StepTimeline make() && {
    if (work_.loss_mode) {
      add(Phase::kStep);
    } else {
      add(Phase::kForward);
      add(Phase::kBackward);
    }
    add_updates();
    for (auto& bars : bars_) {
      for (Bar& bar : bars) timeline_.bars.push_back(std::move(bar));
    }
    return std::move(timeline_);
  }

 private:
  void add(Phase phase) {
    Constraints constraints;
    constraints.world = plan_.world;
    constraints.batch = plan_.batch;
    const BatchLayout layout{constraints.local_batches(), plan_.microbatches};
    const GivenOrders orders{plan_.orders, plan_.orders.empty() ? 0 : plan_.microbatches};
    const Program program = make_program(sized_.pipeline, layout, plan_.schedule, phase, orders);
    const Timeline timeline = simulate(sized_.pipeline, program, stage_costs_);
    const Seconds before = timeline_.step;
    for (std::size_t r = 0; r < bars_.size(); ++r) {
      timeline_.busy[r] += timeline.busy[r];
      ends_[r] = before;
      for (std::size_t i = 0; i < timeline.spans[r].size(); ++i) {
        const Action& action = program.ranks[r][i];
        const Span& span = timeline.spans[r][i];
        ends_[r] = std::max(ends_[r], before + span.end);
        if (action.peer == Rank::of(r)) continue;  // stays where it is
        bars_[r].push_back({kind_of(action), Rank::of(r), action.microbatch, describe(action), before + span.start,
                            before + span.end});
      }
    }
    timeline_.step += timeline.step;
  }

  /// A rank updates its stages one after the other.
  void add_updates() {
    std::vector<Seconds> updating(ends_.size());
    const bool gathers = plan_.zero == 1 || plan_.zero == 2;
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      const Seconds update = stage_costs_.update(StageId::of(s), plan_.optimizer_state_factor);
      for (const Rank rank : plan_.stages[s].mesh.ranks()) {
        const std::size_t r = rank.index();
        timeline_.stages[r].push_back(static_cast<int>(s));
        const Seconds begin = ends_[r] + updating[r], end = ends_[r] + (updating[r] + update);
        updating[r] += update;
        if (update > Seconds{}) {
          const std::string what = "optimizer's update of stage " + std::to_string(s);
          bars_[r].push_back({BarKind::kUpdate, rank, -1, gathers ? what + ", gathered" : what, begin, end});
        }
        timeline_.busy[r] += update;
        timeline_.step = std::max(timeline_.step, end);
      }
    }
  }

  const Plan& plan_;
  const ProfiledCost& costs_;
  Workload whole_;  // nothing of which is computed in slices
  Staging staging_;
  Workload work_;
  SizedPipeline sized_;
  StagingCosts stage_costs_;
  StepTimeline timeline_;
  std::vector<std::vector<Bar>> bars_;  // by rank
  std::vector<Seconds> ends_;
};

}  // namespace

std::string name_of(BarKind kind) {
  switch (kind) {
    case BarKind::kForward:
      return "forward";
    case BarKind::kBackward:
      return "backward";
    case BarKind::kBackwardInput:
      return "backward-input";
    case BarKind::kBackwardWeight:
      return "backward-weight";
    case BarKind::kSend:
      return "send";
    case BarKind::kReceive:
      return "receive";
    case BarKind::kCollective:
      return "reduce";
    case BarKind::kUpdate:
      return "update";
  }
  return "unknown";
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
  return TimelineMaker(plan, profile, costs).make();
}

}  // namespace autopar::tool
