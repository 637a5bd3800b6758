#include <autopar/plan/model/parameter_groups.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <catch_shim.hpp>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/memory/memory.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/model/pipeline_of.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/plan/verify/check_plan.hpp>
#include <autopar/testing/random_models.hpp>

#include "unit/plan/random_stagings.hpp"

using namespace autopar;
using testing::Dice;

namespace {

/// Tensors of two element types, of which some are read as copies, and of what is not known as elements.
ModelProfile with_elements(Dice& dice) {
  ModelProfile model = testing::random_model(dice, 10);
  for (ParameterProfile& parameter : model.parameters) {
    if (dice.chance(15)) continue;
    parameter.elements = dice(1, 6'000);
    const int element = dice.chance(80) ? 4 : 2;
    parameter.bytes = Bytes(parameter.elements * element);
    if (element == 4 && dice.chance(50)) parameter.copy = parameter.bytes / 2;
    if (dice.chance(20)) parameter.highest_zero = dice(0, 3);
  }
  return model;
}

/// What holds for every cut.
void check_cut(const std::vector<BucketItem>& items, const BucketCut& cut, Bytes size) {
  REQUIRE(cut.places.size() == items.size());  // each in exactly one
  std::vector<BucketCut::Bucket> found(cut.buckets.size());
  std::vector<int> members(cut.buckets.size(), 0);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto [bucket, offset] = cut.places[i];
    REQUIRE((bucket >= 0 && bucket < static_cast<int>(cut.buckets.size())));
    auto& own = found[static_cast<std::size_t>(bucket)];
    CHECK(offset == own.elements);  // behind those before it, without a gap
    own = {own.elements + items[i].room, items[i].element_bytes, items[i].kind};
    CHECK(cut.buckets[static_cast<std::size_t>(bucket)].kind == items[i].kind);
    CHECK(cut.buckets[static_cast<std::size_t>(bucket)].element_bytes == items[i].element_bytes);
    members[static_cast<std::size_t>(bucket)] += items[i].room > 0 ? 1 : 0;
  }
  for (std::size_t b = 0; b < cut.buckets.size(); ++b) {
    CHECK(cut.buckets[b].elements == found[b].elements);  // and nothing else is in it
    CHECK((cut.buckets[b].bytes() <= size || members[b] == 1));
    for (const int ranks : {1, 2, 3, 7}) {
      const auto whole = cut.buckets[b].elements_in_shards(ranks);
      CHECK(whole >= cut.buckets[b].elements);
      CHECK(whole % (ranks * BucketItem::kAlignedElements) == 0);
      CHECK(whole - cut.buckets[b].elements < 2 * ranks * BucketItem::kAlignedElements);
    }
  }
}

/// In what is never longer than a bucket's worth one bucket of each kind goes on.
void check_order(const std::vector<BucketItem>& items, const BucketCut& cut) {
  std::vector<int> first(cut.buckets.size(), -1), last(first);
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto& begin = first[static_cast<std::size_t>(cut.places[i].bucket)];
    begin = begin < 0 ? static_cast<int>(i) : begin;
    last[static_cast<std::size_t>(cut.places[i].bucket)] = static_cast<int>(i);
  }
  CHECK(std::is_sorted(first.begin(), first.end()));
  for (std::size_t a = 0; a < cut.buckets.size(); ++a) {
    for (std::size_t b = a + 1; b < cut.buckets.size(); ++b) {
      if (cut.buckets[a].kind == cut.buckets[b].kind) CHECK(last[a] < first[b]);
      if (first[b] < last[a]) CHECK(cut.buckets[a].kind != cut.buckets[b].kind);
    }
  }
}

}  // namespace

