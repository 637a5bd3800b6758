#include <autopar/plan/request.hpp>

#include <catch_shim.hpp>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/testing/random_models.hpp>

using namespace autopar;

namespace {

const ModelProfile kModel = testing::chain(4, 1e6, 1000, 400);

Constraints resolved(Options options, int world = 4, std::int64_t batch = 32, const ModelProfile& model = kModel) {
  const Cluster cluster = testing::small_cluster(4);
  const RooflineCost cost(cluster);
  PlanRequest request;
  request.options = std::move(options);
  request.world = world;
  request.batch = batch;
  return resolve(request, make_workload(model, cost), cluster);
}

void refused(Options options, std::initializer_list<std::string> parts, int world = 4, std::int64_t batch = 32) {
  try {
    (void)resolved(std::move(options), world, batch);
    FAIL("accepted");
  } catch (const InvalidArgument& error) {
    CAPTURE(error.what());
    for (const auto& part : parts) CHECK(std::string(error.what()).find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("Constraints: contradictions name both values") {
  refused({.stages = 3, .replicas = {1, 1}}, {"stages = 3", "{1,1}"});
  refused({.stages = 2, .replicas = {3}}, {"{3}", "each of stages = 2", "6 ranks", "world has 4"});
  refused({.replicas = {5}}, {"{5}", "5 ranks", "world has 4"});
  refused({.replicas = {2, 2, 1}}, {"{2,2,1}", "5 ranks", "world has 4"});
  refused({.replicas = {2, 0}}, {"{2,0}", "at least one replica"});
  refused({.stages = 5}, {"stages = 5", "world has 4"});
  refused({.stages = 3}, {"stages = 3", "world has 2"}, 2);
  refused({.microbatches = 8, .max_microbatches = 4}, {"microbatches = 8", "max_microbatches = 4"});
  refused({.microbatches = 2, .min_microbatches = 4}, {"microbatches = 2", "min_microbatches = 4"});
  refused({.min_microbatches = 9, .max_microbatches = 8}, {"min_microbatches = 9", "max_microbatches = 8"});
  refused({}, {"world of 5", "4 devices"}, 5);
  refused({}, {"batch of 0"}, 4, 0);
}

TEST_CASE("Constraints: more stages than separable are refused") {
  const ModelProfile two = testing::chain(2, 1e6, 1000, 400);
  const Cluster cluster = testing::small_cluster(4);
  const RooflineCost cost(cluster);
  PlanRequest request;
  request.options.stages = 3;
  CHECK_THROWS_WITH(resolve(request, make_workload(two, cost), cluster),
                    Catch::Contains("stages = 3") && Catch::Contains("only 2"));
}

TEST_CASE("Constraints: unsupported options are refused by name") {
  refused({.tensor_parallel = 2}, {"tensor_parallel = 2", "not run by this version"});
  refused({.zero = 1}, {"zero = 1", "not run by this version"});
  refused({.zero = 4}, {"zero = 4", "not a level"});
  refused({.offload = Offload::kOptimizer}, {"offload = optimizer", "not run by this version"});
  refused({.schedule = ScheduleKind::kZbH1}, {"zb-h1", "'1f1b'"});
  refused({.recompute = Recompute::kAlways}, {"recompute = full"});
  refused({.precision = Precision::kBf16}, {"precision = bf16"});
  refused({.reduce_dtype = ReduceDtype::kBf16}, {"reduce_dtype = bf16", "'auto' or 'fp32'"});
  refused({.memory_margin = 1.0}, {"memory_margin"});
  refused({.optimizer_state_factor = -1}, {"optimizer_state_factor"});
  refused({.device_memory = Bytes(-5)}, {"device_memory = -5"});
}

TEST_CASE("Constraints: open options become candidates") {
  const Constraints all = resolved({});
  // 4 ranks with 8 samples each
  CHECK(all.microbatches == std::vector<int>{1, 2, 3, 4, 6, 8, 12, 16, 24, 32});
  CHECK(all.schedules.size() == 2);
  CHECK(all.stages == 0);
  CHECK(resolved({.microbatches = 100}).microbatches == std::vector<int>{100});  // more than samples: allowed if forced
  CHECK(resolved({.min_microbatches = 5, .max_microbatches = 7}).microbatches == std::vector<int>{5, 6, 7});
  CHECK(resolved({.replicas = {1, 2}}).stages == 2);
  CHECK(resolved({.device_memory = Bytes(1000), .memory_margin = 0.25}).memory == Bytes(750));
  CHECK(resolved({}, 3, 8).local_batches() == std::vector<std::int64_t>{2, 3, 3});
}

TEST_CASE("Constraints: models in bf16 on devices send gradients in bf16") {
  const ModelProfile model = testing::chain(2, 1e6, 1000, 400);
  const auto sent = [&](Precision precision, std::optional<ReduceDtype> asked, bool devices) {
    Cluster cluster = testing::small_cluster(2);
    if (devices) cluster.host = testing::small_host(Bytes(1 << 30));
    const RooflineCost cost(cluster);
    PlanRequest request{.world = 2, .runtime = runtime_capabilities()};
    request.options.precision = precision;
    request.options.reduce_dtype = asked;
    return resolve(request, make_workload(model, cost), cluster).buckets.reduce_dtype;
  };
  for (const auto& word : kEnumTexts<Precision>) {
    const bool rounds = computes_in_bf16(word.value);
    CHECK(sent(word.value, {}, true) == (rounds ? ReduceDtype::kBf16 : ReduceDtype::kFp32));
    CHECK(sent(word.value, {}, false) == ReduceDtype::kFp32);
    for (const bool devices : {false, true}) {
      for (const ReduceDtype asked : {ReduceDtype::kFp32, ReduceDtype::kBf16})
        CHECK(sent(word.value, asked, devices) == asked);
    }
  }
}

TEST_CASE("Constraints: offload needs host memory or a request") {
  const ModelProfile model = testing::chain(2, 1e6, 1000, 400);
  PlanRequest request;
  request.options.memory_margin = 0.25;
  const auto offloads = [&](const Cluster& cluster) {
    const RooflineCost cost(cluster);
    return resolve(request, make_workload(model, cost), cluster);
  };
  const Cluster cpus = testing::small_cluster(2);
  Cluster gpus = cpus;
  gpus.host = Host{Bytes(1000), BytesPerSecond(1e9), {}};
  CHECK(offloads(gpus).offloads == std::vector{Offload::kNone});  // this runtime does not
  request.runtime.offload = true;
  CHECK(offloads(gpus).offloads == std::vector{Offload::kNone, Offload::kOptimizer});
  CHECK(offloads(gpus).host_memory == Bytes(750));
  CHECK(offloads(cpus).offloads == std::vector{Offload::kNone});
  CHECK_FALSE(offloads(cpus).host_memory);
  request.options.offload = Offload::kNone;
  CHECK(offloads(gpus).offloads == std::vector{Offload::kNone});
  request.options.offload = Offload::kOptimizer;
  CHECK(offloads(gpus).offloads == std::vector{Offload::kOptimizer});
  CHECK(offloads(cpus).offloads == std::vector{Offload::kOptimizer});
  gpus.host->memory = Bytes(0);
  CHECK_THROWS_WITH(offloads(gpus), Catch::Contains("host memory of cluster 'small'"));
}

TEST_CASE("Constraints: snapshots take memory of the host") {
  const ModelProfile model = testing::chain(2, 1e6, 1000, 400);
  Bytes parameters(0);
  for (const auto& parameter : model.parameters) parameters += parameter.bytes;
  REQUIRE(parameters > Bytes(0));
  const auto left = [&](int every, const Cluster& cluster) {
    const RooflineCost cost(cluster);
    PlanRequest request;
    request.options.snapshot_every = every;
    request.options.optimizer_state_factor = 2;
    return resolve(request, make_workload(model, cost), cluster);
  };
  Cluster cpus = testing::small_cluster(2);
  cpus.levels = {{"host", 2, {}}};
  const Bytes all = Bytes(3 * parameters.value());             // with optimizer state
  CHECK(left(0, cpus).memory - left(10, cpus).memory == all);  // two generations, over two ranks
  CHECK(left(10, cpus).notes.size() == left(0, cpus).notes.size() + 1);
  Cluster nodes = cpus;
  nodes.levels = {{"host", 1, {}}, {"network", 2, {}}};
  CHECK(left(0, nodes).memory - left(10, nodes).memory == Bytes(2 * all.value()));  // and copies
  nodes.levels = {{"network", 2, {}}};                                              // of hosts with one rank
  CHECK(left(0, nodes).memory - left(10, nodes).memory == Bytes(2 * all.value()));
  Cluster gpus = cpus;
  gpus.host = Host{Bytes(1 << 30), BytesPerSecond(1e9), {}};
  CHECK(left(10, gpus).memory == left(0, gpus).memory);
  CHECK(*left(0, gpus).host_memory - *left(10, gpus).host_memory == all);
  gpus.host->memory = Bytes(100);  // they do not fit: there will be none
  CHECK(left(10, gpus).host_memory == left(0, gpus).host_memory);
  CHECK(left(10, gpus).notes.back().find("so that there will be none") != std::string::npos);
}

TEST_CASE("Constraints: one replica number applies to every stage") {
  const Constraints two = resolved({.stages = 2, .replicas = {2}});
  CHECK(two.replicas == std::vector<int>{2, 2});
  CHECK(two.fixed_replicas(2) == std::vector<int>{2, 2});
  const Constraints any = resolved({.replicas = {2}});
  CHECK(any.stages == 0);
  CHECK(any.replicas.empty());
  CHECK(any.replicas_are_fixed());
  CHECK(any.fixed_replicas(2) == std::vector<int>{2, 2});
  CHECK(!resolved({}).replicas_are_fixed());
}

TEST_CASE("Constraints: micro-batches do not depend on one rank's share") {
  CHECK(resolved({}, 3, 10).microbatches == std::vector<int>{1, 2, 3, 4, 6, 8, 10});  // 3, 3 and 4 samples
  CHECK(resolved({}, 4, 3).microbatches == std::vector<int>{1, 2, 3});                // a rank with none
  CHECK(resolved({}, 4, 40).microbatches ==
        std::vector<int>{1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 40});  // what divides 10, too
}

TEST_CASE("Constraints: whole-batch sums force one micro-batch") {
  ModelProfile model = kModel;
  model.graph[NodeId(2)].totals = Bytes(64);
  const Constraints open = resolved({}, 4, 32, model);
  CHECK(open.microbatches == std::vector<int>{1});
  REQUIRE(open.notes.size() == 1);
  CHECK_THAT(open.notes.front(), Catch::Contains("sums over the whole batch"));
  CHECK(resolved({.replicas = {2, 2}}, 4, 32, model).replicas == std::vector<int>{2, 2});
  CHECK_THROWS_AS(resolved({.microbatches = 2}, 4, 32, model), CaptureError);
  CHECK_THROWS_AS(resolved({.min_microbatches = 2}, 4, 32, model), CaptureError);
}

TEST_CASE("Constraints: batch statistics bound the micro-batches") {
  ModelProfile model = kModel;
  model.graph[NodeId(2)].batch_statistic = true;
  CHECK(resolved({}, 3, 10, model).microbatches == std::vector<int>{1, 2, 3, 4});
  CHECK(resolved({}, 4, 3, model).microbatches == std::vector<int>{1});
  CHECK(resolved({.microbatches = 9}, 4, 3, model).microbatches == std::vector<int>{9});
}

TEST_CASE("Constraints: a second gradient copy only for accumulation") {
  CHECK(resolved({}).gradient_copies == 1);
  CHECK(resolved({.gradient_accumulation = true}).gradient_copies == 2);
}
