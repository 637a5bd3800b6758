#include <autopar/plan/feasibility/remedy.hpp>

#include <catch_shim.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <regex>
#include <stdexcept>
#include <string>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/multilevel/heavy_edge.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/search/exact_staging.hpp>
#include <autopar/plan/search/least_memory.hpp>
#include <autopar/testing/brute_force.hpp>
#include <autopar/testing/random_instances.hpp>

// Every refusal names the smallest change that fits: what it says is taken at its word and tried.
namespace remedy_test {

using namespace autopar;
using testing::Dice;
using testing::Instance;

Cluster with_devices(Cluster cluster, int world) {
  cluster.devices = std::max(cluster.devices, world);
  cluster.levels.back().span = std::max(cluster.levels.back().span, world);
  return cluster;
}

/// Nothing if there is a plan.
std::optional<InfeasiblePlan> refusal(const Instance& instance) {
  const Cluster cluster = with_devices(instance.cluster, instance.request.world);
  try {
    (void)plan_with_defaults(instance.model, cluster, instance.request);
  } catch (const InfeasiblePlan& error) {
    return error;
  }
  return std::nullopt;
}

/// What the planner decides on the way to a plan or a refusal.
bool accepted(const Instance& instance) {
  const Cluster cluster = with_devices(instance.cluster, instance.request.world);
  const RooflineCost cost(cluster);
  Workload work = make_workload(instance.model, cost);
  const ExactStaging staging;
  const HeavyEdge coarsening;
  const detail::Attempt attempt(staging, coarsening, work, cluster, resolve(instance.request, work, cluster));
  SearchResult found = attempt.search();
  if (!found.candidates.any_fits()) (void)attempt.offer_least(found);
  return found.candidates.any_fits();
}

/// A model that rarely fits, with every option set now and then.
Instance draw(std::uint64_t seed, int most_nodes, int most_devices) {
  Instance out = testing::random_instance(seed, most_nodes, most_devices);
  Dice dice(seed + 4242);
  auto& [model, cluster, request] = out;
  auto& options = request.options;
  cluster.device.memory = Bytes(dice(20, 350) * 1000);
  if (dice.chance(70)) {
    request.runtime = runtime_capabilities();
    if (dice.chance(60)) options.schedule = kScheduleKinds[static_cast<std::size_t>(dice(0, 5))];
    if (dice.chance(40)) options.zero = dice(0, 3);
    if (dice.chance(40)) options.recompute = dice.chance(50) ? Recompute::kAlways : Recompute::kNever;
  }
  if (cluster.host && dice.chance(30)) options.offload = dice.chance(50) ? Offload::kOptimizer : Offload::kNone;
  request.world = cluster.devices;
  if (dice.chance(15)) request.batch = dice(1, cluster.devices);  // fewer samples than ranks
  return out;
}

class Remedy {
 public:
  Remedy(const Instance& instance, const InfeasiblePlan& error, std::map<std::string, int>& counts)
      : instance_(instance), remedy_(error.remedy()), counts_(counts) {}

  void check() {
    const auto& options = instance_.request.options;
    const Bytes memory = options.device_memory > Bytes(0) ? options.device_memory : instance_.cluster.device.memory;
    check_memory("device_memory", "device_memory = ([0-9]+) ", memory.value(),
                 [](Instance& one, std::int64_t bytes) { one.request.options.device_memory = Bytes(bytes); });
    if (instance_.cluster.host) {
      check_memory("host memory", "host memory of ([0-9]+) ", instance_.cluster.host->memory.value(),
                   [](Instance& one, std::int64_t bytes) { one.cluster.host->memory = Bytes(bytes); });
    }
    check_ranks();
    check_stages();
    check_microbatches();
    check_factor();
    check_zero();
    check_switch("recompute = auto", options.recompute != Recompute::kToFit && instance_.request.runtime.recompute,
                 [](Instance& one) { one.request.options.recompute = Recompute::kToFit; });
    check_switch("schedule = auto", options.schedule.has_value(),
                 [](Instance& one) { one.request.options.schedule = std::nullopt; });
    check_switch("offload = none", options.offload == Offload::kOptimizer,
                 [](Instance& one) { one.request.options.offload = Offload::kNone; });
    check_switch("offload = optimizer", options.offload == Offload::kNone && instance_.request.runtime.offload,
                 [](Instance& one) { one.request.options.offload = Offload::kOptimizer; });
  }

 private:
  [[nodiscard]] std::optional<double> named(const std::string& pattern) const {
    std::smatch found;
    if (!std::regex_search(remedy_, found, std::regex(pattern))) return std::nullopt;
    return std::stod(found[1].str());
  }
  template <class Change>
  [[nodiscard]] bool fits(const Change& change) const {
    Instance changed = instance_;
    change(changed);
    return accepted(changed);
  }

