#include <autopar/schedule/synthesised.hpp>

#include <algorithm>
#include <limits>

#include <autopar/schedule/validate.hpp>
#include <autopar/testing/pipelines.hpp>

#include <catch_shim.hpp>

#include "equal_times.hpp"
#include "rendezvous.hpp"

using namespace autopar;
using testing::Dice;
using testing::in_a_row;
using testing::single_ranks;

namespace {

/// Times of stages that do not depend on samples, messages that do.
struct Uneven {
  std::vector<double> f, b, w;
  double message_seconds = 0;
  [[nodiscard]] Seconds forward(StageId s, std::int64_t) const { return Seconds(f[s.index()]); }
  [[nodiscard]] Seconds backward(StageId s, std::int64_t) const { return Seconds(b[s.index()] + w[s.index()]); }
  [[nodiscard]] Seconds backward_input(StageId s, std::int64_t) const { return Seconds(b[s.index()]); }
  [[nodiscard]] Seconds backward_weight(StageId s, std::int64_t) const { return Seconds(w[s.index()]); }
  [[nodiscard]] Seconds message(Rank, const Action& action) const {
    return Seconds(action.channel == 0 ? 0 : message_seconds * static_cast<double>(action.samples.size()));
  }
  [[nodiscard]] Seconds reduce(const Action&) const { return {}; }
};

Uneven uneven_times(std::size_t stages, Dice& dice, double message_seconds = 0) {
  Uneven out{{}, {}, {}, message_seconds};
  for (std::size_t s = 0; s < stages; ++s) {
    out.f.push_back(dice(5, 15) / 10.0);
    out.b.push_back(dice(5, 15) / 10.0);
    out.w.push_back(dice.chance(10) ? 0 : dice(3, 13) / 10.0);
  }
  return out;
}

std::vector<Bytes> held_of(const Program& program, const std::vector<Bytes>& held) {
  return peak_activations(program, [&](StageId stage, std::int64_t) { return held[stage.index()]; });
}

bool within(const std::vector<Bytes>& peaks, const std::vector<Bytes>& limits) {
  for (std::size_t r = 0; r < peaks.size(); ++r) {
    if (peaks[r] > limits[r]) return false;
  }
  return true;
}

/// The simulated step of the fastest fixed schedule that runs on a pipeline and fits; infinite if none does. Policies
/// of stages let the replicas of stages that share ranks differ in order, which synthesised orders do not: only where
/// no stage has replicas, or each rank one stage, are they compared.
double best_fixed(const Pipeline& pipeline, const BatchLayout& layout, const Uneven& costs,
                  const std::vector<Bytes>& held, const std::vector<Bytes>& limits) {
  double best = std::numeric_limits<double>::infinity();
  const auto chunks = chunk_layout(pipeline);
  for (const ScheduleKind kind : kScheduleKinds) {
    if (kind == ScheduleKind::kSynthesised || (kind == ScheduleKind::kZbV && !lies_in(StageLayout::kVShaped, chunks)) ||
        (kind == ScheduleKind::kInterleaved && !lies_in(StageLayout::kLooped, chunks))) {
      continue;
    }
    const bool replicas = pipeline.ranks > chunks.size();
    if (!wants_chunks(kind) && replicas && chunks.chunks() > 1) continue;
    const auto program = make_program(pipeline, layout, kind);
    if (within(held_of(program, held), limits)) best = std::min(best, simulate(pipeline, program, costs).step.value());
  }
  return best;
}

struct Task {
  Pipeline pipeline;
  std::vector<Bytes> held, limits;
  int microbatches = 1;
};

/// Stages in a row on positions with unequal replicas; limits from what one micro-batch needs to plenty.
Task random_task(Dice& dice) {
  std::vector<int> replicas;
  for (int p = dice(1, 4); p > 0; --p) replicas.push_back(dice.chance(60) ? 1 : dice(2, 3));
  const auto positions = testing::positions_of(replicas);
  Task out{in_a_row(dice.chance(40) ? stages_in(StageLayout::kVShaped, positions)
                                    : stages_in(StageLayout::kLooped, positions, dice(1, 2))),
           {},
           {},
           dice(1, 9)};
  for (std::size_t s = 0; s < out.pipeline.stages.size(); ++s) out.held.emplace_back(dice(1, 5));
  std::vector<Bytes> need(static_cast<std::size_t>(out.pipeline.ranks));
  for (std::size_t s = 0; s < out.held.size(); ++s) {
    for (const Rank rank : out.pipeline.stages[s].ranks()) need[rank.index()] += out.held[s];
  }
  const int rounds = dice(1, 6);
  for (const Bytes bytes : need) out.limits.push_back(Bytes(bytes.value() * rounds + dice.below(4)));
  return out;
}

/// The shortest makespan of any order of a row of stages, one a rank, within the limits.
class BruteForce {
 public:
  explicit BruteForce(const detail::SynthesisProblem& problem) : problem_(problem), timeline_(problem) {
    orders_.resize(problem.lanes.size());
  }
  double run() {
    extend(0);
    return best_;
  }

