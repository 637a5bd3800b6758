#include <autopar/plan/folded.hpp>

#include <catch_shim.hpp>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/objective.hpp>
#include <autopar/plan/segments.hpp>

#include "random_stagings.hpp"

using namespace autopar;
using test::Dice;

namespace {

/// A random model and everything that its stagings need; equal micro-batches and nothing from or to the caller, of which
/// folding knows nothing.
struct Foldable {
  explicit Foldable(std::uint64_t seed) : dice(seed), model(test::random_model(dice, 12)) {
    model.inputs.clear();
    for (auto& output : model.outputs) output.bytes = {0, 8};
    work = make_workload(model, cost);
    constraints.world = cluster.devices;
    constraints.memory = Bytes(dice(50, 800) * 1000);
    constraints.zero_levels = {0, 1, 2, 3};
    constraints.recompute = dice.chance(50) ? Recompute::kToFit : Recompute::kNever;
    work.segment_of = recompute_segments(work, constraints, 2);
    staging = test::random_staging(dice, work, constraints.world);
    if (dice.chance(30)) staging.schedule = ScheduleKind::kZbH1;
  }
  /// Equal ones.
  void set_samples(int of_a_microbatch) { constraints.batch = std::int64_t{of_a_microbatch} * staging.microbatches; }

  Dice dice;
  ModelProfile model;
  Cluster cluster = test::small_cluster(6);
  RooflineCost cost{cluster};
  Workload work;
  Constraints constraints;
  Staging staging;
};

}  // namespace

TEST_CASE("with one replica a stage the folded step is the simulated one", "[laws]") {
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
    CHECK(folded.savings == simulated.savings);
    CHECK(folded.ranks == simulated.ranks);
    for (std::size_t s = 0; s < folded.stages.size(); ++s)
      CHECK(folded.stages[s].memory == simulated.stages[s].memory);
    several_stages += it.staging.stages() > 1 ? 1 : 0;
    const auto sized = make_pipeline(it.work, it.staging, folded.ranks, it.constraints.world);
    tied += sized.pipeline.groups.empty() ? 0 : 1;
  }
  CHECK(several_stages > 300);
  CHECK(tied > 50);
}
