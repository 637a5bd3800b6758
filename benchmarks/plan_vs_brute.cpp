// Whether the exact search finds what brute force finds: random graphs of up to 9 nodes on up to 6 devices, with up to
// a million plans each, all options in turn. Prints one JSON line; fails if one case differs.
//
//   plan_vs_brute [cases = 10000] [first seed = 0]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/search/exact_staging.hpp>
#include <autopar/testing/brute_force.hpp>
#include <autopar/testing/random_instances.hpp>

namespace ap = autopar;

namespace {

struct Tally {
  std::int64_t cases = 0, equal = 0, feasible = 0, plans = 0, most_plans = 0;
  double worst = 0;
};

/// One in 200 cases may have a million plans, the others few enough that all of them take minutes, not days.
double most_plans(std::uint64_t seed) { return seed % 200 == 0 ? 1e6 : seed % 4 == 0 ? 2e4 : 2e3; }

/// @return whether the instance was of the right size, so that it counts
bool compare(std::uint64_t seed, std::uint64_t draw, Tally& tally) {
  const auto instance = ap::testing::random_instance(seed * 1000 + draw, draw < 20 ? 9 : 4, 6);
  const ap::RooflineCost cost(instance.cluster);
  const ap::Workload work = ap::make_workload(instance.model, cost);
  ap::Constraints constraints;
  try {
    constraints = ap::resolve(instance.request, work, instance.cluster);
  } catch (const ap::CaptureError&) {  // a forced plan that mixes samples
    return false;
  }
  const double plans = ap::testing::count_stagings(work, constraints);
  if (plans > most_plans(seed) || (draw < 10 && plans < 20)) return false;
  const ap::StepObjective objective(work, instance.cluster, constraints);
  const ap::SearchResult exact = ap::ExactStaging{}.search(objective);
  const ap::SearchResult brute = ap::testing::BruteForce{}.search(objective);
  const bool feasible = brute.candidates.any_fits();
  double difference = std::numeric_limits<double>::infinity();
  if (feasible == exact.candidates.any_fits()) {
    const double best = brute.candidates.best_step().value(), found = exact.candidates.best_step().value();
    difference = !feasible || best == found ? 0 : std::abs(found / best - 1);
  }
  const bool same = exact.proven && difference <= 1e-12;
  if (!same) std::cerr << "seed " << seed << ", draw " << draw << " differs by " << difference << "\n";
  ++tally.cases;
  tally.equal += same ? 1 : 0;
  tally.feasible += feasible ? 1 : 0;
  tally.plans += brute.states;
  tally.most_plans = std::max(tally.most_plans, brute.states);
  tally.worst = std::max(tally.worst, difference);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const auto cases = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000;
  const auto first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  const auto start = std::chrono::steady_clock::now();
  Tally tally;
  for (std::uint64_t seed = first; seed < first + cases; ++seed) {
    std::uint64_t draw = 0;
    while (!compare(seed, draw, tally)) ++draw;
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  const bool all = tally.cases > 0 && tally.equal == tally.cases;
  std::cout << R"({"cases":)" << tally.cases << R"(,"equal":)" << tally.equal << R"(,"feasible":)" << tally.feasible
            << R"(,"plans":)" << tally.plans << R"(,"most_plans":)" << tally.most_plans
            << R"(,"worst_relative_difference":)" << tally.worst << R"(,"seconds":)" << taken.count() << "}\n";
  return all ? EXIT_SUCCESS : EXIT_FAILURE;
}
