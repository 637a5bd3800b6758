#include "setup.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/planner.hpp>
#include <autopar/plan/report/runnable.hpp>
#include <autopar/plan/search/chunked_staging.hpp>
#include <autopar/schedule/synthesised.hpp>

#include "../unit/schedule/equal_times.hpp"

namespace numerics {

namespace {

autopar::Plan in_chunks(const Setup& setup, const autopar::ModelProfile& profile, const autopar::ProfiledCost& costs,
                        const autopar::Cluster& cluster, autopar::PlanRequest request) {
  autopar::ModelProfile pipelined = profile;
  pipelined.loss_mode = true;  // the order is the schedule's in each direction, whatever comes between them
  auto& replicas = request.options.replicas;
  const int nodes = static_cast<int>(profile.graph.node_count()), chunks = std::min(nodes, setup.chunks);
  while (static_cast<int>(replicas.size()) * chunks > nodes) replicas.pop_back();
  request.options.stages = static_cast<int>(replicas.size());
  if (chunks == 1) request.options.schedule = autopar::ScheduleKind::kZbH1;
  request.budget.chunks = chunks;
  return autopar::Planner<autopar::ChunkedStaging>{}.plan(pipelined, costs, cluster, request);
}

void synthesise(autopar::Plan& plan) {
  auto pipeline = autopar::testing::in_a_row(autopar::stages_of(plan).stages);
  pipeline.ranks = plan.world;
  const auto layout = autopar::testing::even_layout(pipeline, plan.microbatches);
  const autopar::Synthesised<autopar::testing::EqualTimes> policy{
      .costs = {}, .local = layout.local, .parts_backwards = true, .budget = 40};
  plan.orders = policy.rank_orders(pipeline, plan.microbatches);
  plan.schedule = autopar::ScheduleKind::kSynthesised;
}

/// Every second segment of a stage is recomputed; of a single one its first half.
void leave_some(autopar::Plan& plan) {
  for (auto& stage : plan.stages) {
    auto& segments = stage.recomputed;
    if (segments.size() == 1) segments[0].resize((segments[0].size() + 1) / 2);
    std::size_t position = 0;
    std::erase_if(segments, [&](const auto&) { return position++ % 2 == 1; });
  }
}

/// Each rank becomes so many tensor shards, whether the model has something for them to share or not.
void shard(autopar::Plan& plan, int shards) {
  plan.world *= shards;
  for (auto& stage : plan.stages) {
    std::vector<autopar::Rank> ranks;
    for (const auto rank : stage.mesh.ranks()) {
      for (int s = 0; s < shards; ++s) ranks.emplace_back(rank.value() * shards + s);
    }
    stage.mesh = autopar::Mesh(ranks, shards);
  }
  decltype(plan.orders) orders;
  for (const auto& order : plan.orders) orders.insert(orders.end(), static_cast<std::size_t>(shards), order);
  plan.orders = std::move(orders);
}

}  // namespace

autopar::Plan plan_of(const Setup& setup, const autopar::ModelProfile& profile, const autopar::ProfiledCost& costs,
                      const autopar::Cluster& given, const autopar::PlanRequest& asked) {
  auto cluster = given;
  auto request = asked;
  if (setup.tensor > 1) {
    request.world /= setup.tensor;
    request.options.tensor_parallel = 1;
    cluster.devices = request.world;
  }
  auto plan = setup.chunks == 0 ? autopar::plan_with_defaults(profile, costs, cluster, request)
                                : in_chunks(setup, profile, costs, cluster, request);
  if (setup.synthesise) synthesise(plan);
  if (setup.some_recomputed) leave_some(plan);
  if (setup.tensor > 1) shard(plan, setup.tensor);
  return plan;
}

}  // namespace numerics