  template <class Change>
  void check_memory(const std::string& what, const std::string& pattern, std::int64_t now, const Change& change) {
    const auto least = named(pattern);
    if (!least) return;
    ++counts_[what];
    const auto bytes = static_cast<std::int64_t>(*least);
    CHECK(bytes > now);
    CHECK(fits([&](Instance& one) { change(one, bytes); }));
    CHECK_FALSE(fits([&](Instance& one) { change(one, bytes - 1); }));
    // Nor anywhere between, but that orders which are synthesised for less memory may happen to take less.
    if (instance_.request.options.schedule == ScheduleKind::kSynthesised) return;
    const std::int64_t half = now + (bytes - now) / 2;
    CHECK_FALSE(fits([&](Instance& one) { change(one, half); }));
  }

  void check_ranks() {
    const auto ranks = named("([0-9]+) ranks instead");
    const int now = instance_.request.world;
    const auto with = [&](int world) { return fits([&](Instance& one) { one.request.world = world; }); };
    if (ranks) {
      ++counts_["ranks"];
      CHECK(with(static_cast<int>(*ranks)));
    }
    const int near = std::min(2 * now, now + 16);
    for (int world = now + 1; world <= near && (!ranks || world < *ranks); ++world) CHECK_FALSE(with(world));
  }

  void check_stages() {
    const auto stages = named("stages = ([0-9]+) instead");
    if (!stages) return;
    ++counts_["stages"];
    const auto with = [&](int count) { return fits([&](Instance& one) { one.request.options.stages = count; }); };
    CHECK(with(static_cast<int>(*stages)));
    for (int count = instance_.request.options.stages; count < *stages; ++count) CHECK_FALSE(with(count));
  }

  void check_microbatches() {
    const auto least = named("microbatches = ([0-9]+) instead");
    if (!least) return;
    ++counts_["microbatches"];
    const auto with = [&](int count) {
      return fits([&](Instance& one) {
        auto& options = one.request.options;
        options.microbatches = count;
        options.max_microbatches = std::max(options.max_microbatches, count);
      });
    };
    CHECK(with(static_cast<int>(*least)));
    CHECK_FALSE(with(static_cast<int>(*least) - 1));
  }

  void check_factor() {
    const auto largest = named("optimizer_state_factor = ([0-9.]+) instead");
    if (!largest) return;
    ++counts_["factor"];
    const auto with = [&](double factor) {
      return fits([&](Instance& one) { one.request.options.optimizer_state_factor = factor; });
    };
    CHECK(with(*largest));
    CHECK_FALSE(with(*largest + 1.0 / 16));
  }

  void check_zero() {
    const auto& request = instance_.request;
    if (request.options.zero < 0) return;
    const auto least = named("zero = ([0-9]) instead");
    const auto with = [&](int level) { return fits([&](Instance& one) { one.request.options.zero = level; }); };
    if (least) {
      ++counts_["zero"];
      CHECK(with(static_cast<int>(*least)));
    }
    for (int level = 0; level <= request.runtime.max_zero && (!least || level < *least); ++level)
      CHECK_FALSE(with(level));
  }

  template <class Change>
  void check_switch(const std::string& text, bool possible, const Change& change) {
    const bool is_named = remedy_.find(text) != std::string::npos;
    counts_[text] += is_named ? 1 : 0;
    if (possible)
      CHECK(fits(change) == is_named);
    else
      CHECK_FALSE(is_named);
  }

  const Instance& instance_;
  std::string remedy_;
  std::map<std::string, int>& counts_;
};

void check_all(std::uint64_t first, int instances, int most_nodes, int most_devices,
               std::map<std::string, int>& counts) {
  for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(instances); ++seed) {
    CAPTURE(seed);
    const Instance instance = draw(seed, most_nodes, most_devices);
    try {
      const auto error = refusal(instance);
      if (!error) continue;
      ++counts["refused"];
      CAPTURE(error->what());
      if (error->remedy().find("less may do") != std::string::npos)
        ++counts["not proven"];
      else if (error->remedy().empty())
        ++counts["no remedy"];
      else
        Remedy(instance, *error, counts).check();
    } catch (const CaptureError&) {  // a forced plan that mixes samples
    } catch (const InvalidArgument&) {
    }
  }
}

TEST_CASE("InfeasiblePlan: names the smallest change that fits", "[laws]") {
  std::map<std::string, int> counts;
  check_all(1'000'000, 200, 7, 4, counts);
  check_all(2'000'000, 20, 14, 4, counts);
  for (const int seed : {3'001'126, 3'003'829, 3'003'992}) check_all(seed, 1, 7, 4, counts);  // several stages a rank
  CHECK(counts["not proven"] == 0);
  CHECK(counts["refused"] > 75);
  CHECK(counts["device_memory"] > 70);
  CHECK(counts["ranks"] > 25);
  CHECK(counts["factor"] > 12);
  for (const char* rare : {"host memory", "microbatches", "stages", "zero", "recompute = auto", "schedule = auto"}) {
    CAPTURE(rare);
    CHECK(counts[rare] > 0);
  }
}

