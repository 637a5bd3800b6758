#include <autopar/plan/exact_staging.hpp>

#include <catch_shim.hpp>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/brute_force.hpp>
#include <autopar/plan/workload.hpp>

#include "random_models.hpp"

using namespace autopar;
using test::Dice;

namespace {

struct Instance {
  ModelProfile model;
  Cluster cluster;
  PlanRequest request;
};

/// Small enough for brute force; every option that constrains a plan is set now and then.
Instance random_instance(std::uint64_t seed, int max_nodes) {
  Dice dice(seed);
  Instance out{test::random_model(dice, max_nodes), test::small_cluster(dice(1, 4), Bytes(dice(100, 1000) * 1000)), {}};
  out.request.batch = dice(1, 24);
  auto& options = out.request.options;
  options.memory_margin = 0.05 * dice(0, 3);
  options.optimizer_state_factor = dice(0, 4) / 2.0;
  if (dice.chance(20))
    options.microbatches = dice(1, 5);
  else
    options.max_microbatches = dice(1, 4);
  if (dice.chance(20)) options.schedule = dice.chance(50) ? "gpipe" : "1f1b";
  const int most = std::min<int>(out.cluster.devices, static_cast<int>(out.model.graph.node_count()));
  if (dice.chance(20)) options.stages = dice(1, most);
  if (dice.chance(15)) {
    const int stages = options.stages > 0 ? options.stages : dice(1, most);
    options.replicas.assign(static_cast<std::size_t>(stages), 1);
    for (int spare = out.cluster.devices - stages; spare > 0; --spare) {
      if (dice.chance(70)) ++options.replicas[static_cast<std::size_t>(dice(0, stages - 1))];
    }
  }
  return out;
}

}  // namespace

TEST_CASE("the exact search finds what brute force finds", "[equality]") {
  int feasible = 0, pipelined = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    const Instance instance = random_instance(seed, seed % 10 == 0 ? 6 : 5);
    const RooflineCost cost(instance.cluster);
    const Workload work = make_workload(instance.model, cost);
    Constraints constraints;
    try {
      constraints = resolve(instance.request, work, instance.cluster);
    } catch (const CaptureError&) {  // a forced plan that mixes samples
      ++refused;
      continue;
    }
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
    CHECK(meets(constraints, work, plan.staging));
    CHECK(exact.candidates.fits(plan));
  }
  CHECK(feasible > 1000);
  CHECK(pipelined > 300);
  CHECK(refused < 300);
}
