#include <autopar/plan/step/folded.hpp>

#include <algorithm>
#include <vector>

#include <catch_shim.hpp>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/model/segments.hpp>
#include <autopar/plan/step/objective.hpp>
#include <autopar/testing/random_models.hpp>

#include "contending_cost.hpp"
#include "unit/plan/random_stagings.hpp"

using namespace autopar;
using testing::Dice;

namespace {

/// A random model and everything that its stagings need; equal micro-batches.
struct Foldable {
  /// @param callers  something comes from the callers, and may go to them
  explicit Foldable(std::uint64_t seed, bool callers = false) : dice(seed), model(testing::random_model(dice, 12)) {
    if (!callers) {
      model.inputs.clear();
      for (auto& output : model.outputs) output.bytes = {0, 8};
    }
    work = make_workload(model, cost);
    constraints.world = 6;
    constraints.memory = Bytes(dice(50, 800) * 1000);
    constraints.zero_levels = {0, 1, 2, 3};
    if (seed % 2 == 0) constraints.buckets.size = Bytes(1000 * (1 + static_cast<std::int64_t>(seed % 20)));
    constraints.recompute = dice.chance(50) ? Recompute::kToFit : Recompute::kNever;
    work.segment_of = recompute_segments(work, constraints, 2);
    staging = test::random_staging(dice, work, constraints.world);
    if (dice.chance(30)) staging.schedule = ScheduleKind::kZbH1;
  }
  /// Equal ones.
  void set_samples(int of_a_microbatch) { constraints.batch = std::int64_t{of_a_microbatch} * staging.microbatches; }

  Dice dice;
  ModelProfile model;
  Cluster cluster = testing::small_cluster(18);
  test::ContendingCost cost{cluster, test::random_contention(dice, cluster)};
  Workload work;
  Constraints constraints;
  Staging staging;
};

}  // namespace

TEST_CASE("folded step: exact with one replica per stage", "[laws]") {
  int several_stages = 0, tied = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    Foldable it(seed + 83'000);
    it.staging.replicas.assign(it.staging.replicas.size(), 1);
    it.constraints.world = it.staging.stages();
    it.set_samples(it.constraints.world * it.dice(1, 5));
    const StepObjective objective(it.work, it.cluster, it.constraints);
    const StepTerms folded = objective.folded(it.staging), simulated = objective(it.staging);
    CHECK(folded.step.value() == Approx(simulated.step.value()).epsilon(1e-12).margin(0));
    CHECK(folded.optimizations == simulated.optimizations);
    CHECK(folded.meshes == simulated.meshes);
    for (std::size_t s = 0; s < folded.stages.size(); ++s) CHECK(folded.stages[s].memory == simulated.stages[s].memory);
    several_stages += it.staging.stages() > 1 ? 1 : 0;
    const auto sized = make_pipeline(it.work, it.staging, folded.meshes, it.constraints.world);
    tied += sized.pipeline.groups.empty() ? 0 : 1;
  }
  CHECK(several_stages > 300);
  CHECK(tied > 50);
}

TEST_CASE("folded step: close with equal replicas and callers", "[laws]") {
  std::vector<double> ratios;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    Foldable it(seed + 91'000, true);
    const int stages = it.staging.stages(), replicas = it.dice(1, 3);
    it.staging.replicas.assign(it.staging.replicas.size(), replicas);
    it.constraints.world = stages * replicas;
    it.set_samples(it.constraints.world * it.dice(1, 5));
    const StepObjective objective(it.work, it.cluster, it.constraints);
    const StepTerms folded = objective.folded(it.staging);
    const auto sized = make_pipeline(it.work, it.staging, folded.meshes, it.constraints.world);
    const StepTerms simulated = objective.evaluate(it.staging, sized, folded.optimizations);
    ratios.push_back(folded.step / simulated.step);
    CHECK(ratios.back() > 0.8);
    CHECK(ratios.back() < 1 + StepObjective::kFoldedAbove);
  }
  std::sort(ratios.begin(), ratios.end());
  CHECK(ratios[ratios.size() / 10] > 1 - StepObjective::kFoldedClose);
}

TEST_CASE("folded step: counts messages of many callers to few ranks") {
  const ModelProfile model = testing::chain(64, 1e3, 4000, 200);
  const Cluster cluster = testing::small_cluster(64);
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  Constraints constraints;
  constraints.world = cluster.devices;
  constraints.batch = 16 * cluster.devices;
  constraints.memory = Bytes(1 << 30);
  const StepObjective objective(work, cluster, constraints);
  for (const int stages : {2, 8, 64}) {
    for (const int microbatches : {1, 4, 16}) {
      CAPTURE(stages, microbatches);
      Staging staging{std::vector<int>(64), std::vector<int>(static_cast<std::size_t>(stages), 64 / stages),
                      microbatches};
      for (int i = 0; i < 64; ++i) staging.stage_of[static_cast<std::size_t>(i)] = i * stages / 64;
      const StepTerms folded = objective.folded(staging);
      const auto sized = make_pipeline(work, staging, folded.meshes, constraints.world);
      const double simulated = objective.evaluate(staging, sized, folded.optimizations).step.value();
      CHECK(folded.step.value() == Approx(simulated).epsilon(0.15).margin(0));
    }
  }
}