 private:
  void extend(std::size_t lane) {
    if (lane == orders_.size()) {
      if (timeline_.play(orders_)) best_ = std::min(best_, timeline_.makespan());
      return;
    }
    auto& order = orders_[lane];
    const std::size_t stage = problem_.lanes[lane].stages.front();
    const int computes = problem_.stages[stage].split ? 3 : 2;
    if (order.size() == static_cast<std::size_t>(computes * problem_.microbatches)) {
      if (problem_.fits(order, problem_.lanes[lane])) extend(lane + 1);
      return;
    }
    for (int m = 0; m < problem_.microbatches; ++m) {
      const auto done =
          std::count_if(order.begin(), order.end(), [&](const auto& compute) { return compute.microbatch == m; });
      if (done == computes) continue;
      const ActionKind kinds[] = {ActionKind::kForward, problem_.stages[stage].first_backward(),
                                  ActionKind::kBackwardWeight};
      order.push_back({kinds[done], m, StageId::of(stage)});
      extend(lane);
      order.pop_back();
    }
  }

  const detail::SynthesisProblem& problem_;
  detail::OrderedTimeline timeline_;
  detail::LaneOrders orders_;
  double best_ = std::numeric_limits<double>::infinity();
};

}  // namespace

TEST_CASE("Synthesised: fits, beats fixed ones, not below its bound", "[schedule]") {
  int faster = 0, alone = 0;
  for (std::uint32_t seed = 0; seed < 400; ++seed) {
    Dice dice(seed);
    const Task task = random_task(dice);
    const auto costs = uneven_times(task.held.size(), dice, dice.chance(50) ? 0 : 0.02);
    const auto layout = testing::even_layout(task.pipeline, task.microbatches);
    const Synthesised<Uneven> policy{
        .costs = costs, .local = layout.local, .held = task.held, .limits = task.limits, .budget = 300};
    const auto found = policy.synthesise(task.pipeline, task.microbatches);
    INFO("seed " << seed);
    const auto program = make_program(task.pipeline, layout, found.orders);
    REQUIRE(simulate(task.pipeline, program, costs).step == found.step);
    REQUIRE(within(held_of(program, task.held), task.limits));
    const double fixed = best_fixed(task.pipeline, layout, costs, task.held, task.limits);
    REQUIRE(found.best_fixed.value() <= fixed * (1 + 1e-12));
    REQUIRE(found.step.value() <= fixed * (1 + 1e-12));
    REQUIRE(found.step.value() >= found.lower_bound.value() * (1 - 1e-12));
    REQUIRE(found.states <= 300);
    REQUIRE(policy.rank_orders(task.pipeline, task.microbatches) == found.orders.orders);
    faster += found.step < found.best_fixed * (1 - 1e-6) ? 1 : 0;
    alone += found.best_fixed.value() == std::numeric_limits<double>::infinity() ? 1 : 0;
  }
  CHECK(faster > 200);
  CHECK(alone > 80);
}

TEST_CASE("Synthesised: optimal for small pipelines", "[schedule]") {
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    Dice dice(seed);
    const int stages = dice(2, 3), microbatches = 2;
    const auto pipeline = in_a_row(single_ranks(stages));
    const auto costs = uneven_times(static_cast<std::size_t>(stages), dice);
    const auto layout = testing::even_layout(pipeline, microbatches);
    const std::vector<Bytes> held(static_cast<std::size_t>(stages), Bytes(1));
    const std::vector<Bytes> limits(held.size(), Bytes(dice(1, 2)));
    const auto problem = detail::ProblemReader<Uneven>(pipeline, layout, costs).read(held, limits, true);
    const double least = BruteForce(problem).run();
    const auto found = Synthesised<Uneven>{costs, layout.local, held, limits}.synthesise(pipeline, microbatches);
    INFO("seed " << seed);
    REQUIRE(found.lower_bound.value() <= least * (1 + 1e-12));
    REQUIRE(found.step.value() >= least * (1 - 1e-12));
    REQUIRE(found.step.value() <= least * (1 + 1e-9));
  }
}

