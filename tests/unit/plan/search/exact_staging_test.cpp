#include <autopar/plan/search/exact_staging.hpp>

#include <catch_shim.hpp>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/model/workload.hpp>
#include <autopar/plan/search/uniform_staging.hpp>
#include <autopar/testing/random_models.hpp>
#include <autopar/testing/staging_laws.hpp>

using namespace autopar;

TEST_CASE("ExactStaging: obeys the staging laws, equals brute force", "[laws]") {
  for (const int starts : {0, 4}) {
    const testing::StagingTally tally =
        testing::check_staging_laws(ExactStaging{}, {.exact = true, .inputs = 1000, .budget = {.starts = starts}});
    CHECK(tally.searched > 850);  // where options force a plan that mixes samples there is nothing to search
    CHECK(tally.fitting > 500);
    CHECK(tally.pipelined > 150);
    CHECK(tally.recomputed > 50);
    CHECK(tally.sharded > 50);
  }
  testing::check_staging_laws(ExactStaging{}, {.exact = true, .first_seed = 1000, .inputs = 200, .max_nodes = 6});
}

TEST_CASE("UniformStaging: obeys the staging laws", "[laws]") {
  const testing::StagingTally tally = testing::check_staging_laws(UniformStaging{}, {.inputs = 1000});
  CHECK(tally.fitting > 500);
  CHECK(tally.pipelined > 150);
}

namespace {

/// Branches of small operators between two others, on ranks that are joined by links slower than they are.
ModelProfile branches(int count, int length) {
  ModelProfile model;
  const auto add = [&](const std::vector<NodeId>& from) {
    const auto node = model.graph.add_node(testing::atom(std::to_string(model.graph.node_count()), 1000, 40));
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
  const Cluster cluster = testing::small_cluster(devices);
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  PlanRequest request;
  request.batch = 8 * devices;
  request.options = options;
  const Constraints constraints = resolve(request, work, cluster);
  return ExactStaging{}.search(StepObjective(work, cluster, constraints));
}

}  // namespace

TEST_CASE("ExactStaging: equivalent schedules are searched once") {
  ModelProfile model = branches(3, 2);
  Options one, any, plain;
  one.microbatches = any.microbatches = 1;
  one.schedule = plain.schedule = ScheduleKind::kGPipe;
  const auto once = searched(model, 4, one), both = searched(model, 4, any);
  REQUIRE((once.proven && both.proven));
  CHECK(both.states < once.states + once.states / 4);  // starts are made for each
  model.loss_mode = false;
  const auto of_gpipe = searched(model, 4, plain), of_all = searched(model, 4, {});
  REQUIRE((of_gpipe.proven && of_all.proven));
  CHECK(of_all.states < of_gpipe.states + of_gpipe.states / 4);
}

TEST_CASE("ExactStaging: one replica number holds for all stages") {
  const ModelProfile model = testing::chain(6, 1e6, 1000, 400);
  const Cluster cluster = testing::small_cluster(6);
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

TEST_CASE("ExactStaging: a first stage that fits only sharded is found") {
  ModelProfile model = testing::chain(3, 1e6, 1000, 100);
  model.parameters[1].bytes = Bytes(100'000);  // states of 1 MB, which two ranks may share
  model.graph[NodeId(2)].whole_batch = true;   // and no third one
  const Cluster cluster = testing::small_cluster(3, Bytes(1'000'000));
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  PlanRequest request;
  request.batch = 24;
  request.options.memory_margin = 0;
  request.options.optimizer_state_factor = 10;
  request.runtime.max_zero = 1;
  request.budget.starts = 0;
  const Constraints constraints = resolve(request, work, cluster);
  const SearchResult found = ExactStaging{}.search(StepObjective(work, cluster, constraints));
  REQUIRE(found.candidates.any_fits());
  CHECK(found.candidates.best().staging.replicas == std::vector{2, 1});
  CHECK(found.candidates.best().staging.stage_of == std::vector{0, 0, 1});
}

TEST_CASE("Candidates: ties go to fewer micro-batches in any order") {
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