TEST_CASE("InfeasiblePlan: names the smallest change, many cases", "[.nightly][laws]") {
  std::map<std::string, int> counts;
  check_all(1'000'000, 400, 7, 4, counts);
  check_all(2'000'000, 40, 14, 4, counts);
  check_all(3'000'000, 6000, 7, 4, counts);
  check_all(4'000'000, 400, 14, 4, counts);
  for (const auto& [what, count] : counts) std::cout << what << ": " << count << "\n";
  CHECK(counts["not proven"] * 500 <= counts["refused"]);
}

TEST_CASE("InfeasiblePlan: memory bound equals that of all stagings", "[laws]") {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const Instance instance = draw(seed + 5'000'000, 5, 3);
    const RooflineCost cost(instance.cluster);
    const Workload work = make_workload(instance.model, cost);
    Constraints constraints;
    try {
      constraints = resolve(instance.request, work, instance.cluster);
    } catch (const Error&) {  // options that contradict one another
      continue;
    }
    std::erase_if(constraints.schedules, [](ScheduleKind kind) { return !has_closed_form(kind); });
    if (constraints.schedules.empty() || testing::count_stagings(work, constraints) > 10'000) continue;
    const auto least = least_memory(StepObjective(work, instance.cluster, constraints));
    if (!least || !least->host_holds(constraints)) continue;
    CHECK(least->proven);
    const auto any_fits = [&](Bytes memory) {
      Constraints limited = constraints;
      limited.memory = memory;
      return testing::BruteForce{}.search(StepObjective(work, instance.cluster, limited)).candidates.any_fits();
    };
    CHECK(any_fits(least->peak));
    CHECK_FALSE(any_fits(least->peak - Bytes(1)));
    const auto asked_for = [&](Bytes memory) {
      return *least_memory(StepObjective(work, instance.cluster, constraints), memory);
    };
    CHECK(asked_for(least->peak).peak <= least->peak);
    const LeastMemory too_large = asked_for(least->peak - Bytes(1));
    CHECK(too_large.proven);
    CHECK(too_large.peak >= least->peak);
    ++compared;
  }
  CHECK(compared > 250);
}

TEST_CASE("InfeasiblePlan: without remedies the memory is the same") {
  const ModelProfile model = testing::chain(4, 1e5, 100'000, 1000);
  const Cluster cluster = testing::small_cluster(2, Bytes(300'000));
  PlanRequest request;
  const auto refused = [&](bool remedies) {
    request.remedies = remedies;
    try {
      (void)plan_with_defaults(model, cluster, request);
    } catch (const InfeasiblePlan& error) {
      return error;
    }
    throw std::logic_error("accepted");
  };
  const auto explained = refused(true), bare = refused(false);
  CHECK(bare.needed() == explained.needed());
  CHECK(bare.remedy() == "no remedy was looked for");
  CHECK_THAT(explained.remedy(), Catch::Matchers::Contains("device_memory = "));
}

TEST_CASE("InfeasiblePlan: memory bound is what the stage needs") {
  const ModelProfile model = testing::chain(1, 1e5, 100'000, 0);
  Cluster cluster = testing::small_cluster(1, Bytes(300'000));
  PlanRequest request;
  request.options.memory_margin = 0;
  try {
    (void)plan_with_defaults(model, cluster, request);
    FAIL("accepted");
  } catch (const InfeasiblePlan& error) {
    CHECK(error.stage() == StageId(0));
    // parameter + gradient + 2 x state + 2 x temporaries of the optimizer, more than the 16 bytes saved and 64 of
    // workspace
    CHECK(error.needed() == Bytes(6 * 100'000));
  }
  cluster.device.memory = Bytes(6 * 100'000);
  CHECK_NOTHROW(plan_with_defaults(model, cluster, request));
  cluster.device.memory = Bytes(6 * 100'000 - 1);
  CHECK_THROWS_AS(plan_with_defaults(model, cluster, request), InfeasiblePlan);
}

TEST_CASE("InfeasiblePlan: a host that is too small is named") {
  const ModelProfile model = testing::chain(1, 1e5, 100'000, 0);
  Cluster cluster = testing::small_cluster(1, Bytes(300'000));
  cluster.host = testing::small_host(Bytes(6 * 100'000 - 1));
  PlanRequest request;
  request.runtime.offload = true;
  request.options.memory_margin = 0;
  request.options.offload = Offload::kOptimizer;
  try {
    (void)plan_with_defaults(model, cluster, request);
    FAIL("accepted");
  } catch (const InfeasiblePlan& error) {
    CHECK(error.needed() == Bytes(6 * 100'000));  // parameter + gradient + 2 x state + 2 x temporaries
    CHECK(error.available() == cluster.host->memory);
    CHECK_THAT(error.what(),
               Catch::Matchers::Contains("offload = optimizer puts") && Catch::Matchers::Contains("its host's memory"));
    CHECK_THAT(error.remedy(), Catch::Matchers::Contains("host memory of 600000 bytes a rank (1 B more)"));
  }
  cluster.host->memory += Bytes(1);
  const Plan plan = plan_with_defaults(model, cluster, request);
  CHECK(plan.stages[0].host_memory == Bytes(6 * 100'000));
  CHECK(plan.stages[0].peak_memory < Bytes(201'000));  // parameter + gradient, and what is in flight
}

}  // namespace remedy_test
