#include <autopar/plan/step/objective.hpp>

#include <catch_shim.hpp>

#include <autopar/cost/roofline.hpp>
#include <autopar/cost/weighted.hpp>
#include <autopar/plan/step/estimate.hpp>
#include <autopar/testing/random_models.hpp>

#include "unit/plan/equal_nodes.hpp"

using namespace autopar;

TEST_CASE("StepObjective: GPipe and 1F1B take m + s - 1 rounds") {
  const test::EqualNodes equal(4, 64, 1);
  const auto cost = equal.cost();
  const Workload work = make_workload(equal.graph, cost);
  const StepObjective objective(work, equal.cluster, equal.constraints);
  QuickEstimate estimate(objective);
  for (const int microbatches : {1, 2, 4, 8, 16}) {
    for (const auto schedule : {ScheduleKind::kGPipe, ScheduleKind::kOneFOneB}) {
      const Staging staging{{0, 1, 2, 3}, {1, 1, 1, 1}, microbatches, schedule};
      const StepTerms terms = objective(staging);
      CHECK(terms.step.value() == Approx(3.0 * (microbatches + 3)).epsilon(1e-9));
      CHECK(terms.bubble == Approx(3.0 / (microbatches + 3)).epsilon(1e-9));
      CHECK(estimate(staging) == Approx(terms.step.value()).epsilon(1e-9));
    }
  }
}

TEST_CASE("StepObjective: memory counts micro-batches in flight") {
  const test::EqualNodes equal(4, 64, 1);
  const auto cost = equal.cost();
  const Workload work = make_workload(equal.graph, cost);
  const StepObjective objective(work, equal.cluster, equal.constraints);
  const auto saved = [&](ScheduleKind schedule) {
    std::vector<std::int64_t> out;
    for (const auto& stage : objective({{0, 1, 2, 3}, {1, 1, 1, 1}, 8, schedule}).stages)
      out.push_back(stage.memory.saved.value());
    return out;
  };
  CHECK(saved(ScheduleKind::kGPipe) == std::vector<std::int64_t>{80, 80, 80, 80});
  CHECK(saved(ScheduleKind::kOneFOneB) == std::vector<std::int64_t>{40, 30, 20, 10});
}

TEST_CASE("parameter_memory: sharded from ZeRO 1, its copy from ZeRO 3") {
  ParameterProfile parameter{"w", Bytes(1000), true, 250, Bytes(500)};
  const Constraints constraints;
  const auto held = [&](int zero, int replicas) {
    return parameter_memory(parameter, constraints, zero, replicas).parameters;
  };
  const std::int64_t of_two[] = {1500, 1000, 1000, 500};
  for (int zero = 0; zero <= 3; ++zero) {
    CHECK(held(zero, 2) == Bytes(of_two[zero]));
    CHECK(held(zero, 1) == Bytes(1500));
  }
  parameter.copy = Bytes(0);
  CHECK(held(2, 2) == Bytes(1000));
  CHECK(held(3, 2) == Bytes(500));
  parameter.copy = Bytes(500);
  parameter.trainable = false;
  CHECK(held(3, 2) == Bytes(1500));
}

TEST_CASE("parameter_memory: offloaded, the device has the copy alone") {
  const ParameterProfile parameter{"w", Bytes(1000), true, 250, Bytes(500)};
  Constraints constraints;
  constraints.optimizer_state_factor = 2;
  const auto held = [&](int zero) { return parameter_memory(parameter, constraints, zero, 2, Offload::kOptimizer); };
  for (int zero = 0; zero <= 3; ++zero) {
    CAPTURE(zero);
    const Bytes copy(zero < 3 ? 500 : 250), stepped(zero < 1 ? 1000 : 500), gradient(zero < 2 ? 1000 : 500);
    constraints.host_memory = Bytes(1 << 20);
    CHECK(held(zero).parameters == copy);
    CHECK(held(zero).gradients == gradient);
    CHECK(held(zero).optimizer == Bytes(0));
    CHECK(held(zero).host == stepped * 4);
    constraints.host_memory.reset();
    CHECK(held(zero).parameters == copy + stepped);
    CHECK(held(zero).gradients == gradient);
    CHECK(held(zero).optimizer == stepped * 2);
    CHECK(held(zero).host == Bytes(0));
  }
}

