#include <autopar/plan/memory/optimizations.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include <catch_shim.hpp>

#include <autopar/cost/roofline.hpp>
#include <autopar/plan/model/segments.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/report/runnable.hpp>
#include <autopar/testing/brute_force.hpp>
#include <autopar/testing/random_instances.hpp>

#include "unit/plan/whole_memory_request.hpp"

using namespace autopar;
using testing::Dice;

namespace {

/// A staging of consecutive nodes, and everything that it refers to.
struct Staged {
  explicit Staged(std::uint64_t seed, bool has_host = false)
      : dice(seed), model(testing::random_model(dice, 6)), cluster(small_cluster(has_host)), cost(cluster) {
    for (const NodeId node : model.graph.nodes()) model.graph[node].saved.per_sample *= 20;
    work = make_workload(model, cost);
    constraints.world = cluster.devices;
    constraints.batch = dice(1, 24);
    constraints.memory = Bytes(dice(50, 800) * 1000);
    constraints.recompute = Recompute::kToFit;
    constraints.zero_levels = {0, 1, 2, 3};
    if (has_host) constraints.offloads.push_back(Offload::kOptimizer);
    if (has_host) constraints.host_memory = Bytes(dice(50, 800) * 1000);
    work.segment_of = recompute_segments(work, constraints, 2);
    const int n = static_cast<int>(work.graph.node_count());
    const int stages = dice(1, std::min(n, 2));
    for (int i = 0; i < n; ++i) staging.stage_of.push_back(i * stages / n);
    for (int s = 0; s < stages; ++s) staging.replicas.push_back(dice(1, 4 / stages));
    staging.microbatches = dice(1, 4);
    staging.schedule = dice.chance(50) ? ScheduleKind::kGPipe : ScheduleKind::kOneFOneB;
  }

  static Cluster small_cluster(bool has_host) {
    Cluster cluster = testing::small_cluster(4);
    if (has_host) cluster.host = testing::small_host(Bytes(1 << 20));
    return cluster;
  }

  Dice dice;
  ModelProfile model;
  Cluster cluster;
  RooflineCost cost;
  Workload work;
  Constraints constraints;
  Staging staging;
};

using Segments = std::vector<std::vector<NodeId>>;

/// Every set of segments of every stage, at every level, offloaded or not: the shortest step that fits.
std::optional<Seconds> best_of_all(const Staged& staged, const StepObjective& objective) {
  const auto meshes = place(staged.staging, RankPlacement::kReplicasTogether);
  const SizedPipeline sized = make_pipeline(staged.work, staged.staging, meshes, staged.constraints.world);
  const auto all = detail::segments_in_stages(staged.work, staged.staging);
  std::vector<std::pair<std::size_t, std::size_t>> pieces;
  for (std::size_t s = 0; s < all.size(); ++s) {
    for (std::size_t i = 0; i < all[s].size(); ++i) pieces.emplace_back(s, i);
  }
  std::optional<Seconds> best;
  for (const int zero : staged.constraints.zero_levels) {
    for (const Offload offload : staged.constraints.offloads) {
      for (std::uint32_t set = 0; set < 1u << pieces.size(); ++set) {
        MemoryOptimizations optimizations{zero, std::vector<Segments>(all.size()), offload};
        for (std::size_t p = 0; p < pieces.size(); ++p) {
          if ((set >> p & 1u) != 0)
            optimizations.recomputed[pieces[p].first].push_back(all[pieces[p].first][pieces[p].second]);
        }
        const StepTerms terms = objective.evaluate(staged.staging, sized, optimizations);
        if (objective.fits(terms) && (!best || terms.step < *best)) best = terms.step;
      }
    }
  }
  return best;
}

ModelProfile deep(double saved) {
  ModelProfile model = testing::chain(12, 1e6, 1000, 400);
  for (const NodeId node : model.graph.nodes()) model.graph[node].saved = {saved, 0};
  return model;
}

}  // namespace

TEST_CASE("MemoryOptimizations: the least recomputation is optimal", "[laws]") {
  int judged = 0, recomputed = 0, sharded = 0, offloaded = 0, best_found = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    const Staged staged(seed + 3'000'000, seed % 2 == 1);
    const StepObjective objective(staged.work, staged.cluster, staged.constraints);
    const auto meshes = place(staged.staging, RankPlacement::kReplicasTogether);
    const StepTerms chosen = objective.evaluate(staged.staging, meshes);
    const auto best = best_of_all(staged, objective);
    // A greedy choice may need one piece more than a knapsack, but never claims to fit where nothing does.
    if (!best) {
      CHECK_FALSE(objective.fits(chosen));
      continue;
    }
    if (!objective.fits(chosen)) continue;
    ++judged;
    CHECK(chosen.step >= *best * (1 - 1e-12));
    best_found += chosen.step <= *best * (1 + 1e-9) ? 1 : 0;
    recomputed += chosen.optimizations.recomputes() ? 1 : 0;
    sharded += chosen.optimizations.zero > 0 ? 1 : 0;
    offloaded += chosen.optimizations.offload == Offload::kOptimizer ? 1 : 0;
  }
  CHECK(judged > 250);
  CHECK(recomputed > 40);
  CHECK(sharded > 40);
  CHECK(offloaded > 10);
  CHECK(best_found > judged * 9 / 10);
}