TEST_CASE("cut_into_buckets: each tensor once, in order, bounded size", "[laws]") {
  int several = 0, large = 0;
  for (std::uint64_t seed = 0; seed < 2'000; ++seed) {
    CAPTURE(seed);
    Dice dice(seed + 910'000);
    std::vector<BucketItem> items;
    const int kinds = dice(1, 4);
    for (int left = dice(0, 40); left > 0; --left) {
      const int kind = dice(1, kinds);
      items.push_back(BucketItem::of(dice.chance(5) ? 0 : dice(1, 900), std::int64_t{1} << kind, kind));
    }
    const Bytes size(dice(1, 20'000));
    const BucketCut cut = cut_into_buckets(items, size);
    check_cut(items, cut, size);
    check_order(items, cut);
    several += cut.buckets.size() > 1 ? 1 : 0;
    for (const auto& bucket : cut.buckets) large += bucket.bytes() > size ? 1 : 0;
  }
  CHECK(several > 1'000);
  CHECK(large > 1'000);
}

TEST_CASE("cut_into_buckets: an overflow opens new buckets of all kinds") {
  const std::vector<BucketItem> items{BucketItem::of(16, 4, 1), BucketItem::of(10, 2, 2), BucketItem::of(1, 4, 1),
                                      BucketItem::of(17, 4, 1), BucketItem::of(16, 2, 2)};
  const BucketCut cut = cut_into_buckets(items, Bytes(128));
  const auto bucket_of = [&](std::size_t item) { return cut.places[item].bucket; };
  CHECK(std::vector{bucket_of(0), bucket_of(1), bucket_of(2), bucket_of(3), bucket_of(4)} ==
        std::vector{0, 1, 0, 2, 3});
  CHECK(cut.places[2].offset == 16);
  CHECK(cut.buckets[0].bytes() == Bytes(128));
  CHECK(cut.buckets[2].bytes() == Bytes(128));  // 17 elements begin a second row of 16
}

namespace {

/// A model whose stages lie somewhere on six ranks.
struct StagedModel {
  explicit StagedModel(std::uint64_t seed) : dice(seed) {}
  StagedModel(const StagedModel&) = delete;  // costs and workload refer to members
  StagedModel& operator=(const StagedModel&) = delete;

  Dice dice;
  ModelProfile model = with_elements(dice);
  RooflineCost cost{testing::small_cluster(6)};
  Workload work = make_workload(model, cost);
  Staging staging = test::random_staging(dice, work, 6);
};

}  // namespace

TEST_CASE("parameter_groups: each replicated parameter is in one group", "[laws]") {
  int cuts = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    StagedModel it(seed + 920'000);
    auto& [dice, model, cost, work, staging] = it;
    const auto meshes = place(staging.replicas, RankPlacement::kReplicasTogether);
    const bool rounds = dice.chance(50);
    const BucketPolicy policy{Bytes(dice(1, 60'000)), rounds ? ReduceDtype::kBf16 : ReduceDtype::kFp32};
    const SizedPipeline sized = make_pipeline(work, staging, meshes, 6, policy);
    const auto groups = parameter_groups(work, staging, sized.pipeline.stages);
    REQUIRE(groups.size() == sized.pipeline.groups.size());
    std::set<ParameterId> seen;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      CHECK(std::is_sorted(groups[g].parameters.rbegin(), groups[g].parameters.rend()));
      Bytes raw{}, simulated{};
      for (const ParameterId id : groups[g].parameters) {
        CHECK(seen.insert(id).second);
        CHECK(work.parameters[id.index()].trainable);
        const ParameterProfile& one = work.parameters[id.index()];
        const bool is_fp32 = one.elements > 0 && one.bytes == Bytes(4 * one.elements);
        raw += rounds && is_fp32 ? Bytes(2 * one.elements) : one.bytes;
      }
      for (const Bytes bucket : sized.bucket_bytes[g]) simulated += bucket;
      const BucketCut whole = buckets_of(work, groups[g], policy);
      CHECK(sized.pipeline.groups[g].buckets == static_cast<int>(whole.buckets.size()));
      CHECK(sized.bucket_bytes[g].size() == whole.buckets.size());
      CHECK(simulated == raw);
      for (int zero = 1; zero <= 3; ++zero) {
        const ShardedBuckets sharded = sharded_buckets_of(work, groups[g], policy, zero);
        CHECK(sharded.units.places.size() + sharded.whole.places.size() == groups[g].parameters.size());
        cuts += sharded.units.buckets.size() > 1 ? 1 : 0;
      }
    }
  }
  CHECK(cuts > 500);
}

TEST_CASE("fixed_memory: counts at least the largest ZeRO unit", "[laws]") {
  int counted = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    StagedModel it(seed + 930'000);
    auto& [dice, model, cost, work, staging] = it;
    Constraints constraints;
    constraints.buckets = {Bytes(dice(1, 60'000))};
    const auto memory = fixed_memory(work, constraints, staging, 2);
    for (const auto& group :
         parameter_groups(work, staging, place(staging.replicas, RankPlacement::kReplicasTogether))) {
      if (!group.stage.valid()) continue;
      std::int64_t units = 0, alignment = 0;
      for (const ParameterId id : group.parameters) alignment += work.parameters[id.index()].elements > 0 ? 15 * 4 : 0;
      const ShardedBuckets sharded = sharded_buckets_of(work, group, constraints.buckets, 2);
      for (const auto& unit : sharded.units.buckets) units = std::max(units, unit.bytes().value());
      CHECK(memory[group.stage.index()].gathered + Bytes(alignment) >= Bytes(units));
      counted += units > 0 ? 1 : 0;
    }
  }
  CHECK(counted > 200);
}

TEST_CASE("buckets: plans with any size are checked", "[check]") {
  int smaller = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Dice dice(seed + 940'000);
    const ModelProfile model = with_elements(dice);
    Cluster cluster = testing::small_cluster(dice(2, 6), Bytes(1 << 20));
    cluster.host = Host{Bytes(1 << 24)};  // devices, which hide what is exchanged within compute actions
    PlanRequest request;
    request.batch = dice(4, 40);
    request.runtime = runtime_capabilities();
    if (dice.chance(70)) request.options.zero = dice(0, 3);
    if (dice.chance(60)) request.options.stages = 1;
    request.buckets = BucketPolicy{Bytes(dice(1, 60'000))};
    Plan plan;
    try {
      plan = plan_with_defaults(model, cluster, request);
    } catch (const Error&) {
      continue;
    }
    CHECK(plan.buckets == *request.buckets);
    const RooflineCost costs(cluster);
    CHECK(check_plan(model, costs, cluster, plan).accepted());
    plan.buckets.size = Bytes(0);
    CHECK_FALSE(check_plan(model, costs, cluster, plan).accepted());
    plan.buckets = BucketPolicy{};
    smaller += check_plan(model, costs, cluster, plan).accepted() ? 0 : 1;  // another size predicts something else
  }
  CHECK(smaller > 50);
}

namespace {

/// Two devices of a host of its own.
Cluster pair_of(Seconds latency, double bandwidth) {
  Cluster cluster;
  cluster.devices = 2;
  cluster.device.memory = Bytes(std::int64_t{141} << 30);
  cluster.device.memory_bandwidth = BytesPerSecond(4.8e12);
  cluster.device.f32 = FlopsPerSecond(6.7e13);
  cluster.levels = {{"link", 2, {latency, BytesPerSecond(bandwidth)}}};
  cluster.host = Host{Bytes(std::int64_t{256} << 30)};
  return cluster;
}

Bytes chosen(const Cluster& cluster, std::int64_t mib_a_layer, int stages = 0) {
  const ModelProfile model = testing::chain(16, 1e9, mib_a_layer << 20, 4096);
  PlanRequest request{.batch = 8, .runtime = runtime_capabilities()};
  request.options.stages = stages;
  const RooflineCost costs(cluster);
  return resolve(request, make_workload(model, costs), cluster).buckets.size;
}

constexpr Bytes mib(std::int64_t count) { return Bytes(count << 20); }

}  // namespace

TEST_CASE("buckets: size follows latency, an eighth of a stage at most") {
  const Cluster fast = pair_of(Seconds(5e-6), 3.8e11);
  CHECK(chosen(fast, 320) == mib(256));  // a sum takes 10 us before any byte, 256 MiB of it 706 us
  CHECK(chosen(pair_of(Seconds(2e-6), 3.8e11), 320) == mib(128));
  CHECK(chosen(pair_of(Seconds(5e-6), 1e10), 320) == mib(32));
  CHECK(chosen(fast, 64) == mib(128));  // of 1 GiB
  CHECK(chosen(fast, 48) == mib(96));
  CHECK(chosen(fast, 16) == mib(32));
  CHECK(chosen(fast, 64, 2) == mib(64));
  Cluster cpus = fast;
  cpus.host.reset();
  CHECK(chosen(cpus, 320) == mib(32));
}

TEST_CASE("buckets: large ones are noted, small ones are the fallback") {
  const ModelProfile model = testing::chain(64, 1e9, 80 << 20, 4096);
  Cluster cluster = pair_of(Seconds(5e-6), 3.8e11);
  PlanRequest request{.options = {.zero = 3, .offload = Offload::kNone}, .batch = 8, .runtime = runtime_capabilities()};
  request.options.stages = 1;
  request.options.memory_margin = 0;
  const Plan large = plan_with_defaults(model, cluster, request);
  CHECK(large.buckets.size == mib(256));
  CHECK(to_text(large).find("gradients are summed 256 MiB at a time, in 22 buckets a stage at most instead of 64") !=
        std::string::npos);

  request.buckets = BucketPolicy{};
  const Plan small = plan_with_defaults(model, cluster, request);
  CHECK(to_text(small).find("at a time") == std::string::npos);
  REQUIRE(small.stages[0].peak_memory < large.stages[0].peak_memory);
  request.buckets.reset();
  cluster.device.memory = small.stages[0].peak_memory;
  CHECK(plan_with_defaults(model, cluster, request).buckets == BucketPolicy{});
  cluster.device.memory = small.stages[0].peak_memory - Bytes(1 << 20);
  CHECK_THROWS_AS(plan_with_defaults(model, cluster, request), InfeasiblePlan);
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 41}) {
    request.buckets = BucketPolicy{Bytes(size)};
    CHECK_THROWS_AS(plan_with_defaults(model, cluster, request), InvalidArgument);
  }
}
