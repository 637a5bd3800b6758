#include <autopar/plan/search/exact_staging.hpp>

#include <catch_shim.hpp>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/model/segments.hpp>
#include <autopar/plan/model/workload.hpp>

#include "brute_force.hpp"
#include "unit/plan/random_instances.hpp"

using namespace autopar;

TEST_CASE("the exact search finds what brute force finds", "[equality]") {
  int feasible = 0, pipelined = 0, refused = 0, recomputed = 0, sharded = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    const test::Instance instance = test::random_instance(seed, seed % 10 == 0 ? 6 : 5);
    const RooflineCost cost(instance.cluster);
    Workload work = make_workload(instance.model, cost);
    Constraints constraints;
    try {
      constraints = resolve(instance.request, work, instance.cluster);
    } catch (const CaptureError&) {  // a forced plan that mixes samples
      ++refused;
      continue;
    }
    work.segment_of = recompute_segments(work, constraints, 1 + static_cast<int>(seed % 4));
    const StepObjective objective(work, instance.cluster, constraints);
    const SearchResult exact = ExactStaging{.seeds = seed % 2 == 0 ? 0 : 4}.search(objective);
    const SearchResult brute = BruteForce{}.search(objective);
    REQUIRE(exact.proven);
    REQUIRE(exact.candidates.any_fits() == brute.candidates.any_fits());
    if (!brute.candidates.any_fits()) continue;
    const double best = brute.candidates.best_step().value();
    REQUIRE(exact.candidates.best_step().value() == Approx(best).epsilon(1e-12).margin(0));
    ++feasible;
    pipelined += exact.candidates.best().staging.stages() > 1 ? 1 : 0;
    const Candidate& plan = exact.candidates.best();
    recomputed += plan.terms.optimizations.recomputes() ? 1 : 0;
    sharded += plan.terms.optimizations.zero > 0 ? 1 : 0;
    CHECK(meets(constraints, work, plan.staging));
    CHECK(exact.candidates.fits(plan));
  }
  CHECK(feasible > 1000);
  CHECK(pipelined > 300);
  CHECK(refused < 300);
  CHECK(recomputed > 100);
  CHECK(sharded > 100);
}

namespace {

/// Branches of small operators between two others, on ranks that are joined by links slower than they are.
ModelProfile branches(int count, int length) {
  ModelProfile model;
  const auto add = [&](const std::vector<NodeId>& from) {
    const auto node = model.graph.add_node(test::atom(std::to_string(model.graph.node_count()), 1000, 40));
    for (const NodeId before : from) model.graph.add_edge(before, node, {before.value(), {40, 0}, true});
    return node;
  };
  const NodeId first = add({});
  std::vector<NodeId> ends;
  for (int b = 0; b < count; ++b) {
    ends.push_back(first);
    for (int i = 0; i < length; ++i) ends.back() = add({ends.back()});
  }
  const NodeId last = add(ends);
  model.inputs = {{-1, {40, 0}, false, {first}}};
  model.outputs = {{last.value(), {0, 8}, last}};
  return model;
}

SearchResult searched(const ModelProfile& model, int devices, const Options& options) {
  const Cluster cluster = test::small_cluster(devices);
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  PlanRequest request;
  request.batch = 8 * devices;
  request.options = options;
  const Constraints constraints = resolve(request, work, cluster);
  return ExactStaging{}.search(StepObjective(work, cluster, constraints));
}

}  // namespace

TEST_CASE("with one micro-batch or without backwards between, schedules that run alike are searched once") {
  ModelProfile model = branches(3, 2);
  Options one, any, plain;
  one.microbatches = any.microbatches = 1;
  one.schedule = plain.schedule = "gpipe";
  const auto once = searched(model, 4, one), both = searched(model, 4, any);
  REQUIRE((once.proven && both.proven));
  CHECK(both.states < once.states + once.states / 4);  // starts are made for each
  model.loss_mode = false;
  const auto of_gpipe = searched(model, 4, plain), of_all = searched(model, 4, {});
  REQUIRE((of_gpipe.proven && of_all.proven));
  CHECK(of_all.states < of_gpipe.states + of_gpipe.states / 4);
}

TEST_CASE("a single number of replicas holds for each stage of the plan") {
  const ModelProfile model = test::chain(6, 1e6, 1000, 400);
  const Cluster cluster = test::small_cluster(6);
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  for (const int stages : {0, 2, 3}) {
    PlanRequest request;
    request.batch = 24;
    request.options.stages = stages;
    request.options.replicas = {2};
    const Constraints constraints = resolve(request, work, cluster);
    const SearchResult found = ExactStaging{}.search(StepObjective(work, cluster, constraints));
    REQUIRE(found.candidates.any_fits());
    const auto& replicas = found.candidates.best().staging.replicas;
    CHECK(std::count(replicas.begin(), replicas.end(), 2) == static_cast<std::ptrdiff_t>(replicas.size()));
    if (stages > 0) CHECK(static_cast<int>(replicas.size()) == stages);
  }
}

TEST_CASE("a stage that fits on no rank but its replicas' shares is found where it is the first one") {
  ModelProfile model = test::chain(3, 1e6, 1000, 100);
  model.parameters[1].bytes = Bytes(100'000);  // states of 1 MB, which two ranks may share
  model.graph[NodeId(2)].whole_batch = true;   // and no third one
  const Cluster cluster = test::small_cluster(3, Bytes(1'000'000));
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  PlanRequest request;
  request.batch = 24;
  request.options.memory_margin = 0;
  request.options.optimizer_state_factor = 10;
  request.runtime.max_zero = 1;
  const Constraints constraints = resolve(request, work, cluster);
  const SearchResult found = ExactStaging{.seeds = 0}.search(StepObjective(work, cluster, constraints));
  REQUIRE(found.candidates.any_fits());
  CHECK(found.candidates.best().staging.replicas == std::vector{2, 1});
  CHECK(found.candidates.best().staging.stage_of == std::vector{0, 0, 1});
}

TEST_CASE("of equally fast plans the one with fewer micro-batches wins, whatever the order of the search") {
  Candidates candidates(Bytes(1000));
  const auto offer = [&](double step, int microbatches) {
    Candidate candidate;
    candidate.staging = {{0}, {1}, microbatches, ScheduleKind::kGPipe};
    candidate.terms.step = Seconds(step);
    candidates.offer(std::move(candidate));
    return candidates.best().staging.microbatches;
  };
  CHECK(offer(1.0, 4) == 4);
  CHECK(offer(1.0 + 1e-13, 2) == 2);
  CHECK(offer(1.0 - 1e-13, 8) == 2);
  CHECK(offer(0.9, 16) == 16);
  CHECK(offer(1.0, 1) == 16);
}
