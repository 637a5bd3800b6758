#include <autopar/plan/search/tensor_degrees.hpp>

#include <catch_shim.hpp>

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/report/print.hpp>
#include <autopar/plan/search/exact_staging.hpp>
#include <autopar/plan/step/lower_bound.hpp>
#include <autopar/plan/verify/check_plan.hpp>
#include <autopar/plan/verify/require_sound.hpp>
#include <autopar/testing/brute_force.hpp>
#include <autopar/testing/random_models.hpp>

#include "unit/plan/random_stagings.hpp"
#include "unit/plan/verify/oracles.hpp"

using namespace autopar;
using testing::Dice;

namespace {

struct Instance {
  ModelProfile model;
  Cluster cluster;
  PlanRequest request;
};

/// What random models have, with regions; sometimes little memory, sometimes a ZeRO level that is asked for.
Instance random_instance(int seed, int max_nodes = 6, int max_devices = 6) {
  Dice dice(static_cast<std::uint64_t>(seed) + 31337);
  const Bytes memory(dice.chance(60) ? 1 << 20 : dice(150, 500) * 1000);
  Instance out{testing::random_model(dice, max_nodes),
               testing::small_cluster(dice.chance(50) ? max_devices : dice(1, max_devices), memory),
               {}};
  testing::add_tensor_regions(out.model, dice);
  for (const TensorRegion& region : out.model.tensor_regions) {  // weights to read, whatever the samples
    const int times = dice(0, 3);
    for (const NodeId atom : region.atoms) {
      for (WorkItem& item : out.model.graph[atom].work) {
        item.forward.bytes.fixed += times * item.forward.flops.per_sample;
        item.backward.bytes.fixed += times * item.backward.flops.per_sample;
      }
    }
  }
  out.request.batch = dice.chance(50) ? dice(1, 4) : dice(1, 24);
  out.request.runtime = runtime_capabilities();
  out.request.runtime.max_tensor_parallel = 8;
  out.request.options.optimizer_state_factor = dice(0, 2);
  out.request.options.max_microbatches = dice(1, 4);
  out.request.options.memory_margin = 0;
  return out;
}

/// Nothing where options contradict the model, or nothing fits.
std::optional<Plan> planned(const Instance& c) {
  try {
    return plan_with_defaults(c.model, c.cluster, c.request);
  } catch (const InfeasiblePlan&) {
    return std::nullopt;
  } catch (const InvalidArgument&) {
    return std::nullopt;
  } catch (const CaptureError&) {
    return std::nullopt;
  }
}

std::string faults(const Instance& c, const Plan& plan) {
  std::string out;
  for (const auto& fault : check_plan(c.model, RooflineCost(c.cluster), c.cluster, plan).faults) out += fault + "; ";
  return out;
}

bool has_shards(const Plan& plan) {
  return std::ranges::any_of(plan.stages, [](const StagePlan& stage) { return stage.mesh.tensor() > 1; });
}

/// Without starts of operators, which no shard is spared.
Cluster without_launches(int devices) {
  Cluster cluster = testing::small_cluster(devices);
  cluster.device.launch = Seconds{};
  return cluster;
}

}  // namespace