TEST_CASE("Synthesised: keeps a fixed schedule that is proven best", "[schedule]") {
  const auto pipeline = in_a_row(stages_in(StageLayout::kVShaped, single_ranks(8)));
  const Synthesised<testing::EqualTimes> policy{
      .costs = {}, .local = testing::even_layout(pipeline, 32).local, .limits = std::vector<Bytes>(8, Bytes(16))};
  const auto found = policy.synthesise(pipeline, 32);
  CHECK(found.origin == ScheduleKind::kZbV);
  CHECK(found.step.value() == Approx(6 * 32 + 7));
  CHECK(found.lower_bound == found.step);
  CHECK(found.states == 0);
}

TEST_CASE("Synthesised: half of ZB-V's memory costs 14 % more time", "[schedule]") {
  const auto pipeline = in_a_row(stages_in(StageLayout::kVShaped, single_ranks(8)));
  const Synthesised<testing::EqualTimes> policy{.costs = {},
                                                .local = testing::even_layout(pipeline, 32).local,
                                                .limits = std::vector<Bytes>(8, Bytes(8)),
                                                .budget = 500};
  const auto found = policy.synthesise(pipeline, 32);
  CHECK(found.best_fixed.value() == std::numeric_limits<double>::infinity());
  CHECK(found.step.value() <= 226);
  for (const int peak : testing::timeline_of(pipeline, 32, found.orders).peaks) CHECK(peak <= 8);
}

TEST_CASE("Synthesised: unsplit backwards where the runtime needs them", "[schedule]") {
  Dice dice(1);
  const auto pipeline = in_a_row(stages_in(StageLayout::kLooped, single_ranks(3), 2));
  const Synthesised<Uneven> policy{
      .costs = uneven_times(6, dice), .local = testing::even_layout(pipeline, 6).local, .parts_backwards = false};
  const auto found = policy.synthesise(pipeline, 6);
  for (const auto& computes : found.orders.orders) {
    CHECK(computes.size() == 2 * 6 * 2);
    for (const ComputeAction compute : computes)
      CHECK((compute.kind == ActionKind::kForward || compute.kind == ActionKind::kBackward));
  }
}

TEST_CASE("Synthesised: programs compute the reference", "[schedule]") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    const auto kind = seed % 3 == 0   ? ScheduleKind::kOneFOneB
                      : seed % 3 == 1 ? ScheduleKind::kInterleaved
                                      : ScheduleKind::kZbV;
    const auto [pipeline, layout] = testing::random_placed_case(seed, traits_of(kind).layout, 6, 6);
    Dice dice(seed);
    const Synthesised<Uneven> policy{
        .costs = uneven_times(pipeline.stages.size(), dice, 0.1), .local = layout.local, .budget = 60};
    const auto found = policy.synthesise(pipeline, layout.microbatches);
    INFO("seed " << seed);
    for (const Phase phase : {Phase::kStep, Phase::kForward}) {
      const auto program = make_program(pipeline, layout, ScheduleKind::kSynthesised, phase, found.orders);
      const auto fault = find_fault(pipeline, layout, phase, program);
      REQUIRE((fault ? fault->what : "") == "");
      auto ranks = testing::symbolic_ranks(pipeline, layout);
      REQUIRE(testing::run_blocking(pipeline, layout, phase, program, ranks) == "");
    }
  }
}

TEST_CASE("Synthesised: stages that share some ranks are ordered", "[schedule]") {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    const auto [pipeline, layout] = testing::random_chunked_case(seed, 5, 5);
    Dice dice(seed);
    const Synthesised<Uneven> policy{
        .costs = uneven_times(pipeline.stages.size(), dice, 0.1), .local = layout.local, .budget = 60};
    const auto found = policy.synthesise(pipeline, layout.microbatches);
    const auto program = make_program(pipeline, layout, found.orders);
    INFO("seed " << seed);
    REQUIRE(!find_fault(pipeline, layout, Phase::kStep, program));
    REQUIRE(found.step.value() >= found.lower_bound.value() * (1 - 1e-12));
  }
}

TEST_CASE("Synthesised: a limit below one micro-batch is refused", "[schedule]") {
  const auto pipeline = in_a_row(stages_in(StageLayout::kLooped, single_ranks(2), 2));
  const Synthesised<testing::EqualTimes> policy{
      .costs = {}, .local = {2, 2}, .held = {Bytes(3), Bytes(1), Bytes(4), Bytes(1)}, .limits = {Bytes(6), Bytes(9)}};
  CHECK_THROWS_WITH(policy.rank_orders(pipeline, 2), Catch::Matchers::ContainsSubstring("rank 0 may hold 6") &&
                                                         Catch::Matchers::ContainsSubstring("takes 7"));
}
