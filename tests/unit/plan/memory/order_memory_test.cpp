#include <catch_shim.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <autopar/plan/memory/in_flight.hpp>
#include <autopar/plan/option_text.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/plan/verify/stated_plan.hpp>
#include <autopar/schedule/batch_split.hpp>
#include <autopar/testing/dice.hpp>
#include <autopar/testing/random_models.hpp>

#include "unit/plan/whole_memory_request.hpp"

// Several stages a rank, or a synthesised order: memory follows the order of compute actions, and the sizes of
// micro-batches.
namespace autopar::order_memory_test {

constexpr std::int64_t kBatch = 16;

/// A chain of which all that counts is parameters and activations.
/// @param kept  scales the latter
ModelProfile model_with(testing::Dice& dice, int nodes, int kept) {
  ModelProfile model = testing::chain(nodes, 1e6, 1000, 1);
  for (const NodeId node : model.graph.nodes()) {
    OpProfile& op = model.graph[node];
    op.saved = {static_cast<double>(dice(1, 60) * kept), 0};
    op.workspace = op.forward_workspace = {};
    op.deferred_weight = {static_cast<double>(dice.chance(75) ? dice(1, 10) * 10 : 0), 0};
    model.parameters[node.index()].bytes = Bytes(dice(1, 40) * 1000);
  }
  return model;
}

struct Held {
  Bytes most{};        ///< of a rank, as its compute actions run
  Bytes one_sample{};  ///< that its stages keep of one sample
  Bytes early{};       ///< gradients that first halves make: these are predicted to be there from the start
  Bytes update{};      ///< when all gradients are there, of the optimizer's step
};

/// What a rank holds, action by action.
Held simulated(const ModelProfile& model, const Plan& plan, std::size_t rank) {
  const verify::StatedPlan stated(model, plan);
  const BatchSplit split(stated.pipeline, stated.layout);
  struct Atom {
    Bytes gradient{}, deferred{};  // the second of a sample
  };
  struct Stage {
    Bytes early{}, late{};  // gradients, of the first half of a split backward and of the second
    Bytes sample{}, deferred{};
    std::vector<Atom> second_half{};  // in the order in which their backwards run
    bool has_early = false, has_late = false;
  };
  const bool splits = traits_of(plan.schedule).splits_backwards;
  std::vector<Stage> stages(plan.stages.size());
  Held held;
  Bytes now{}, gradients{}, largest{};
  for (const std::size_t s : stated.stages_on[rank]) {
    for (const NodeId node : plan.stages[s].atoms) {
      const Bytes parameter = model.parameters[node.index()].bytes;
      now += parameter * 3;  // with Adam's state
      const auto per_sample = [](const Affine& bytes) { return Bytes(static_cast<std::int64_t>(bytes.per_sample)); };
      const Bytes deferred = per_sample(model.graph[node].deferred_weight);
      (splits && deferred == Bytes(0) ? stages[s].early : stages[s].late) += parameter;
      stages[s].deferred += deferred;
      stages[s].second_half.insert(stages[s].second_half.begin(),
                                   {deferred == Bytes(0) ? Bytes(0) : parameter, deferred});
      largest = std::max(largest, parameter);
      stages[s].sample += per_sample(model.graph[node].saved);
    }
    gradients += stages[s].early + stages[s].late;
    held.early += stages[s].early;
    held.one_sample += stages[s].sample + stages[s].deferred;
  }
  held.update = now + gradients + largest * 2;
  const auto orders = stated.orders();
  for (const ComputeAction& compute : orders[rank]) {
    Stage& stage = stages[compute.stage.index()];
    const std::int64_t samples = split.slice(compute.stage, 0, compute.microbatch).size();
    if (compute.kind == ActionKind::kForward) now += stage.sample * samples;
    if (gives_input_gradients(compute.kind) && !std::exchange(stage.has_early, true)) now += stage.early;
    const bool is_first = gives_weight_gradients(compute.kind) && !std::exchange(stage.has_late, true);
    if (is_first && compute.kind != ActionKind::kBackwardWeight) now += stage.late;
    held.most = std::max(held.most, now);
    if (compute.kind == ActionKind::kBackwardWeight) {
      for (const Atom& atom : stage.second_half) {
        now += is_first ? atom.gradient : Bytes(0);
        held.most = std::max(held.most, now);
        now -= atom.deferred * samples;
      }
    }
    if (gives_input_gradients(compute.kind)) now -= stage.sample * samples;
    if (compute.kind == ActionKind::kBackwardInput) now += stage.deferred * samples;
    held.most = std::max(held.most, now);
  }
  return held;
}

TEST_CASE("several stages a rank or a synthesised order: memory is what it holds", "[laws]") {
  int with_gradients_to_come = 0, of_plain_stages = 0;
  for (unsigned seed = 0; seed < 120; ++seed) {
    testing::Dice dice(seed);
    const bool is_plain = seed % 4 == 3;  // too few nodes for several stages a rank
    const ModelProfile model = model_with(dice, is_plain ? 3 : 8, is_plain ? 400 : 100);
    PlanRequest request = test::whole_memory_request(kBatch);
    request.options.stages = 2;
    request.options.replicas = {1, 1};
    request.options.microbatches = dice(2, 5);
    request.options.schedule =
        is_plain ? ScheduleKind::kSynthesised
                 : std::vector{ScheduleKind::kInterleaved, ScheduleKind::kSynthesised, ScheduleKind::kZbV}[seed % 3];
    request.options.recompute = Recompute::kNever;
    request.options.optimizer_state_factor = 2;
    const Plan plan = plan_with_defaults(model, testing::small_cluster(2, Bytes(1 << 30)), request);
    if (plan.stages.size() < 4 && !is_plain) continue;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      INFO("seed " << seed << ", " << option_text(plan.schedule) << ", " << plan.microbatches << " micro-batches, rank "
                   << rank);
      Bytes predicted{}, gradients{};
      for (const StagePlan& stage : plan.stages) {
        if (!stage.mesh.contains(Rank::of(rank))) continue;
        predicted += stage.peak_memory;
        for (const ParameterId id : stage.parameters) gradients += model.parameters[id.index()].bytes;
      }
      const Held held = simulated(model, plan, rank);
      const Bytes exact = std::max(held.most, held.update);
      constexpr Bytes kMessages(1000), kSamples(8 * kBatch);
      CHECK(predicted >= exact);
      CHECK(predicted <= exact + held.early + held.one_sample + kMessages + kSamples);
      with_gradients_to_come += predicted > held.update + gradients ? 1 : 0;
      of_plain_stages += is_plain && held.most > held.update ? 1 : 0;
    }
  }
  CHECK(with_gradients_to_come > 10);  // activations decide
  CHECK(of_plain_stages > 10);
}

TEST_CASE("MicrobatchSamples: what micro-batches hold is in proportion to the largest ones", "[laws]") {
  const MicrobatchSamples alike(4), sizes({5, 6, 5});
  CHECK(alike.of(3) == 1);
  CHECK(alike.most(3) == 3);
  CHECK(alike.held(Bytes(7), 3) == Bytes(21));
  CHECK(alike.arrived({.whole = 2, .waiting = 1}) == 4);
  CHECK(alike.arrived({.whole = 3, .waiting = 1}) == 4);  // there is no other one
  CHECK(sizes.of(0) == 5);
  CHECK(sizes.of(1) == 6);
  CHECK(sizes.least() == 5);
  CHECK(sizes.most(0) == 0);
  CHECK(sizes.most(1) == 6);
  CHECK(sizes.most(2) == 11);
  CHECK(sizes.most(4) == 16);
  CHECK(sizes.arrived({.whole = 5}) == 11);
  CHECK(sizes.arrived({.whole = 5, .waiting = 6}) == 16);
  CHECK(sizes.held(Bytes(600), 5) == Bytes(500));
  CHECK(sizes.held(Bytes(1), 11) == Bytes(2));  // rounded up
}

}  // namespace autopar::order_memory_test