TEST_CASE("tensor parallel: shards divide time and memory, pay exchange", "[laws]") {
  ModelProfile model = testing::chain(3, 1e6, 24000, 480);
  for (const ParameterProfile& parameter : model.parameters) CHECK(parameter.bytes == Bytes(24000));
  model.tensor_regions = {{{NodeId(0), NodeId(1), NodeId(2)},
                           {ParameterId(0), ParameterId(1), ParameterId(2)},
                           12,
                           true,
                           {160, 0},
                           {80, 40},
                           1,
                           2}};
  for (const int shards : {2, 3, 4, 6}) {
    const Cluster cluster = without_launches(shards);
    const RooflineCost cost(cluster);
    const Workload work = make_workload(model, cost);
    Constraints constraints;
    constraints.world = shards;
    constraints.batch = 12 * shards;
    constraints.memory = Bytes(1 << 30);
    const StepObjective objective(work, cluster, constraints);
    const auto terms = objective({{0, 0, 0}, {1}, 1, ScheduleKind::kGPipe, {}, {shards}});
    const auto whole = objective({{0, 0, 0}, {1}, 1, ScheduleKind::kGPipe});
    REQUIRE(terms.meshes.front().tensor() == shards);
    const auto all = terms.meshes.front().tensor_group(0);
    const std::int64_t samples = constraints.batch;
    const Seconds forward = cost.all_reduce(Bytes(160 * samples), all);
    const Seconds backward = cost.all_reduce(Bytes((80 * samples + 40 + 1) / 2), all) * 2.0;
    const StageTerms &own = terms.stages.front(), &alone = whole.stages.front();
    CHECK(own.forward.value() == Approx((alone.forward / shards + forward).value()).epsilon(1e-12));
    CHECK(own.backward.value() == Approx((alone.backward / shards + backward).value()).epsilon(1e-12));
    CHECK(own.update.value() == Approx((alone.update / shards).value()).epsilon(1e-12));
    CHECK(own.memory.parameters.value() == alone.memory.parameters.value() / shards);
    CHECK(own.memory.gradients.value() == alone.memory.gradients.value() / shards);
    CHECK(own.memory.optimizer.value() == alone.memory.optimizer.value() / shards);
    CHECK(own.memory.saved.value() <= alone.memory.saved.value() / shards + 3);
    CHECK(own.reduction == Seconds{});
  }
}

TEST_CASE("tensor parallel: ZeRO shards within replicas of a shard", "[laws]") {
  ModelProfile model = testing::chain(3, 1e6, 24000, 480);
  model.tensor_regions = {{{NodeId(0), NodeId(1)}, {ParameterId(0), ParameterId(1)}, 12, true, {}, {}, 0, 0}};
  const Cluster cluster = without_launches(4);
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  Constraints constraints;
  constraints.world = 4;
  constraints.batch = 16;
  constraints.memory = Bytes(1 << 30);
  const StepObjective objective(work, cluster, constraints);
  const Staging staging{{0, 0, 0}, {2}, 1, ScheduleKind::kGPipe, {}, {2}};
  const std::int64_t held = 24000 / 2 * 2 + 24000;  // two parameters in slices, one that both shards have
  const auto sized = objective.pipeline(staging, place(staging, RankPlacement::kReplicasTogether));
  REQUIRE(sized.pipeline.groups.size() == 2);
  for (const int zero : {0, 1, 2, 3}) {
    const auto memory = objective.evaluate(staging, sized, {zero, {}, Offload::kNone}).stages.front().memory;
    const auto share = [&](std::int64_t bytes, int from) { return Bytes(zero >= from ? bytes / 2 : bytes); };
    CAPTURE(zero);
    CHECK(memory.optimizer == share(2 * held, 1));
    CHECK(memory.gradients == share(held, 2));
    CHECK(memory.parameters == share(held, 3));
  }
}

TEST_CASE("tensor parallel: a cut or indivisible region is not sharded", "[laws]") {
  ModelProfile model = testing::chain(4, 1e6, 24000, 480);
  model.tensor_regions = {{{NodeId(0), NodeId(1)}, {ParameterId(0), ParameterId(1)}, 6, true, {}, {}, 0, 0},
                          {{NodeId(2), NodeId(3)}, {ParameterId(2)}, 5, false, {}, {}, 0, 0}};
  const Cluster cluster = testing::small_cluster(8);
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  const auto shards = [&](std::vector<int> stage_of, std::vector<int> tensor) {
    return region_shards_of(
        work.regions,
        {std::move(stage_of), std::vector<int>(tensor.size(), 1), 1, ScheduleKind::kGPipe, {}, std::move(tensor)},
        false);
  };
  CHECK(shards({0, 0, 0, 0}, {2}) == std::vector{2, 2});
  CHECK(shards({0, 0, 0, 0}, {4}) == std::vector{1, 4});
  CHECK(shards({0, 0, 0, 0}, {6}) == std::vector{6, 1});
  CHECK(shards({0, 0, 1, 1}, {2, 4}) == std::vector{2, 4});
  CHECK(shards({0, 1, 1, 1}, {2, 4}) == std::vector{1, 4});
  const Workload sliced = in_shards(work, {{0, 0, 0, 0}, {1}, 1, ScheduleKind::kGPipe, {}, {4}}, false);
  CHECK(sliced.parameters[1].bytes == Bytes(24000));
  CHECK(sliced.parameters[2].bytes == Bytes(24000 * 2 / 5));  // of five units two are on the fullest
  CHECK(sliced.parameters[3].bytes == Bytes(24000));          // not held in slices
  CHECK(sliced.node_costs(8)[0] == work.node_costs(8)[0]);
  CHECK(sliced.node_costs(8)[3].saved == Bytes((work.node_costs(8)[3].saved.value() * 2 + 4) / 5));
}