TEST_CASE("parameter_memory: sharding is limited by what readers allow") {
  ParameterProfile parameter{"w", Bytes(1000), true, 250};
  Constraints constraints;
  constraints.optimizer_state_factor = 2;
  constraints.host_memory = Bytes(1 << 20);
  const StageMemory plain = parameter_memory(parameter, constraints);
  for (const Offload offload : {Offload::kNone, Offload::kOptimizer}) {
    for (int zero = 0; zero <= 3; ++zero) {
      parameter.highest_zero = 0;
      CHECK(parameter_memory(parameter, constraints, zero, 4, offload) == plain);
      parameter.highest_zero = 3;
      const StageMemory at_two = parameter_memory(parameter, constraints, std::min(zero, 2), 4, offload);
      parameter.highest_zero = 2;
      CHECK(parameter_memory(parameter, constraints, zero, 4, offload) == at_two);
    }
  }
}

TEST_CASE("StepObjective: a stage's memory includes tied parameters") {
  ModelProfile model = testing::chain(3, 1e6, 1000, 40);
  model.graph[NodeId(2)].parameters.push_back(ParameterId(0));  // tied to the first
  model.parameters[1].trainable = false;
  const Cluster cluster = testing::small_cluster(3);
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  Constraints constraints;
  constraints.world = 3;
  constraints.batch = 6;
  constraints.optimizer_state_factor = 1.5;
  const StepObjective objective(work, cluster, constraints);
  const StepTerms terms = objective({{0, 1, 2}, {1, 1, 1}, 2, ScheduleKind::kOneFOneB});
  const auto check = [&](std::size_t s, std::int64_t parameters, std::int64_t trainable) {
    const StageMemory& memory = terms.stages[s].memory;
    CHECK(memory.parameters == Bytes(parameters));
    CHECK(memory.gradients == Bytes(trainable));
    CHECK(memory.optimizer == Bytes(trainable * 3 / 2));
    CHECK(memory.update == Bytes(trainable * 2));
    CHECK(memory.workspace == Bytes(40 / 4 * 3 + 64));
  };
  check(0, 1000, 1000);
  check(1, 1000, 0);
  check(2, 2000, 2000);
  // The tied parameter is summed over ranks 0 and 2, and nothing else is.
  const SizedPipeline sized = make_pipeline(work, {{0, 1, 2}, {1, 1, 1}, 2, ScheduleKind::kOneFOneB}, terms.meshes, 3);
  REQUIRE(sized.pipeline.groups.size() == 1);
  CHECK(sized.pipeline.groups[0].ranks == std::vector<Rank>{Rank(0), Rank(2)});
  CHECK_FALSE(sized.pipeline.groups[0].stage.valid());
  CHECK(terms.stages[0].reduction > Seconds(0));
  CHECK(terms.stages[1].reduction == Seconds(0));
}

TEST_CASE("StepObjective: a value goes to each reading stage once") {
  ModelProfile model = testing::chain(3, 1e6, 1000, 40);
  model.graph.add_edge(NodeId(0), NodeId(2), {0, {40, 0}, true});  // the value of 0 -> 1
  model.graph.add_edge(NodeId(0), NodeId(2), {0, {40, 0}, true});
  model.graph.add_edge(NodeId(0), NodeId(2), {77, {0, 8}, false});  // the same for all samples
  const Cluster cluster = testing::small_cluster(3);
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  const Staging staging{{0, 1, 2}, {1, 1, 1}, 1, ScheduleKind::kGPipe};
  const SizedPipeline sized =
      make_pipeline(work, staging, place(staging.replicas, RankPlacement::kReplicasTogether), 3);
  REQUIRE(sized.pipeline.channels.size() == 5);
  CHECK(sized.pipeline.channels[0] == Channel{kSource, StageId(0), ChannelKind::kBatched, false});
  CHECK(sized.pipeline.channels[1] == Channel{StageId(0), StageId(1), ChannelKind::kBatched, true});
  CHECK(sized.pipeline.channels[2] == Channel{StageId(0), StageId(2), ChannelKind::kBatched, true});
  CHECK(sized.channels[2].value == Affine{40, 0});
  CHECK(sized.pipeline.channels[3] == Channel{StageId(0), StageId(2), ChannelKind::kReplicated, false});
  CHECK(sized.channels[3].value == Affine{0, 8});
  CHECK(sized.channels[3].gradient == Affine{});
  CHECK(sized.pipeline.channels[4] == Channel{StageId(1), StageId(2), ChannelKind::kBatched, true});
}

