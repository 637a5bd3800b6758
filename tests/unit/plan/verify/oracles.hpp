#pragma once

#include <catch_shim.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/model/pipeline_of.hpp>
#include <autopar/plan/model/staging.hpp>
#include <autopar/plan/model/tensor_shards.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/report/make_plan.hpp>
#include <autopar/plan/verify/clock.hpp>
#include <autopar/plan/verify/costs.hpp>
#include <autopar/plan/verify/stated_plan.hpp>

#include "oracle/compute_orders.hpp"
#include "oracle/order.hpp"
#include "oracle/shards.hpp"
#include "oracle/sums.hpp"
#include "oracle/timeline.hpp"

namespace autopar::test {

/// What the verifier proves is what runs: the stated pipeline and its sizes equal the planner's.
inline void check_pipeline(const ModelProfile& model, const Plan& plan) {
  const RooflineCost costs{Cluster{}};
  const Workload whole = make_workload(model, costs);
  const Staging staging = staging_of(plan, model.graph.node_count());
  const Workload work = staging.tensor.empty() ? whole : in_shards(whole, staging, plan.sequence_parallel);
  const SizedPipeline planned = make_pipeline(work, staging, meshes_of(plan), plan.world, plan.buckets);
  const verify::StatedPlan stated(model, plan);
  CHECK(stated.pipeline.ranks == planned.pipeline.ranks);
  CHECK(stated.pipeline.stages == planned.pipeline.stages);
  CHECK(stated.pipeline.channels == planned.pipeline.channels);
  CHECK(stated.pipeline == planned.pipeline);
  REQUIRE(stated.channels.size() == planned.channels.size());
  for (std::size_t c = 0; c < planned.channels.size(); ++c) {
    CHECK(stated.channels[c].value == planned.channels[c].value);
    CHECK(stated.channels[c].gradient == planned.channels[c].gradient);
    CHECK(stated.channels[c].held == planned.channels[c].held);
    CHECK(stated.channels[c].values == planned.channels[c].values);
  }
  REQUIRE(stated.buckets.size() == planned.pipeline.groups.size());
  for (std::size_t g = 0; g < planned.pipeline.groups.size(); ++g)
    CHECK(stated.buckets[g] == planned.summed_at_end(g, plan.zero));
}

/// Groups and buckets equal those of the oracle.
inline void check_sums(const verify::StatedPlan& stated) {
  const auto sums = oracle::GradientSums(stated).find();
  REQUIRE(sums.size() == stated.pipeline.groups.size());
  for (std::size_t g = 0; g < sums.size(); ++g) {
    const ReduceGroup& group = stated.pipeline.groups[g];
    CHECK(sums[g].stage == group.stage.value());
    CHECK(std::ranges::equal(sums[g].ranks, group.ranks, {}, {}, &Rank::index));
    CHECK(std::ranges::equal(sums[g].buckets, stated.buckets[g], {}, {}, &Bytes::value));
  }
}

/// Bytes of atoms and parameters on a tensor shard equal those of the oracle.
template <class M>
void check_shards(const verify::StatedPlan& stated, const M& costs) {
  const verify::StatedCosts<M> stated_costs(stated, costs);
  const auto& graph = stated.model.graph;
  for (const NodeId atom : graph.nodes()) {
    const TensorRegion* region = stated.sliced_in[atom.index()];
    const std::size_t stage = stated.stage_of[atom.index()];
    const int shards = stated.pipeline.stages[stage].tensor();
    const std::int64_t slice = stated.stages[stage].slice;
    if (region == nullptr) continue;
    const NodeCost whole = costs.node(graph, atom, static_cast<double>(slice)), own = stated_costs.of_atom(atom, slice);
    const AtomMemory& each = graph[atom].on_each_shard;
    CHECK(own.saved == oracle::sliced(whole.saved, each.saved, slice, *region, shards));
    CHECK(own.workspace == oracle::sliced(whole.workspace, each.workspace, slice, *region, shards));
    CHECK(own.deferred_weight == oracle::sliced(whole.deferred_weight, each.deferred_weight, slice, *region, shards));
    CHECK(own.forward_workspace ==
          oracle::sliced(whole.forward_workspace, each.forward_workspace, slice, *region, shards));
    for (const ParameterId id : region->parameters) {
      const ParameterProfile& parameter = stated.model.parameters[id.index()];
      CHECK(stated.parameter(id).bytes.value() == oracle::sliced(parameter.bytes.value(), *region, shards));
      CHECK(stated.parameter(id).copy.value() == oracle::sliced(parameter.copy.value(), *region, shards));
      CHECK(stated.parameter(id).elements == oracle::sliced(parameter.elements, *region, shards));
    }
  }
}

/// Costs as the oracle's clock asks for them.
template <class M>
struct OracleCosts {
  const verify::StatedCosts<M>& stated;
  const M& costs;
  [[nodiscard]] const NodeCost& of_stage(std::size_t stage, std::int64_t samples) const {
    return stated.of_stage(stage, samples);
  }
  [[nodiscard]] Seconds transfer(Bytes bytes, Rank from, Rank to) const { return costs.transfer(bytes, from, to); }
  [[nodiscard]] Seconds sum(const ReduceGroup& group, Bytes bytes) const { return stated.sum(group, bytes); }
  [[nodiscard]] Contention contention(std::size_t stage) const { return stated.contention(stage); }
  [[nodiscard]] double message_delay() const { return stated.message_delay(); }
};

inline void check_close(double a, double b) { CHECK(std::abs(a - b) <= 1e-9 * std::max({a, b, 1e-12})); }

/// The program and the clock equal an order and a clock that were written independently.
template <class M>
void check_times(const verify::StatedPlan& stated, const M& costs) {
  const auto orders = oracle::compute_orders(stated);
  CHECK(stated.orders() == orders);
  const verify::StatedCosts<M> stated_costs(stated, costs);
  const OracleCosts<M> oracle_costs{stated_costs, costs};
  verify::Clock clock(stated, stated_costs);
  std::vector<verify::RankTimes> call(static_cast<std::size_t>(stated.plan.world));
  double begin = 0;
  clock.play();
  for (const Phase phase : stated.phases()) {
    oracle::Order order(stated, orders, phase != Phase::kBackward, phase != Phase::kForward);
    REQUIRE(order.stuck() < 0);
    const auto times = oracle::TimelinePlayer(stated, order, oracle_costs).play(phase != Phase::kForward);
    for (std::size_t r = 0; r < call.size(); ++r) {
      call[r].end = begin + times.ends[r];
      call[r].computing += times.computing[r];
      call[r].communicating += times.communicating[r];
      call[r].summing += times.summing[r];
    }
    begin += times.end;
  }
  check_close(clock.end(), begin);
  for (std::size_t r = 0; r < call.size(); ++r) {
    check_close(clock.times()[r].end, call[r].end);
    check_close(clock.times()[r].computing, call[r].computing);
    check_close(clock.times()[r].communicating, call[r].communicating);
    check_close(clock.times()[r].summing, call[r].summing);
  }
}

/// All of them, for a plan that is sound.
template <class M>
void check_with_oracles(const ModelProfile& model, const M& costs, const Plan& plan) {
  check_pipeline(model, plan);
  const verify::StatedPlan stated(model, plan);
  check_sums(stated);
  check_shards(stated, costs);
  check_times(stated, costs);
}

}  // namespace autopar::test