TEST_CASE("tensor parallel: sequence-parallel needs its region sharded", "[laws]") {
  ModelProfile model = testing::chain(4, 1e6, 24000, 480);
  model.tensor_regions = {{{NodeId(0)}, {ParameterId(0)}, 6, true, {}, {}, 0, 0},
                          {{NodeId(2)}, {ParameterId(2)}, 4, false, {}, {}, 0, 0},
                          {{NodeId(1)}, {}, 12, false, {}, {40, 0}, 0, 2, 0},
                          {{NodeId(3)}, {}, 3, false, {}, {}, 0, 0, 1}};
  REQUIRE(fault_in_tensor_regions(model) == "");
  const Cluster cluster = without_launches(8);
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  const auto staging = [](std::vector<int> stage_of, std::vector<int> tensor) {
    return Staging{std::move(stage_of), std::vector<int>(tensor.size(), 1), 1, ScheduleKind::kGPipe, {},
                   std::move(tensor)};
  };
  const auto shards = [&](std::vector<int> stage_of, std::vector<int> tensor, bool sequence) {
    return region_shards_of(work.regions, staging(std::move(stage_of), std::move(tensor)), sequence);
  };
  CHECK(shards({0, 0, 0, 0}, {2}, false) == std::vector{2, 2, 1, 1});
  CHECK(shards({0, 0, 0, 0}, {2}, true) == std::vector{2, 2, 2, 2});
  CHECK(shards({0, 0, 0, 0}, {4}, true) == std::vector{1, 4, 1, 1});  // of six units, and of three tokens
  CHECK(shards({0, 1, 1, 1}, {2, 2}, true) == std::vector{2, 2, 1, 2});
  CHECK(shards({0, 1, 1, 1}, {2, 1}, true) == std::vector{2, 1, 1, 1});

  Constraints constraints;
  constraints.world = 2;
  constraints.batch = 24;
  constraints.memory = Bytes(1 << 30);
  const auto terms = [&](bool sequence) {
    constraints.sequences = {sequence};
    return StepObjective(work, cluster, constraints)(staging({0, 0, 0, 0}, {2}));
  };
  const StepTerms whole = terms(false), cut = terms(true);
  CHECK(cut.optimizations.sequence);
  const auto all = cut.meshes.front().tensor_group(0);
  const StageTerms &own = cut.stages.front(), &plain = whole.stages.front();
  const double part = (0.5 + 0.5 + 0.5 + 2.0 / 3) / (0.5 + 1 + 0.5 + 1);  // of three tokens two are on the fullest
  CHECK(own.forward.value() == Approx(plain.forward.value() * part).epsilon(1e-12));
  const Seconds sums = cost.all_reduce(Bytes(40 * 24 / 2), all) * 2.0;
  CHECK(own.backward.value() == Approx((plain.backward * part + sums).value()).epsilon(1e-12));
  CHECK(own.memory.parameters == plain.memory.parameters);
  CHECK(own.memory.saved < plain.memory.saved);
  constraints.sequences = {false, true};
  const StepTerms best = StepObjective(work, cluster, constraints)(staging({0, 0, 0, 0}, {2}));
  CHECK(best.step == std::min(whole.step, cut.step));

  const auto fault = [&](int region, int follows) {
    ModelProfile wrong = model;
    wrong.tensor_regions[static_cast<std::size_t>(region)].follows = follows;
    return fault_in_tensor_regions(wrong);
  };
  CHECK(fault(3, 2).find("follows 2") != std::string::npos);  // which follows one itself
  CHECK(fault(2, 3).find("follows 3") != std::string::npos);  // which comes later
  CHECK(fault(1, 0).find("follows 0") != std::string::npos);  // but has a parameter
}

