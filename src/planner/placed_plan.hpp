#pragma once

#include <autopar/cost/model_profile.hpp>
#include <autopar/cost/profiled.hpp>
#include <autopar/plan/memory/optimizations.hpp>
#include <autopar/plan/model/slices.hpp>
#include <autopar/plan/model/tensor_shards.hpp>
#include <autopar/plan/plan.hpp>
#include <autopar/plan/report/make_plan.hpp>
#include <autopar/plan/step/objective.hpp>
#include <autopar/plan/step/timeline.hpp>

namespace autopar {

/// A plan on its ranks, in the terms of simulator and memory.
struct PlacedPlan {
  /// @pre the plan divides this model (`verify::fault_in_shape`); the arguments outlive it
  PlacedPlan(const Plan& given, const ModelProfile& profile, const ProfiledCost& costs)
      : plan(given),
        constraints(constraints_of(given)),
        whole(make_workload(profile, costs)),
        staging(staging_of(given, profile.graph.node_count())),
        work(staging.tensor.empty() ? whole : in_shards(whole, staging, given.sequence_parallel)),
        sized(make_pipeline(work, staging, meshes_of(given), given.world, given.buckets)),
        optimizations(memory_optimizations_of(given)),
        stage_costs(work, staging, sized, optimizations) {}
  PlacedPlan(const PlacedPlan&) = delete;  // parts refer to each other
  PlacedPlan& operator=(const PlacedPlan&) = delete;

  /// The one point of a search that the plan is.
  [[nodiscard]] static Constraints constraints_of(const Plan& plan) {
    Constraints out;
    out.world = plan.world;
    out.batch = plan.batch;
    out.memory = plan.device_memory;
    if (plan.host_memory > Bytes(0)) out.host_memory = plan.host_memory;
    out.optimizer_state_factor = plan.optimizer_state_factor;
    out.gradient_copies = plan.gradient_copies;
    out.buckets = plan.buckets;
    return out;
  }

  const Plan& plan;
  Constraints constraints;
  Workload whole;  ///< nothing of which is computed in slices
  Staging staging;
  Workload work;
  SizedPipeline sized;
  MemoryOptimizations optimizations;
  StagingCosts stage_costs;
};

}  // namespace autopar
