// What a gap between a plan and its lower bound comes from: deep pipelines, shrunk until all their stagings can be
// tried. Prints one JSON line a case: the planner's step, the best step of all stagings, and the bound, as ratios to
// the best. A planner's ratio above 1 says that the plan is off, a bound below 1 that the bound is.
//
//   plan_gap [layers = 6] [devices = 4]
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/planner.hpp>

#include "plan_time/models.hpp"

namespace ap = autopar;

namespace {

/// All stagings of a chain: every cut, every assignment of stages to positions, all replicas, micro-batches, schedules.
class AllStagings {
 public:
  explicit AllStagings(const ap::StepObjective& objective)
      : objective_(objective), constraints_(objective.constraints()), best_(constraints_.memory) {}

  [[nodiscard]] const ap::Candidates& best() {
    const auto nodes = objective_.work().graph.node_count();
    for (std::uint64_t cuts = 0; cuts < std::uint64_t{1} << (nodes - 1); ++cuts) {
      staging_ = {};
      int stage = 0;
      for (std::size_t node = 0; node < nodes; ++node) {
        staging_.stage_of.push_back(stage);
        stage += static_cast<int>(cuts >> node & 1);
      }
      assign(staging_.stage_of.back() + 1, 0);
    }
    return best_;
  }
  [[nodiscard]] std::int64_t count() const { return count_; }

 private:
  /// Gives each stage a position: one that exists, or the next one.
  void assign(int stages, int positions) {
    if (static_cast<int>(staging_.position_of.size()) == stages) return share_ranks(std::vector<int>{}, positions);
    for (int position = 0; position <= std::min(positions, constraints_.world - 1); ++position) {
      staging_.position_of.push_back(position);
      assign(stages, std::max(positions, position + 1));
      staging_.position_of.pop_back();
    }
  }

  void share_ranks(std::vector<int> replicas, int positions) {
    const auto given = static_cast<int>(replicas.size());
    if (given == positions) return try_all(replicas);
    int left = constraints_.world - (positions - given - 1);
    for (const int each : replicas) left -= each;
    replicas.push_back(1);
    for (; replicas.back() <= left; ++replicas.back()) share_ranks(replicas, positions);
  }

  void try_all(const std::vector<int>& replicas) {
    ap::Staging staging = staging_;
    for (const int position : staging.position_of)
      staging.replicas.push_back(replicas[static_cast<std::size_t>(position)]);
    if (staging.replicas.size() == replicas.size()) staging.position_of.clear();
    for (const int microbatches : constraints_.microbatches) {
      staging.microbatches = microbatches;
      for (const ap::ScheduleKind schedule : constraints_.schedules) {
        staging.schedule = schedule;
        if (!ap::meets(constraints_, objective_.work(), staging)) continue;
        best_.offer({staging, objective_(staging)});
        ++count_;
      }
    }
  }

  const ap::StepObjective& objective_;
  const ap::Constraints& constraints_;
  ap::Candidates best_;
  ap::Staging staging_;
  std::int64_t count_ = 0;
};

void compare(const std::string& name, const ap::ModelProfile& model, const ap::Cluster& cluster,
             const ap::PlanRequest& request) {
  const ap::RooflineCost cost(cluster);
  const ap::Workload work = ap::make_workload(model, cost);
  const ap::Constraints constraints = ap::resolve(request, work, cluster);
  const ap::StepObjective objective(work, cluster, constraints);
  AllStagings all(objective);
  const ap::Candidate best = all.best().best();
  const ap::Plan plan = ap::Planner<>{}.plan(model, cluster, request);
  std::cout << "{\"case\": \"" << name << "\", \"stagings\": " << all.count()
            << ", \"best_ms\": " << best.terms.step.value() * 1e3 << ", \"best\": \"" << ap::describe(best.staging)
            << "\", \"planner\": " << plan.step / best.terms.step
            << ", \"bound\": " << plan.certificate.lower_bound / best.terms.step << ", \"plan\": \""
            << ap::describe(plan) << "\"}" << std::endl;
}

/// A chain of equal layers of h x h.
ap::ModelProfile layers(int count, double h, bool loss_mode) {
  models::Synthetic net;
  std::vector<ap::NodeId> before;
  for (int i = 0; i < count; ++i)
    before = {net.add("aten::linear", {ap::OpClass::kMatmul, 2 * h * h, 8 * h, 4 * h, 4 * h, h * h}, before)};
  ap::ModelProfile model = net.finish(ap::NodeId(0), 4 * h, before.front());
  model.loss_mode = loss_mode;
  if (!loss_mode) model.outputs.front().bytes = {4 * h, 0};
  return model;
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 6, devices = argc > 2 ? std::atoi(argv[2]) : 4;
  ap::PlanRequest request;
  request.runtime = ap::runtime_capabilities();
  request.options.tensor_parallel = 1;
  request.batch = 64 * devices;  // the tutorial's, a device
  const ap::Cluster a100s = models::a100s(devices);
  compare("tutorial", layers(count, 5000, false), a100s, request);
  compare("tutorial with train_step", layers(count, 5000, true), a100s, request);
  // What fits neither whole on a rank nor without recomputation, as BERT of 4.9 billion parameters on 32 V100.
  request.batch = 8 * devices;
  request.options.device_memory = ap::Bytes(std::int64_t{count} * 5000 * 5000 * 4 * 4 * 2 / devices);
  compare("scarce memory", layers(count, 5000, true), models::v100s(devices), request);
}