TEST_CASE("recompute: trades activations for inputs and forward time") {
  const ModelProfile model = deep(4000);
  const Cluster cluster = testing::small_cluster(1, Bytes(1 << 30));
  const RooflineCost cost(cluster);
  Workload work = make_workload(model, cost);
  Constraints constraints;
  constraints.world = 1;
  constraints.batch = 8;
  constraints.memory = cluster.device.memory;
  // Two micro-batches: all gradients of parameters are there while the second works.
  const Staging staging{std::vector<int>(12, 0), {1}, 2, ScheduleKind::kGPipe};
  const StepObjective objective(work, cluster, constraints);
  const SizedPipeline sized = make_pipeline(work, staging, place({1}, RankPlacement::kReplicasTogether), 1);
  const StepTerms plain = objective.evaluate(staging, sized, {});
  const Segments halves{{NodeId(0), NodeId(1), NodeId(2), NodeId(3), NodeId(4), NodeId(5)},
                        {NodeId(6), NodeId(7), NodeId(8), NodeId(9), NodeId(10), NodeId(11)}};
  const StepTerms again = objective.evaluate(staging, sized, {0, {halves}});
  CHECK(plain.stages[0].memory.saved == Bytes(12 * 4000 * 8));
  CHECK(again.stages[0].memory.saved == Bytes(400 * 8));  // the value between the halves; the input is the boundary's
  const Bytes workspace = plain.stages[0].memory.workspace;
  CHECK(again.stages[0].memory.workspace == workspace + Bytes(6 * 4000 * 4));
  CHECK(again.stages[0].backward.value() ==
        Approx((plain.stages[0].backward + plain.stages[0].forward).value()).epsilon(1e-12));
  CHECK(again.stages[0].forward == plain.stages[0].forward);
}

TEST_CASE("recompute: an output is freed once read in its own stage") {
  // 0 -> 1 -> 2 | 3 -> 4, of which 4 is another stage: 1 is read at 3 as well, 2 at 4 as well, 0 at 3 and kept by
  // nobody.
  ModelProfile model;
  for (int i = 0; i < 5; ++i) {
    OpProfile op;
    op.saved = {i == 0 ? 0.0 : 100.0, 0};
    op.workspace = {50, 0};
    op.forward_workspace = {30, 0};
    model.graph.add_node(op);
  }
  const auto read = [&](int from, int to, double bytes) {
    model.graph.add_edge(NodeId(from), NodeId(to),
                         {from, {bytes, 0}, true, from != 0, from == 1 || from == 2, from != 3});
  };
  for (const auto& [from, to, bytes] : {std::tuple(0, 1, 4.0), {1, 2, 8.0}, {2, 3, 16.0}, {3, 4, 32.0}, {1, 3, 8.0}})
    read(from, to, bytes);
  read(2, 4, 16);
  read(0, 3, 4);
  const Cluster cluster = testing::small_cluster(2, Bytes(1 << 30));
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  const Staging staging{{0, 0, 0, 0, 1}, {1, 1}, 1, ScheduleKind::kOneFOneB};
  const Segments segment{{NodeId(0), NodeId(1), NodeId(2)}};
  const auto piece = detail::measured_pieces(work, staging, {segment, {}}, {1, 1})[0][0];
  CHECK(piece.saved == Bytes(200));
  CHECK(piece.entering == Bytes(0));
  CHECK(piece.leaving == Bytes(8 + 16));
  CHECK(piece.let_go == Bytes(8));
  CHECK(piece.gradients == Bytes(4 + 8 + 16));
  CHECK(piece.summed == std::map<NodeId, Bytes>{{NodeId(2), Bytes(16)}});  // 1 is read within as well
  const std::vector<NodeId> nodes{NodeId(0), NodeId(1), NodeId(2), NodeId(3)};
  const SizedPipeline sized = make_pipeline(work, staging, place(staging, RankPlacement::kReplicasTogether), 2);
  detail::StageMicrobatch stage(nodes, work.node_costs(1), ScheduleKind::kOneFOneB,
                                nodes_apart({work, staging, sized, {1, 1}, {nodes, {}}, {}}, 0, {.copies_go = true}));
  CHECK(stage.memory().kept + stage.memory().work == Bytes(300 + 50));
  stage.recompute(piece);
  // 3 works beside all that leaves; then 2 runs again beside what the other stage has read.
  CHECK(piece.for_others == std::map<NodeId, Bytes>{{NodeId(2), Bytes(16)}});
  CHECK(stage.memory().kept + stage.memory().work == Bytes(std::max(24 + 100 + 50, 16 + 200 + 30 + 28)));
}