TEST_CASE("StepObjective: ZeRO overlaps on GPUs, not on CPUs") {
  const ModelProfile model = testing::chain(4, 1e9, 64 << 20, 40);
  Constraints constraints;
  constraints.world = 2;
  constraints.batch = 2;
  const Staging staging{{0, 0, 0, 0}, {2}, 1, ScheduleKind::kGPipe};
  for (const bool cpus : {false, true}) {
    Cluster cluster = testing::small_cluster(2, Bytes(std::int64_t{1} << 32));
    if (!cpus) cluster.host = testing::small_host(Bytes(1 << 20));
    const RooflineCost cost(cluster);
    const Workload work = make_workload(model, cost);
    const SizedPipeline sized = make_pipeline(work, staging, place(staging.replicas, RankPlacement::kReplicasTogether),
                                              constraints.ranks(), constraints.buckets);
    const auto costs = [&](int zero) { return StagingCosts(work, staging, sized, {zero, {}}); };
    const std::vector<Rank> ranks{Rank(0), Rank(1)};
    const Seconds half = work.all_reduce(Bytes(4 * (64 << 20)), ranks) * 0.5;
    const StageId stage(0);
    const auto whole = costs(0), summed = costs(2), gathered = costs(3);
    const Seconds forward = gathered.forward(stage, 1) - whole.forward(stage, 1),
                  sums = summed.backward(stage, 1) - whole.backward(stage, 1),
                  both = gathered.backward(stage, 1) - whole.backward(stage, 1);
    CHECK(summed.forward(stage, 1) == whole.forward(stage, 1));
    if (cpus) {
      for (const Seconds each : {forward, sums, both * 0.5}) CHECK(each.value() == Approx(half.value()).epsilon(1e-9));
    } else {
      for (const Seconds each : {forward, sums, both * 0.5}) CHECK(each < half * 0.6);
    }
  }
}

TEST_CASE("StepObjective: replicas pay for reducing totals") {
  const test::EqualNodes equal(2, 64, 1);
  const auto cost = equal.cost();
  Workload work = make_workload(equal.graph, cost);
  const auto step = [&](std::vector<int> replicas) {
    std::vector<int> stage_of(2, 0);
    if (replicas.size() == 2) stage_of[1] = 1;
    const StepObjective objective(work, equal.cluster, equal.constraints);
    return objective({stage_of, replicas, 1, ScheduleKind::kGPipe}).step.value();
  };
  const std::vector<std::vector<int>> shapes{{1}, {3}, {1, 3}, {3, 1}};
  std::vector<double> without;
  for (const auto& shape : shapes) without.push_back(step(shape));
  work.graph[NodeId(0)].totals = Bytes(8);
  work.all_reduce = [](Bytes bytes, std::span<const Rank>) { return Seconds(static_cast<double>(bytes.value())); };
  CHECK(step(shapes[0]) == Approx(without[0]).epsilon(1e-9));
  CHECK(step(shapes[1]) == Approx(without[1] + 16).epsilon(1e-9));
  CHECK(step(shapes[2]) == Approx(without[2]).epsilon(1e-9));
  CHECK(step(shapes[3]) == Approx(without[3] + 16).epsilon(1e-9));
}

TEST_CASE("StepObjective: heavy traffic stays inside a node") {
  // Two nodes of two: large activations and small parameters want successive stages together, the reverse replicas.
  ModelProfile model = testing::chain(2, 1e6, 8, 40'000);
  const Cluster cluster = testing::small_cluster(4, Bytes(std::int64_t{1} << 40));
  const RooflineCost cost(cluster);
  Constraints constraints;
  constraints.world = 4;
  constraints.batch = 8;
  const Staging staging{{0, 1}, {2, 2}, 4, ScheduleKind::kOneFOneB};
  const auto ranks_of_first = [&] {
    const Workload work = make_workload(model, cost);
    return StepObjective(work, cluster, constraints)(staging).meshes[0];
  };
  CHECK(ranks_of_first() == std::vector<Rank>{Rank(0), Rank(2)});
  model = testing::chain(2, 1e6, 10'000'000, 40);
  CHECK(ranks_of_first() == std::vector<Rank>{Rank(0), Rank(1)});
}