namespace {

/// What plans of random instances were, all of which the checker accepts and can be run.
struct Checked {
  int with_shards = 0, forced = 0, pipelined = 0, shared = 0, by_tokens = 0;
  int by_zero[4] = {};  ///< of those in which a tensor shard has replicas
};

Checked check_plans(int first, int last) {
  Checked out;
  for (int seed = first; seed < last; ++seed) {
    Instance c = random_instance(seed);
    if (seed % 2 == 0) c.request.options.tensor_parallel = c.cluster.devices % 3 == 0 ? 3 : 2;
    if (seed % 3 == 0) c.request.options.zero = seed / 6 % 4;
    const auto plan = planned(c);
    if (!plan) continue;
    CAPTURE(seed, to_text(*plan));
    CHECK(faults(c, *plan) == "");
    CHECK_NOTHROW(require_sound(c.model, *plan));
    test::check_with_oracles(c.model, RooflineCost(c.cluster), *plan);
    if (!has_shards(*plan)) continue;
    ++out.with_shards;
    out.by_tokens += plan->sequence_parallel ? 1 : 0;
    out.forced += seed % 2 == 0 ? 1 : 0;
    const auto has_replicas = [](const Mesh& mesh) { return mesh.tensor() > 1 && mesh.replicas() > 1; };
    if (std::ranges::any_of(meshes_of(*plan), has_replicas)) ++out.by_zero[plan->zero];
    out.pipelined += plan->stages.size() > 1 ? 1 : 0;
    out.shared += plan->stages.size() > 1 && plan->stages[0].mesh.ranks() == plan->stages[1].mesh.ranks() ? 1 : 0;
  }
  return out;
}

}  // namespace

TEST_CASE("tensor parallel: plans are confirmed by check_plan", "[laws]") {
  Checked seen = check_plans(0, 200);
  check_plans(491, 492);  // shards with and without samples come to what they share at different times
  CAPTURE(seen.with_shards, seen.forced, seen.pipelined, seen.shared, seen.by_tokens, seen.by_zero[1], seen.by_zero[2],
          seen.by_zero[3]);
  CHECK(seen.forced > 20);
  CHECK(seen.with_shards > seen.forced + 15);
  CHECK(seen.pipelined > 15);
  CHECK(seen.shared > 2);
  CHECK(seen.by_tokens > 5);
  for (const int zero : {1, 2, 3}) CHECK(seen.by_zero[zero] > 2);
}

TEST_CASE("tensor parallel: thousands of plans pass check_plan", "[laws][.nightly]") {
  CHECK(check_plans(1000, 4000).with_shards > 1000);
}

namespace {

/// What an instance asks for, of schedules that the referee knows; nothing if it asks for what cannot be.
std::optional<Constraints> with_closed_forms(const Instance& c, const Workload& work) {
  try {
    Constraints constraints = resolve(c.request, work, c.cluster);
    std::erase_if(constraints.schedules, [](ScheduleKind kind) { return !has_closed_form(kind); });
    return constraints;
  } catch (const CaptureError&) {
    return std::nullopt;
  }
}

/// Compared with the referee: how many random graphs fit, have shards in their best plan, different ones by stage, and
/// shards whose replicas share under ZeRO.
struct Compared {
  int fitting = 0, with_shards = 0, mixed = 0, sharing = 0, by_tokens = 0;
};

Compared compare(int first, int last) {
  Compared out;
  for (int seed = first; seed < last; ++seed) {
    const Instance c = random_instance(seed, 5, 4);
    const RooflineCost cost(c.cluster);
    const Workload work = make_workload(c.model, cost);
    const auto constraints = with_closed_forms(c, work);
    if (!constraints) continue;
    const StepObjective objective(work, c.cluster, *constraints);
    const auto exact = [](const StepObjective& each) { return ExactStaging{}.search(each); };
    const auto brute = [](const StepObjective& each) { return testing::BruteForce{}.search(each); };
    SearchResult found = detail::search_degrees(objective, exact);
    const SearchResult uniform = detail::search_degrees(objective, brute);
    CAPTURE(seed);
    REQUIRE(found.candidates.any_fits() == uniform.candidates.any_fits());
    if (!uniform.candidates.any_fits()) continue;
    ++out.fitting;
    CHECK(found.candidates.best_step().value() == Approx(uniform.candidates.best_step().value()).epsilon(1e-9));
    CHECK(found.proven);
    if (constraints->tensor_degrees.size() == 1) continue;
    const SearchResult all = testing::BruteForce{}.search(objective);
    ExactStaging{}.search_mixed(objective, found);
    CHECK(found.proven);
    CHECK(found.candidates.best_step().value() == Approx(all.candidates.best_step().value()).epsilon(1e-9));
    const bool has_shards = !all.candidates.best().staging.tensor.empty();
    out.with_shards += has_shards ? 1 : 0;
    out.sharing += has_shards && all.candidates.best().terms.optimizations.zero > 0 ? 1 : 0;
    out.by_tokens += all.candidates.best().terms.optimizations.sequence ? 1 : 0;
    out.mixed += all.candidates.best_step() < uniform.candidates.best_step() * (1 - 1e-9) ? 1 : 0;
  }
  return out;
}

}  // namespace