TEST_CASE("ZeRO: shards its states among replicas, pays in all-gathers") {
  const ModelProfile model = testing::chain(4, 1e6, 40'000, 400);
  const Cluster cluster = testing::small_cluster(4);
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  Constraints constraints;
  constraints.world = 4;
  constraints.batch = 8;
  constraints.memory = cluster.device.memory;
  constraints.optimizer_state_factor = 2;
  const Staging staging{std::vector<int>(4, 0), {4}, 1, ScheduleKind::kGPipe};
  const StepObjective objective(work, cluster, constraints);
  const auto meshes = place({4}, RankPlacement::kReplicasTogether);
  const SizedPipeline sized = make_pipeline(work, staging, meshes, 4);
  const Bytes whole(4 * 40'000);
  std::vector<StepTerms> levels;
  for (int zero = 0; zero <= 3; ++zero) levels.push_back(objective.evaluate(staging, sized, {zero, {}}));
  for (int zero = 0; zero <= 3; ++zero) {
    CAPTURE(zero);
    const StageMemory& memory = levels[static_cast<std::size_t>(zero)].stages[0].memory;
    CHECK(memory.optimizer == (zero >= 1 ? whole * 2 / 4 : whole * 2));
    CHECK(memory.gradients == (zero >= 2 ? whole / 4 : whole));
    CHECK(memory.parameters == (zero >= 3 ? whole / 4 : whole));
    // 1: a share of all sums, which are one bucket. 2: two units of gradients. 3: and two of parameters.
    CHECK(memory.summed == (zero == 1 ? whole / 4 : Bytes(0)));
    CHECK(memory.gathered == (zero >= 2 ? Bytes(2 * 40'000) : Bytes(0)));
  }
  const auto workspace = [&](std::size_t level) { return levels[level].stages[0].memory.workspace; };
  CHECK(workspace(3) - workspace(2) == Bytes(2 * 40'000));
  // The same bytes travel, half of them after a quarter of the update.
  const Seconds half = work.all_reduce(whole, meshes[0].ranks()) * 0.5;
  CHECK(levels[1].stages[0].update.value() == Approx((work.update(whole / 4, 2) + half).value()).epsilon(1e-12));
  CHECK(levels[1].stages[0].reduction.value() == Approx(levels[0].stages[0].reduction.value() / 2).epsilon(1e-12));
  CHECK(levels[3].stages[0].update.value() == Approx(work.update(whole / 4, 2).value()).epsilon(1e-12));
  CHECK(levels[3].stages[0].forward >= half);
  CHECK(levels[3].stages[0].backward >= half * 2);
}

namespace {

/// They compute while they exchange, unlike CPUs.
Cluster four_devices_of_a_host() {
  Cluster cluster = testing::small_cluster(4);
  cluster.host = Host{};
  return cluster;
}

/// Terms of a model whose one stage four ranks have.
StageTerms shared_by_four(const ModelProfile& model, int zero, std::vector<std::vector<NodeId>> again,
                          ScheduleKind schedule = ScheduleKind::kGPipe) {
  const Cluster cluster = four_devices_of_a_host();
  const RooflineCost cost(cluster);
  Constraints constraints;
  constraints.world = 4;
  constraints.batch = 8;
  constraints.memory = cluster.device.memory;
  const Staging staging{std::vector<int>(model.graph.node_count(), 0), {4}, 1, schedule};
  const Workload work = make_workload(model, cost);
  const StepObjective objective(work, cluster, constraints);
  const SizedPipeline sized = make_pipeline(work, staging, place({4}, RankPlacement::kReplicasTogether), 4);
  return objective.evaluate(staging, sized, {zero, {std::move(again)}}).stages[0];
}

ModelProfile chain_without_activations(int layers, std::int64_t parameter_bytes) {
  ModelProfile model = testing::chain(layers, 1e6, parameter_bytes, 0);
  for (const NodeId node : model.graph.nodes()) {
    OpProfile& op = model.graph[node];
    op.saved = op.workspace = op.forward_workspace = op.deferred_weight = {};
  }
  return model;
}

/// Unsharded parameters at the peak of a model without activations.
Bytes unsharded(const ModelProfile& model, const std::vector<std::vector<NodeId>>& again,
                ScheduleKind schedule = ScheduleKind::kGPipe) {
  return shared_by_four(model, 3, again, schedule).memory.workspace -
         shared_by_four(model, 2, again, schedule).memory.workspace;
}

}  // namespace

TEST_CASE("ZeRO 3: a recomputed segment's parameters stay unsharded") {
  ModelProfile model = chain_without_activations(12, 40'000);
  const auto brought = [&](const std::vector<std::vector<NodeId>>& again) { return unsharded(model, again); };
  const std::vector<NodeId> few{NodeId(2), NodeId(3)}, many{NodeId(4), NodeId(5), NodeId(6), NodeId(7), NodeId(8)};
  CHECK(brought({}) == Bytes(2 * 40'000));
  CHECK(brought({few}) == Bytes(4 * 40'000));
  CHECK(brought({few, many}) == Bytes(7 * 40'000));
  std::vector<NodeId> all;
  for (const NodeId node : model.graph.nodes()) all.push_back(node);
  CHECK(brought({all}) == Bytes(12 * 40'000));
  for (auto& parameter : model.parameters) parameter.copy = parameter.bytes / 2;
  CHECK(brought({}) == Bytes(2 * 20'000));
  CHECK(brought({few, many}) == Bytes(7 * 20'000));
}

TEST_CASE("ZeRO 3: several parameters of an operator may lie in one unit more than one of their size") {
  const Bytes of_one = unsharded(chain_without_activations(12, 80'000), {});
  ModelProfile model = chain_without_activations(12, 40'000);
  for (const NodeId node : model.graph.nodes()) {
    model.graph[node].parameters.push_back(ParameterId::of(model.parameters.size()));
    model.parameters.push_back(model.parameters[node.index()]);
  }
  CHECK(of_one == Bytes(2 * 80'000));
  CHECK(unsharded(model, {}) == of_one + Bytes(80'000));
}

TEST_CASE("ZeRO 3: a recomputed segment keeps 256 MiB, gathers the rest") {
  constexpr std::int64_t kMiB = 1 << 20;
  ModelProfile model = chain_without_activations(12, 64 * kMiB);
  std::vector<NodeId> few, most, all;
  for (const NodeId node : model.graph.nodes()) {
    all.push_back(node);
    if (node.index() < 3)
      few.push_back(node);
    else
      most.push_back(node);
  }
  const std::int64_t units = 64 + 64;  // of the operator that runs, and of the next one
  const auto brought = [&](ScheduleKind schedule, const std::vector<std::vector<NodeId>>& again) {
    return unsharded(model, again, schedule).value() / kMiB;
  };
  CHECK(brought(ScheduleKind::kGPipe, {}) == units);
  CHECK(brought(ScheduleKind::kGPipe, {few}) == units + 3 * 64);
  CHECK(brought(ScheduleKind::kGPipe, {all}) == units + 256);
  CHECK(brought(ScheduleKind::kGPipe, {few, most}) == units + 256);
  // The input half of a backward in two parts ends with all of it.
  CHECK(brought(ScheduleKind::kZbH1, {}) == 12 * 64);
  CHECK(brought(ScheduleKind::kZbH1, {few, most}) == 12 * 64);
  // All of it takes longer than computing.
  const RooflineCost cost(four_devices_of_a_host());
  const auto meshes = place({4}, RankPlacement::kReplicasTogether);
  const auto half_of_sum = [&](std::int64_t mib) {
    return cost.all_reduce(Bytes(mib * kMiB), meshes[0].ranks()).value() * 0.5;
  };
  const auto backward = [&](const std::vector<std::vector<NodeId>>& again) {
    return shared_by_four(model, 3, again).backward.value();
  };
  CHECK(backward({few}) == Approx(2 * half_of_sum(12 * 64)).epsilon(1e-9));
  CHECK(backward({few, most}) == Approx(2 * half_of_sum(12 * 64) + half_of_sum(9 * 64 - 256)).epsilon(1e-9));
  CHECK(backward({all}) == Approx(2 * half_of_sum(12 * 64) + half_of_sum(12 * 64 - 256)).epsilon(1e-9));
  // What others read as well is not let go of.
  model.graph[NodeId(0)].parameters.push_back(ParameterId(11));
  CHECK(brought(ScheduleKind::kGPipe, {most}) == units + 256 + 64);
}

TEST_CASE("ZeRO 3: what is unsharded counts where it is read, units of gradients from their first gradient on") {
  constexpr std::int64_t kMiB = 1 << 20;
  ModelProfile model = chain_without_activations(6, 4 * kMiB);
  model.parameters[3].bytes = Bytes(512 * kMiB);  // a head
  for (const NodeId loss : {NodeId(4), NodeId(5)}) model.graph[loss].parameters.clear();
  const auto peak = [&](int zero) { return shared_by_four(model, zero, {}).memory.running().value() / kMiB; };
  // The head's unit, a bucket of others, and one before it; its gradient, in as many, with none made before.
  CHECK(peak(3) - peak(2) == 512 + 32 - 32 + 4 * 3);
  CHECK(peak(2) == 512 + 4 * 3);
  // A loss that takes much works beside the unit that a backward begins with, and before any gradient is made.
  model.graph[NodeId(5)].workspace = {0, 2048 * kMiB};
  CHECK(peak(2) == 2048);
  CHECK(peak(3) == 2048 + 512);
}

TEST_CASE("parameter copies: freed early with one micro-batch and rank") {
  constexpr std::int64_t kBytes = 40'000, kCopy = kBytes / 2;
  constexpr int kNodes = 6;
  double states = 0;  // of the optimizer, in sizes of the parameters
  ModelProfile model = testing::chain(kNodes, 1e6, kBytes, 400);
  for (auto& parameter : model.parameters) parameter.copy = Bytes(kCopy);
  const auto peak = [&](int replicas, int microbatches, int zero, Offload offload) {
    const Cluster cluster = four_devices_of_a_host();
    const RooflineCost cost(cluster);
    Constraints constraints;
    constraints.world = replicas;
    constraints.batch = 8;
    constraints.optimizer_state_factor = states;
    constraints.memory = cluster.device.memory;
    const Staging staging{std::vector<int>(kNodes, 0), {replicas}, microbatches, ScheduleKind::kGPipe};
    const Workload work = make_workload(model, cost);
    const StepObjective objective(work, cluster, constraints);
    const SizedPipeline sized =
        make_pipeline(work, staging, place({replicas}, RankPlacement::kReplicasTogether), replicas);
    return objective.evaluate(staging, sized, {zero, {}, offload}).stages[0].memory.total();
  };
  const auto more_where_kept = [&](int replicas, int microbatches, int zero = 0, Offload offload = Offload::kNone) {
    for (auto& parameter : model.parameters) parameter.copy_by_call = true;
    const Bytes by_call = peak(replicas, microbatches, zero, offload);
    for (auto& parameter : model.parameters) parameter.copy_by_call = false;
    return peak(replicas, microbatches, zero, offload) - by_call;
  };
  CHECK(more_where_kept(1, 1) == Bytes((kNodes - 1) * kCopy));  // when the first node's backward runs
  states = 2;
  CHECK(more_where_kept(1, 1) == Bytes(kNodes * kCopy));  // when the optimizer steps, with temporaries of its own
  CHECK(more_where_kept(1, 2) == Bytes(0));
  CHECK(more_where_kept(2, 1) == Bytes(0));
  CHECK(more_where_kept(1, 1, 1) == Bytes(0));
  CHECK(more_where_kept(1, 1, 0, Offload::kOptimizer) == Bytes(0));
  for (auto& parameter : model.parameters) parameter.trainable = false;
  CHECK(more_where_kept(1, 1) == Bytes(0));
  for (auto& parameter : model.parameters) parameter.copy_by_call = true;
  model.graph[NodeId(0)].parameters.push_back(ParameterId(1));
  CHECK_THROWS_AS(make_workload(model, RooflineCost(four_devices_of_a_host())), InvalidArgument);
}

TEST_CASE("ZeRO: 16-bit copies halve all-gathers, not reductions") {
  ModelProfile model = testing::chain(4, 1e6, 40'000'000, 400);
  const Cluster cluster = four_devices_of_a_host();
  const RooflineCost cost(cluster);
  Constraints constraints;
  constraints.world = 4;
  constraints.batch = 8;
  constraints.memory = cluster.device.memory;
  const Staging staging{std::vector<int>(4, 0), {4}, 1, ScheduleKind::kGPipe};
  const auto meshes = place({4}, RankPlacement::kReplicasTogether);
  const auto stage_of = [&](int zero) {
    const Workload work = make_workload(model, cost);
    const StepObjective objective(work, cluster, constraints);
    return objective.evaluate(staging, make_pipeline(work, staging, meshes, 4), {zero, {}}).stages[0];
  };
  const Bytes whole(4 * 40'000'000);
  const auto half_of_sum = [&](Bytes bytes) { return cost.all_reduce(bytes, meshes[0].ranks()).value() * 0.5; };
  const double update = cost.update(whole / 4, constraints.optimizer_state_factor).value();
  for (const int copied : {0, 1}) {
    CAPTURE(copied);
    for (auto& parameter : model.parameters) parameter.copy = copied == 1 ? parameter.bytes / 2 : Bytes(0);
    const Bytes gathered = copied == 1 ? whole / 2 : whole;
    CHECK(stage_of(1).update.value() == Approx(update + half_of_sum(gathered)).epsilon(1e-12));
    CHECK(stage_of(2).update.value() == Approx(update + half_of_sum(gathered)).epsilon(1e-12));
    CHECK(stage_of(3).update.value() == Approx(update).epsilon(1e-12));
    // Both take longer than computing.
    CHECK(stage_of(3).forward.value() == Approx(half_of_sum(gathered)).epsilon(1e-12));
    CHECK(stage_of(3).backward.value() == Approx(half_of_sum(gathered) + half_of_sum(whole)).epsilon(1e-12));
    CHECK(stage_of(2).backward.value() == Approx(half_of_sum(whole)).epsilon(1e-12));
    CHECK(stage_of(1).reduction.value() == Approx(half_of_sum(whole)).epsilon(0.01));
  }
}

TEST_CASE("gradients sent in bf16: half the sums, a bucket's copy more") {
  constexpr std::int64_t kElements = 10'000'000;  // of each atom: 40 MB, more than a bucket
  ModelProfile model = testing::chain(4, 1e6, 4 * kElements, 400);
  for (auto& parameter : model.parameters) parameter.elements = kElements;
  const Cluster cluster = four_devices_of_a_host();
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  const Staging staging{std::vector<int>(4, 0), {4}, 1, ScheduleKind::kGPipe};
  const auto meshes = place({4}, RankPlacement::kReplicasTogether);
  const Bytes whole(16 * kElements), bucket(4 * kElements);
  for (int zero = 0; zero <= 3; ++zero) {
    CAPTURE(zero);
    const auto sums = [&](ReduceDtype dtype) {
      Constraints constraints;
      constraints.world = 4;
      constraints.batch = 8;
      constraints.memory = cluster.device.memory;
      constraints.buckets.reduce_dtype = dtype;
      const StepObjective objective(work, cluster, constraints);
      const StepTerms terms =
          objective.evaluate(staging, make_pipeline(work, staging, meshes, 4, constraints.buckets), {zero, {}});
      return std::pair(terms, fixed_memory(work, constraints, staging, zero)[0]);
    };
    const auto [fp32, memory_fp32] = sums(ReduceDtype::kFp32);
    const auto [bf16, memory_bf16] = sums(ReduceDtype::kBf16);
    const auto half = [&](Bytes bytes) { return cost.all_reduce(bytes, meshes[0].ranks()).value() * 0.5; };
    const Seconds StageTerms::*summing = zero < 2 ? &StageTerms::reduction : &StageTerms::backward;
    const double saved = (half(whole) - half(whole / 2)) * (zero == 0 ? 2 : 1);
    CHECK((fp32.stages[0].*summing - bf16.stages[0].*summing).value() == Approx(saved).epsilon(0.01));
    CHECK(memory_bf16.gathered == memory_fp32.gathered + bucket);
    CHECK(memory_bf16.total() <= memory_fp32.total() + bucket);
  }
}

TEST_CASE("offload: states are on the host, sharded under ZeRO") {
  const ModelProfile model = testing::chain(4, 1e6, 40'000, 400);
  Cluster cluster = testing::small_cluster(4);
  cluster.host = testing::small_host(Bytes(1 << 30));
  const RooflineCost cost(cluster);
  const Workload work = make_workload(model, cost);
  Constraints constraints;
  constraints.world = 4;
  constraints.batch = 8;
  constraints.memory = cluster.device.memory;
  constraints.host_memory = cluster.host->memory;
  constraints.gradient_copies = 2;
  const Staging staging{std::vector<int>(4, 0), {4}, 1, ScheduleKind::kGPipe};
  const StepObjective objective(work, cluster, constraints);
  const auto meshes = place({4}, RankPlacement::kReplicasTogether);
  const SizedPipeline sized = make_pipeline(work, staging, meshes, 4);
  const Bytes whole(4 * 40'000), largest(40'000);
  const Seconds half = work.all_reduce(whole, meshes[0].ranks()) * 0.5;
  for (int zero = 0; zero <= 3; ++zero) {
    CAPTURE(zero);
    const StepTerms here = objective.evaluate(staging, sized, {zero, {}}),
                    there = objective.evaluate(staging, sized, {zero, {}, Offload::kOptimizer});
    const StageMemory& memory = there.stages[0].memory;
    const Bytes stepped = zero > 0 ? whole / 4 : whole;
    CHECK(memory.optimizer == Bytes(0));
    CHECK(memory.update == Bytes(0));
    CHECK(memory.gradients == (zero >= 2 ? whole / 4 : whole) * 2);
    CHECK(memory.parameters == here.stages[0].memory.parameters);
    CHECK(memory.host == stepped * (1 + 2 + 2) + (zero > 0 ? largest / 4 : largest) * 2);
    const double bytes = static_cast<double>(stepped.value());
    const double copies = 2 * (3e-6 + bytes / 6e8), stepping = bytes * (3 + 2 * 2) / (4e8 * cluster.device.efficiency);
    CHECK(there.stages[0].update.value() ==
          Approx(copies + stepping + (zero == 1 || zero == 2 ? half.value() : 0)).epsilon(1e-12));
    CHECK(there.stages[0].forward == here.stages[0].forward);
    CHECK(there.stages[0].reduction == here.stages[0].reduction);
    CHECK(there.step > here.step);
  }
}

TEST_CASE("offload: makes a plan fit, and the plan says so") {
  const ModelProfile model = testing::chain(4, 1e6, 40'000, 400);
  Cluster cluster = testing::small_cluster(1, Bytes(600'000));  // parameters, gradients and states are 640,000
  PlanRequest request = test::whole_memory_request(8);
  CHECK_THROWS_WITH(plan_with_defaults(model, cluster, request), !Catch::Contains("offload"));  // these are CPUs
  cluster.host = testing::small_host(Bytes(1 << 20));
  const Plan plan = plan_with_defaults(model, cluster, request);
  CHECK(plan.offload == Offload::kOptimizer);
  CHECK(plan.host_memory == cluster.host->memory);
  CHECK(plan.stages[0].peak_memory <= plan.device_memory);
  CHECK(plan.stages[0].host_memory == Bytes(4 * 40'000 * (1 + 1 + 2) + 2 * 40'000));
  CHECK(describe(memory_optimizations_of(plan)) == " (optimizer offloaded)");
  CHECK_THROWS_WITH(require_runnable(plan, Capabilities{}), Catch::Contains("offload = optimizer"));
  CHECK_NOTHROW(require_runnable(plan, runtime_capabilities()));
  request.options.offload = Offload::kNone;
  CHECK_THROWS_WITH(plan_with_defaults(model, cluster, request),
                    Catch::Contains("offload = optimizer instead of none"));
  request.options.offload = std::nullopt;
  cluster.device.memory = Bytes(1 << 20);  // where it fits as it is, it stays
  CHECK(plan_with_defaults(model, cluster, request).offload == Offload::kNone);
  cluster.device.memory = Bytes(600'000);
  cluster.host->memory = Bytes(500'000);
  CHECK_THROWS_AS(plan_with_defaults(model, cluster, request), InfeasiblePlan);
}

TEST_CASE("recompute_segments: cover every node once, with cheap cuts", "[laws]") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Dice dice(seed + 900);
    const ModelProfile model = testing::random_model(dice, 30);
    const RooflineCost cost(testing::small_cluster(2));
    const Workload work = make_workload(model, cost);
    Constraints constraints;
    CHECK(recompute_segments(work, constraints, 4).empty());
    constraints.recompute = Recompute::kToFit;
    const auto segment_of = recompute_segments(work, constraints, 4);
    REQUIRE(segment_of.size() == work.graph.node_count());
    const std::set<int> segments(segment_of.begin(), segment_of.end());
    CHECK(*segments.begin() == 0);
    CHECK(*segments.rbegin() == static_cast<int>(segments.size()) - 1);
    // Runs of one topological order: numbered along every edge, so that none depends on itself through another.
    for (const EdgeId edge : work.graph.edges())
      CHECK(segment_of[work.graph.source(edge).index()] <= segment_of[work.graph.target(edge).index()]);
  }
  const ModelProfile model = deep(4000);
  const RooflineCost cost(testing::small_cluster(1));
  const Workload work = make_workload(model, cost);
  Constraints constraints;
  constraints.recompute = Recompute::kToFit;
  const auto segment_of = recompute_segments(work, constraints, 1);
  // 12 atoms of 4000 bytes with 400 between them: twelve segments keep 11 x 400 and rebuild 4000, no other number is
  // less.
  CHECK(std::set<int>(segment_of.begin(), segment_of.end()).size() == 12);
}

TEST_CASE("recompute: makes a plan fit, and the plan says so") {
  const ModelProfile model = deep(40'000);
  const Cluster cluster = testing::small_cluster(1, Bytes(1'500'000));  // 12 x 40,000 x 8 samples are 3.84 MB
  PlanRequest request = test::whole_memory_request(8);
  request.options.microbatches = 1;
  const Plan plan = plan_with_defaults(model, cluster, request);
  REQUIRE(plan.stages.size() == 1);
  const auto& segments = plan.stages[0].recomputed;
  CHECK(segments.size() > 6);
  CHECK(segments.size() < 12);  // as few as fit
  CHECK(plan.stages[0].peak_memory <= plan.device_memory);
  CHECK(describe(memory_optimizations_of(plan)) == " (" + std::to_string(segments.size()) + " segments recomputed)");
  request.runtime = {};
  CHECK_THROWS_AS(plan_with_defaults(model, cluster, request), InfeasiblePlan);
  request.runtime = runtime_capabilities();
  request.options.recompute = Recompute::kNever;
  CHECK_THROWS_AS(plan_with_defaults(model, cluster, request), InfeasiblePlan);
  CHECK_THROWS_WITH(require_runnable(plan, Capabilities{}), Catch::Contains("recomputation"));
  CHECK_NOTHROW(require_runnable(plan, runtime_capabilities()));
}

TEST_CASE("recompute: everything, or modules chosen by name") {
  const ModelProfile model = deep(400);
  const Cluster cluster = testing::small_cluster(1, Bytes(1 << 30));
  PlanRequest request = test::whole_memory_request(8);
  request.options.microbatches = 1;
  const auto recomputed_by = [&](const std::string& recompute) {
    request.options.recompute = RecomputeOption::named(recompute).value();
    const Plan plan = plan_with_defaults(model, cluster, request);
    std::vector<NodeId> atoms;
    for (const auto& segment : plan.stages[0].recomputed) atoms.insert(atoms.end(), segment.begin(), segment.end());
    std::sort(atoms.begin(), atoms.end());
    return atoms;
  };
  CHECK(recomputed_by("auto").empty());
  CHECK(recomputed_by("none").empty());
  CHECK(recomputed_by("full").size() == 12);
  const auto one_segment_each = [&](const std::string& module) {
    request.options.recompute = RecomputeOption::of_modules({module});
    return plan_with_defaults(model, cluster, request).stages[0].recomputed;
  };
  CHECK(one_segment_each("layer").size() == 1);
  CHECK(recomputed_by("layer.3,layer.10") == std::vector<NodeId>{NodeId(3), NodeId(10)});
  CHECK(recomputed_by("layer").size() == 12);
  CHECK_THROWS_WITH(recomputed_by("layer.99"), Catch::Contains("layer.99") && Catch::Contains("modules"));
  CHECK_THROWS_WITH(recomputed_by("layer.1,"), Catch::Contains("''"));
}

TEST_CASE("recompute: a non-convex segment is split, and so is its cost") {
  ModelProfile model = deep(400);
  model.graph[NodeId(5)].path = "between.0";
  const Cluster cluster = testing::small_cluster(1, Bytes(1 << 30));
  PlanRequest request = test::whole_memory_request(8);
  request.options.microbatches = 1;
  request.options.recompute = RecomputeOption::of_modules({"layer"});
  const auto segments = plan_with_defaults(model, cluster, request).stages[0].recomputed;
  REQUIRE(segments.size() == 2);
  CHECK(segments[0].size() == 5);
  CHECK(segments[1].front() == NodeId(6));
}

TEST_CASE("recompute: a recomputed segment has its backward unsplit") {
  ModelProfile model = deep(40'000);
  for (const NodeId node : model.graph.nodes()) {
    model.graph[node].deferred_weight = {10'000, 0};
    model.graph[node].workspace = {400, 0};  // as much as the gradient of a value between them
    model.graph[node].forward_workspace = {};
  }
  const Cluster cluster = testing::small_cluster(2, Bytes(1 << 30));
  const RooflineCost cost(cluster);
  Workload work = make_workload(model, cost);
  Staging staging;
  for (int i = 0; i < 12; ++i) staging.stage_of.push_back(i < 6 ? 0 : 1);
  staging.replicas = {1, 1};
  staging.microbatches = 4;
  staging.schedule = ScheduleKind::kZbH1;
  Constraints constraints;
  constraints.world = 2;
  constraints.batch = 8;
  const SizedPipeline sized = make_pipeline(work, staging, {{Rank(0)}, {Rank(1)}}, 2);
  const MemoryOptimizations again{0, {{{NodeId(0), NodeId(1), NodeId(2)}}, {}}};
  const SliceTable slices(constraints);
  const std::vector<InFlight> in_flight{{2, 0}, {1, 1}};
  const auto fixed = fixed_memory(work, constraints, staging, 0);
  const SizedStages stages = sized_stages(work, staging, sized, slices);
  const auto plain = predict_memory(stages, in_flight, {}, fixed);
  const auto saving = predict_memory(stages, in_flight, again, fixed);
  const auto slice = slices.at(4, 1, 2).largest;
  CHECK((plain[0].saved - saving[0].saved).value() == 3 * 40'000 * slice * 2);
  CHECK((saving[0].workspace - plain[0].workspace).value() == 3 * 40'000 * slice);
  CHECK(plain[1].saved.value() == (6 * 40'000 + 6 * 10'000) * slice);
  CHECK(saving[1] == plain[1]);
  const StagingCosts before(work, staging, sized), after(work, staging, sized, again);
  CHECK(after.backward_weight(StageId(0), 1).value() == Approx(before.backward_weight(StageId(0), 1).value() / 2));
  CHECK(after.backward_weight(StageId(1), 1) == before.backward_weight(StageId(1), 1));
  CHECK(after.backward(StageId(0), 1).value() ==
        Approx((before.backward(StageId(0), 1) + before.forward(StageId(0), 1) * 0.5).value()));
}

TEST_CASE("ZeRO: level is chosen, fixed or refused by name") {
  const ModelProfile model = testing::chain(4, 1e6, 40'000, 400);
  const Cluster cluster = testing::small_cluster(4);
  PlanRequest request = test::whole_memory_request(16);
  request.options.replicas = {4};
  for (int zero = 0; zero <= 3; ++zero) {
    request.options.zero = zero;
    const Plan plan = plan_with_defaults(model, cluster, request);
    CHECK(plan.zero == zero);
    CHECK(describe(memory_optimizations_of(plan)) == (zero == 0 ? "" : " (ZeRO " + std::to_string(zero) + ")"));
    if (zero > 0) CHECK_THROWS_WITH(require_runnable(plan, Capabilities{}), Catch::Contains("ZeRO"));
  }
  request.options.zero = 4;
  CHECK_THROWS_AS(plan_with_defaults(model, cluster, request), InvalidArgument);
  request.options.zero = 1;
  request.runtime = {};
  CHECK_THROWS_WITH(plan_with_defaults(model, cluster, request), Catch::Contains("zero = 1"));
}