TEST_CASE("LowerBound: never above the step with tensor shards", "[laws]") {
  double tightness = 0;
  int stagings = 0, with_shards = 0, cut = 0;
  for (int seed = 0; seed < 4000; ++seed) {
    CAPTURE(seed);
    Dice dice(static_cast<std::uint64_t>(seed) + 5);
    Instance c = random_instance(seed, 8);
    if (dice.chance(50)) {  // exchanging takes longer than slices save
      for (LinkLevel& level : c.cluster.levels) level.link.latency = Seconds(dice(1, 9) * 1e-4);
    }
    const RooflineCost cost(c.cluster);
    const Workload work = make_workload(c.model, cost);
    Constraints constraints;
    constraints.world = c.cluster.devices;
    constraints.batch = c.request.batch;
    constraints.memory = Bytes(1 << 30);
    constraints.sequences = {false, true};
    constraints.zero_levels = {0, 1, 2, 3};
    constraints.tensor_degrees.clear();
    for (int degree = 1; degree <= constraints.world; ++degree) {
      if (constraints.world % degree == 0) constraints.tensor_degrees.push_back(degree);
    }
    Staging staging = test::random_staging(dice, work, constraints.world);
    for (int& replicas : staging.replicas) {
      std::vector<int> degrees = constraints.tensor_degrees;
      std::erase_if(degrees, [&](int degree) { return replicas % degree != 0; });
      staging.tensor.push_back(degrees[static_cast<std::size_t>(dice.below(static_cast<int>(degrees.size())))]);
      replicas /= staging.tensor.back();
    }
    if (ties_tensor_shards(work, staging)) continue;
    const StepObjective objective(work, c.cluster, constraints);
    const double step = objective(staging).step.value();

    std::deque<Constraints> of_degrees;
    std::deque<StepObjective> objectives;
    std::deque<detail::StageTable> tables_of;
    std::vector<const StepObjective*> all;
    std::map<int, detail::StageDegree> degrees;
    for (const int degree : constraints.tensor_degrees) {
      of_degrees.push_back(constraints.at_degree(degree));
      objectives.push_back(objective.under(of_degrees.back()));
      tables_of.push_back(std::move(*detail::StageTable::make(objectives.back(), 100'000)));
      all.push_back(&objectives.back());
      degrees[degree] = {degree, &tables_of.back()};
    }
    auto tables = detail::StageTable::make(objective, 100'000, all);
    detail::LowerBound bound(*tables, objective, staging.microbatches, staging.schedule);
    double before = bound({}, constraints.world);
    REQUIRE(before <= step * (1 + 1e-9));
    std::vector<detail::ChosenStage> chosen;
    int left = constraints.world;
    const auto stages = test::stages_of(tables->tails(), staging);
    for (std::size_t s = stages.size(); s-- > 0;) {
      chosen.push_back(
          bound.choose(degrees[staging.tensor[s]], stages[s], staging.replicas[s], stages.size() == 1, 0, chosen));
      left -= staging.replicas[s] * staging.tensor[s];
      before = bound(chosen, left);
      REQUIRE(before <= step * (1 + 1e-9));
    }
    tightness += step > 0 ? before / step : 1;
    ++stagings;
    const auto shards = region_shards_of(work.regions, staging, true);
    with_shards += std::ranges::any_of(shards, [](int count) { return count > 1; }) ? 1 : 0;
    cut += std::ranges::any_of(staging.tensor, [](int count) { return count > 1; }) && std::ranges::count(shards, 1) > 0
               ? 1
               : 0;
  }
  CAPTURE(stagings, with_shards, cut, tightness / stagings);
  CHECK(with_shards > 400);
  CHECK(cut > 600);
  CHECK(tightness / stagings > 0.6);
}

TEST_CASE("tensor parallel: degrees equal those of brute force", "[laws]") {
  const auto [fitting, with_shards, mixed, sharing, by_tokens] = compare(0, 80);
  CAPTURE(fitting, with_shards, mixed, sharing, by_tokens);
  CHECK(by_tokens > 5);
  CHECK(fitting > 70);
  CHECK(with_shards > 20);
  CHECK(mixed > 1);
  CHECK(sharing > 1);
}

TEST_CASE("tensor parallel: brute force agrees on 2,000 random graphs", "[laws][.nightly]") {
  const auto [fitting, with_shards, mixed, sharing, by_tokens] = compare(1000, 3000);
  CAPTURE(fitting, with_shards, mixed, sharing, by_tokens);
  CHECK(by_tokens > 150);
  CHECK(fitting > 1900);
  CHECK(with_shards > 500);
  CHECK(mixed > 60);
  CHECK(sharing > 60);
}

namespace {

/// Compared with the referee: how many random graphs, and of how many the least has different degrees by stage.
std::pair<int, int> compare_least_memory(int first, int last) {
  int compared = 0, mixed = 0;
  for (int seed = first; seed < last; ++seed) {
    CAPTURE(seed);
    const Instance c = random_instance(seed, 5, 4);
    const RooflineCost cost(c.cluster);
    const Workload work = make_workload(c.model, cost);
    const auto constraints = with_closed_forms(c, work);
    if (!constraints) continue;
    if (constraints->tensor_degrees.size() == 1) continue;
    const auto least = detail::least_memory_of_degrees(StepObjective(work, c.cluster, *constraints), /*mixes=*/true);
    if (!least) continue;
    CHECK(least->proven);
    const auto any_fits = [&](Bytes memory) {
      Constraints limited = *constraints;
      limited.memory = memory;
      return testing::BruteForce{}.search(StepObjective(work, c.cluster, limited)).candidates.any_fits();
    };
    CHECK_FALSE(any_fits(least->peak - Bytes(1)));
    const auto& degrees = least->staging.tensor;
    const bool is_mixed = std::ranges::adjacent_find(degrees, std::ranges::not_equal_to{}) != degrees.end();
    CHECK(any_fits(least->peak));
    ++compared;
    mixed += is_mixed ? 1 : 0;
  }
  return {compared, mixed};
}

std::string refusal(const Instance& c) {
  try {
    (void)plan_with_defaults(c.model, c.cluster, c.request);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

/// Layers of attention and two linear layers each, as wide as `hidden`, and a class head with its loss at the end.
ModelProfile transformer(int layers, int hidden, int classes) {
  ModelProfile model;
  NodeId before = NodeId::none();
  const double width = hidden;
  const auto add = [&](const std::string& name, double weights) {
    const auto id = ParameterId::of(model.parameters.size());
    model.parameters.push_back(
        {name, Bytes(static_cast<std::int64_t>(4 * weights)), true, static_cast<std::int64_t>(weights)});
    OpProfile op = testing::atom(name, 0, 4 * width, {id});
    op.path = name;
    op.work.front().forward = {{2 * weights, 0}, {8 * width, 4 * weights}, {0, 2}};
    op.work.front().backward = {{4 * weights, 0}, {16 * width, 8 * weights}, {0, 4}};
    const NodeId node = model.graph.add_node(std::move(op));
    if (before.valid()) model.graph.add_edge(before, node, {before.value(), {4 * width, 0}, true});
    before = node;
    return node;
  };
  const auto shard = [&](std::vector<NodeId> atoms, std::int64_t units, bool even, Affine forward, Affine backward) {
    TensorRegion region{std::move(atoms), {}, units, even, forward, backward, 1, 1};
    for (const NodeId node : region.atoms) region.parameters.push_back(model.graph[node].parameters.front());
    model.tensor_regions.push_back(std::move(region));
  };
  for (int i = 0; i < layers; ++i) {
    const std::string layer = "layers." + std::to_string(i);
    shard({add(layer + ".attention", 4 * width * width)}, 8, true, {4 * width, 0}, {4 * width, 0});
    const NodeId up = add(layer + ".up", 4 * width * width);
    shard({up, add(layer + ".down", 4 * width * width)}, 4 * hidden, true, {4 * width, 0}, {4 * width, 0});
  }
  shard({add("head", width * classes)}, classes, false, {16, 0}, {4 * width, 0});
  for (const NodeId node : model.graph.nodes()) model.graph[node].ops = {node.value()};
  model.inputs = {{-1, {4 * width, 0}, false, {NodeId(0)}}};
  model.outputs = {{before.value(), {0, 8}, before}};
  return model;
}

}  // namespace

TEST_CASE("tensor parallel: memory bound is that of all stagings", "[laws]") {
  const auto [compared, mixed] = compare_least_memory(0, 60);
  CAPTURE(compared, mixed);
  CHECK(compared > 20);
  CHECK(mixed > 1);
}

TEST_CASE("tensor parallel: a forced degree holds or names the nearest") {
  Instance c{transformer(2, 64, 1000), testing::small_cluster(8, Bytes(1 << 26)), {.batch = 16}};
  c.request.runtime = runtime_capabilities();
  c.request.runtime.max_tensor_parallel = 1;
  c.request.options.tensor_parallel = 2;
  CHECK_THAT(refusal(c), Catch::Matchers::Contains("at most 1"));
  c.request.runtime.max_tensor_parallel = 8;
  for (const int degree : {1, 2, 4, 8}) {
    c.request.options.tensor_parallel = degree;
    const auto plan = planned(c);
    REQUIRE(plan);
    CHECK(std::ranges::all_of(plan->stages, [&](const auto& stage) { return stage.mesh.tensor() == degree; }));
    CHECK(faults(c, *plan) == "");
  }
  c.request.options.tensor_parallel = 3;
  CHECK_THAT(refusal(c),
             Catch::Matchers::Contains("does not divide the world of 8 ranks; the nearest that can be is 2"));
  c.request.world = 6;
  c.request.options.tensor_parallel = 6;  // of the head alone, which need not be even
  CHECK(refusal(c) == "");
  c.model.tensor_regions.pop_back();
  CHECK_THAT(refusal(c), Catch::Matchers::Contains("by so many shards together; the nearest that can be is 2"));
  c.request.options.tensor_parallel = 2;
  c.request.options.stages = 4;
  CHECK_THAT(refusal(c), Catch::Matchers::Contains("stages = 4 of tensor_parallel = 2 need 8 ranks"));
  c.model.tensor_regions.clear();
  CHECK_THAT(refusal(c), Catch::Matchers::Contains("nothing that tensor shards can compute together; use 1"));
}

TEST_CASE("require_sound: stages that shards cannot run are refused") {
  Instance c{testing::chain(4, 1e6, 4000, 400), testing::small_cluster(4, Bytes(1 << 26)), {.batch = 16}};
  for (const NodeId node : {NodeId(0), NodeId(3)}) c.model.graph[node].parameters.push_back(ParameterId(1));
  c.request.options.stages = 2;
  c.request.options.replicas = {2};
  const auto plan = planned(c);
  REQUIRE(plan);
  CHECK_NOTHROW(require_sound(c.model, *plan));
  Plan sharded = *plan;
  sharded.stages[1].mesh = Mesh(plan->stages[1].mesh.ranks(), 2);
  CHECK_THROWS_WITH(require_sound(c.model, sharded),
                    Catch::Matchers::Contains("the stage shares parameter 1 with stage 0, "
                                              "but one of them has tensor shards"));
}

TEST_CASE("tensor parallel: unused where not wanted or without regions") {
  Instance c{transformer(2, 64, 1000), testing::small_cluster(4, Bytes(1 << 26)), {.batch = 8}};
  c.request.runtime = runtime_capabilities();
  c.request.runtime.max_tensor_parallel = 1;
  const auto before = planned(c);
  c.request.runtime.max_tensor_parallel = 8;
  c.request.options.tensor_parallel = 1;
  auto plain = planned(c);
  REQUIRE(plain);
  CHECK(plain->constraints != before->constraints);  // a plan keeps the options that were set
  plain->constraints = before->constraints;
  CHECK(plain == before);
  c.request.options.tensor_parallel = 0;
  c.model.tensor_regions.clear();
  CHECK(planned(c) == before);
}

TEST_CASE("tensor parallel: degrees with too few ranks are skipped") {
  Instance c{transformer(2, 64, 1000), testing::small_cluster(4, Bytes(1 << 26)), {.batch = 12}};
  c.request.runtime = runtime_capabilities();
  c.request.options.stages = 2;
  c.request.options.replicas = {3, 1};
  const auto plan = planned(c);
  REQUIRE(plan);
  CHECK(plan->stages.front().mesh.replicas() == 3);
  CHECK(std::ranges::all_of(plan->stages, [](const auto& stage) { return stage.mesh.tensor() == 1; }));
}

TEST_CASE("tensor parallel: a class head is sharded over replicas", "[laws]") {
  for (const int layers : {4, 70}) {                                         // of many, blocks are planned
    ModelProfile model = testing::chain(layers, 1.6e8 / layers, 4000, 400);  // much to compute of few parameters
    const NodeId last(layers - 1);
    OpProfile& head = model.graph[last];
    const ParameterId weights = head.parameters.front();
    model.parameters[weights.index()].bytes = Bytes(8'000'000);
    head.work.front().forward = {{1e5, 0}, {1e3, 8e6}, {0, 1}};
    head.work.front().backward = {{2e5, 0}, {2e3, 1.6e7}, {0, 1}};
    model.tensor_regions = {{{last}, {weights}, 100'000, false, {16, 0}, {400, 0}, 1, 1}};
    Instance c{model, testing::small_cluster(4, Bytes(1 << 30)), {.batch = 16}};
    c.request.runtime = runtime_capabilities();
    c.request.runtime.max_tensor_parallel = 8;
    const auto plan = planned(c);
    REQUIRE(plan);
    CAPTURE(layers, to_text(*plan));
    REQUIRE(plan->stages.size() == 2);
    CHECK(plan->stages[0].mesh == Mesh({Rank(0), Rank(1), Rank(2), Rank(3)}, 1));
    CHECK(plan->stages[1].mesh == Mesh({Rank(0), Rank(1), Rank(2), Rank(3)}, 4));
    CHECK(plan->stages[1].atoms == std::vector{last});
    CHECK(region_shards_of(c.model, *plan) == std::vector{4});
    CHECK(faults(c, *plan) == "");
    CHECK_NOTHROW(require_sound(c.model, *plan));
  }
}

TEST_CASE("tensor parallel: the choice is no slower than forced degrees", "[laws]") {
  int pairs = 0, with_shards = 0, without = 0;
  const auto compare_at = [&](int layers, int hidden, int devices, double latency) {
    const ModelProfile model = transformer(layers, hidden, hidden == 32 ? 20'000 : 50);
    Instance c{model, testing::small_cluster(devices, Bytes(1 << 28)), {.batch = hidden == 32 ? 64 : 8}};
    for (LinkLevel& level : c.cluster.levels) level.link.latency = Seconds(latency);
    c.request.runtime.max_tensor_parallel = 8;
    c.request.options.max_microbatches = 2;
    const auto plan = planned(c);
    REQUIRE(plan);
    ++pairs;
    (has_shards(*plan) ? with_shards : without) += 1;
    CAPTURE(layers, hidden, devices, latency, to_text(*plan));
    for (int degree = 1; degree <= devices; degree *= 2) {
      c.request.options.tensor_parallel = degree;
      if (const auto forced = planned(c)) CHECK(plan->step <= forced->step * (1 + 1e-9));
    }
  };
  for (const int layers : {1, 2, 3, 4}) {
    for (const int hidden : {32, 192}) {
      for (const double latency : {1e-6, 3e-4, 1e-2}) {
        compare_at(layers, hidden, 2, latency);
        compare_at(layers, hidden, 4, latency);
      }
    }
  }
  for (const double latency : {1e-6, 3e-4}) compare_at(1, 192, 8, latency);
  compare_at(14, 32, 4, 3e-4);  // its blocks are planned
  CAPTURE(pairs, with_shards, without);
  CHECK(pairs >= 50);
  CHECK(with_shards > 20);
  CHECK(without > 10);
}
