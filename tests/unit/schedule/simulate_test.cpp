#include <autopar/schedule/simulate.hpp>

#include <algorithm>
#include <chrono>
#include <limits>

#include <autopar/schedule/gpipe.hpp>
#include <autopar/schedule/one_f_one_b.hpp>
#include <autopar/schedule/program.hpp>
#include <autopar/testing/pipelines.hpp>

#include <catch_shim.hpp>

#include "equal_times.hpp"
#include "random_orders.hpp"

using namespace autopar;

namespace {

struct UnitCosts {
  double forward_seconds = 1, backward_seconds = 2, message_seconds = 0, reduce_seconds = 0;
  [[nodiscard]] Seconds forward(StageId, std::int64_t) const { return Seconds(forward_seconds); }
  [[nodiscard]] Seconds backward(StageId, std::int64_t) const { return Seconds(backward_seconds); }
  [[nodiscard]] Seconds message(Rank, const Action&) const { return Seconds(message_seconds); }
  [[nodiscard]] Seconds reduce(const Action&) const { return Seconds(reduce_seconds); }
};

struct SplitCosts : UnitCosts {
  [[nodiscard]] Seconds backward_input(StageId, std::int64_t) const { return Seconds(1.5); }
  [[nodiscard]] Seconds backward_weight(StageId, std::int64_t) const { return Seconds(1); }
};

struct InTwoParts {
  using policy_category = schedule_policy_tag;
  [[nodiscard]] std::vector<ComputeAction> order(StageId, int, int) const {
    return {{ActionKind::kForward, 0}, {ActionKind::kBackwardInput, 0}, {ActionKind::kBackwardWeight, 0}};
  }
  [[nodiscard]] int peak_activations(StageId, int, int) const { return 1; }
};

/// `stages` stages of `replicas` ranks in a row, inputs at the first.
Pipeline row(int stages, int replicas) {
  Pipeline pipeline{.ranks = stages * replicas, .stages = {}, .channels = {}, .groups = {}};
  for (int s = 0; s < stages; ++s) {
    std::vector<Rank> ranks;
    for (int q = 0; q < replicas; ++q) ranks.push_back(Rank(s * replicas + q));
    pipeline.stages.push_back(ranks);
    pipeline.channels.push_back({s == 0 ? kSource : StageId(s - 1), StageId(s), ChannelKind::kBatched, s > 0});
    if (replicas > 1) pipeline.groups.push_back({ranks, StageId(s), 4});
  }
  return pipeline;
}

BatchLayout even(const Pipeline& pipeline, int microbatches) {
  return {std::vector<std::int64_t>(static_cast<std::size_t>(pipeline.ranks), microbatches), microbatches};
}

/// A message to one rank takes as long as its number.
struct MessagesByReader : UnitCosts {
  [[nodiscard]] Seconds message(Rank, const Action& action) const { return Seconds(action.peer.value()); }
};

template <SchedulePolicy Policy>
void check_closed_forms(const Policy& policy) {
  for (const int p : {1, 2, 3, 4, 6, 8}) {
    for (const int m : {1, 2, 3, 4, 8, 17, 32}) {
      const auto pipeline = row(p, 1);
      const auto program = make_program(pipeline, even(pipeline, m), policy);
      const auto timeline = simulate(pipeline, program, UnitCosts{});
      INFO(p << " stages, " << m << " micro-batches");
      REQUIRE(timeline.step.value() == Approx(3.0 * (m + p - 1)));
      REQUIRE(testing::idle_share(timeline) == Approx((p - 1.0) / (m + p - 1.0)).margin(1e-12));
      const auto peaks = peak_activations(program, [](StageId, std::int64_t) { return 1; });
      for (int s = 0; s < p; ++s) {
        REQUIRE(peaks[static_cast<std::size_t>(s)] == policy.peak_activations(StageId(s), p, m));
      }
    }
  }
}

}  // namespace

TEST_CASE("simulate: tensor shards start their exchanges together") {
  Pipeline pipeline{.ranks = 3, .stages = {{Rank(0)}, Mesh({Rank(1), Rank(2)}, 2)}, .channels = {}, .groups = {}};
  pipeline.channels = {{StageId(0), StageId(1), ChannelKind::kBatched, true}};
  const auto program = make_program(pipeline, {{1, 0, 0}, 1}, OneFOneB{});
  const auto timeline = simulate(pipeline, program, MessagesByReader{});
  for (const std::size_t rank : {1u, 2u}) {
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      const Action& action = program.ranks[rank][i];
      // Rank 0 computes for a second, then sends to rank 1 for a second and to rank 2 for two.
      if (action.kind == ActionKind::kForward) CHECK(timeline.spans[rank][i].start.value() == Approx(4));
      if (action.kind == ActionKind::kBackward) CHECK(timeline.spans[rank][i].start.value() == Approx(5));
    }
  }
}

TEST_CASE("simulate: bubble and peak activations are the published ones", "[schedule]") {
  check_closed_forms(GPipe{});
  check_closed_forms(OneFOneB{});
}

TEST_CASE("simulate: messages delay the warm-up, then overlap", "[schedule]") {
  const auto pipeline = row(2, 1);
  const auto gpipe = make_program(pipeline, even(pipeline, 8), GPipe{});
  UnitCosts costs{.message_seconds = 0.25};
  // One input message comes from the other rank, then one message down and one up are exposed.
  CHECK(simulate(pipeline, gpipe, costs).step.value() == Approx(3.0 * 9 + 3 * 0.25));
  costs.message_seconds = 4;  // the link is the bottleneck: input, 8 messages one after the other, 8 back
  CHECK(simulate(pipeline, gpipe, costs).step.value() > 8 * 4 * 2);
}

TEST_CASE("simulate: messages of one rank are serialised", "[schedule]") {
  Pipeline pipeline{.ranks = 5,
                    .stages = {{Rank(0), Rank(1), Rank(2), Rank(3)}, {Rank(4)}},
                    .channels = {{StageId(0), StageId(1), ChannelKind::kBatched, false}},
                    .groups = {}};
  const auto program = make_program(pipeline, {{4, 0, 0, 0, 0}, 1}, GPipe{}, Phase::kForward);
  CHECK(simulate(pipeline, program, UnitCosts{.message_seconds = 1}).step.value() == Approx(1 + 4 + 1));

  std::swap(pipeline.stages[0], pipeline.stages[1]);
  const auto spread = make_program(pipeline, {{0, 0, 0, 0, 4}, 1}, GPipe{}, Phase::kForward);
  CHECK(simulate(pipeline, spread, UnitCosts{.message_seconds = 1}).step.value() == Approx(1 + 4 + 1));
}

TEST_CASE("simulate: buckets are reduced in order as they fill", "[schedule]") {
  const auto pipeline = row(1, 2);  // 4 buckets, filled at 1.5, 2, 2.5 and 3 seconds
  const auto program = make_program(pipeline, even(pipeline, 1), GPipe{});
  CHECK(simulate(pipeline, program, UnitCosts{.reduce_seconds = 0.25}).step.value() == Approx(3.25));
  CHECK(simulate(pipeline, program, UnitCosts{.reduce_seconds = 1}).step.value() == Approx(1.5 + 4));
}

TEST_CASE("simulate: stages on one rank share its time", "[schedule]") {
  for (const int stages : {1, 2, 5}) {
    Pipeline pipeline = row(stages, 1);
    pipeline.ranks = 1;
    for (auto& stage : pipeline.stages) stage = {Rank(0)};
    const auto timeline =
        simulate(pipeline, make_program(pipeline, even(pipeline, 4), OneFOneB{}), UnitCosts{.message_seconds = 5});
    CHECK(timeline.step.value() == Approx(3.0 * stages * 4));
    CHECK(testing::idle_share(timeline) == Approx(0.0).margin(1e-12));
  }
}

TEST_CASE("simulate: an action waits for its own stage's messages alone", "[schedule]") {
  const Pipeline pipeline{.ranks = 2,
                          .stages = {{Rank(0)}, {Rank(1)}, {Rank(1)}},
                          .channels = {{StageId(0), StageId(1), ChannelKind::kBatched, false},
                                       {StageId(0), StageId(2), ChannelKind::kBatched, false}},
                          .groups = {}};
  const auto program = make_program(pipeline, {{1, 0}, 1}, GPipe{}, Phase::kForward);
  const auto timeline = simulate(pipeline, program, UnitCosts{.message_seconds = 0.75});
  std::vector<double> starts;
  for (std::size_t i = 0; i < program.ranks[1].size(); ++i) {
    if (is_compute(program.ranks[1][i].kind)) starts.push_back(timeline.spans[1][i].start.value());
  }
  CHECK(starts == std::vector<double>{1.75, 2.75});  // the second message arrives at 2.5, while stage 1 runs
}

TEST_CASE("simulate: reductions start in the last backward", "[schedule]") {
  Pipeline pipeline{.ranks = 2,
                    .stages = {{Rank(0), Rank(1)}, {Rank(0), Rank(1)}},
                    .channels = {{StageId(0), StageId(1), ChannelKind::kBatched, true}},
                    .groups = {{{Rank(0), Rank(1)}, StageId(1), 2}, {{Rank(0), Rank(1)}, StageId(0), 1}}};
  const UnitCosts costs{.reduce_seconds = 0.5};
  const auto sums = [&] {
    const auto program = make_program(pipeline, {{1, 1}, 1}, GPipe{});  // F 0-1, F 1-2, B 2-4, B 4-6
    const auto timeline = simulate(pipeline, program, costs);
    std::vector<double> starts;
    for (std::size_t i = 0; i < program.ranks[0].size(); ++i) {
      if (program.ranks[0][i].kind == ActionKind::kAllReduce) starts.push_back(timeline.spans[0][i].start.value());
    }
    return starts;
  };
  CHECK(sums() == std::vector<double>{3, 4, 6});
  pipeline.groups[0].stage = StageId::none();
  CHECK(sums() == std::vector<double>{6, 6.5, 7});
}

TEST_CASE("simulate: split backwards need costs that know them", "[schedule]") {
  const auto pipeline = row(2, 1);
  const auto program = make_program(pipeline, even(pipeline, 1), InTwoParts{});
  const auto timeline = simulate(pipeline, program, SplitCosts{});  // the weight backwards of both stages overlap
  CHECK(timeline.busy == std::vector<Seconds>{Seconds(3.5), Seconds(3.5)});
  CHECK(timeline.step.value() == Approx(1 + 1 + 1.5 + 1.5 + 1));
  CHECK_THROWS_WITH(simulate(pipeline, program, UnitCosts{}), Catch::Matchers::ContainsSubstring("in two parts"));
}

TEST_CASE("peak_activations: held until the last part of the backward", "[schedule]") {
  using enum ActionKind;
  const StageId s(0);
  const auto compute = [&](ActionKind kind, int microbatch) {
    return Action{.kind = kind, .stage = s, .microbatch = microbatch, .samples = {0, 1}};
  };
  const auto peak = [&](std::vector<Action> actions) {
    return peak_activations(Program{{std::move(actions)}}, [](StageId, std::int64_t) { return 1; })[0];
  };
  CHECK(peak({compute(kForward, 0), compute(kBackward, 0), compute(kForward, 1), compute(kBackward, 1)}) == 1);
  CHECK(peak({compute(kForward, 0), compute(kBackwardInput, 0), compute(kBackwardWeight, 0), compute(kForward, 1)}) ==
        1);
  CHECK(peak({compute(kForward, 0), compute(kBackwardInput, 0), compute(kForward, 1), compute(kBackwardWeight, 0)}) ==
        2);
}

TEST_CASE("simulate: spans obey the executor's laws", "[schedule]") {
  for (std::uint32_t seed = 0; seed < 900; ++seed) {
    const auto [pipeline, layout] =
        seed % 3 == 0 ? testing::random_case(seed, 7, 6) : testing::random_chunked_case(seed, 6, 5);
    const auto program = seed % 3 == 2 ? make_program(pipeline, layout, testing::RandomOrders{seed})
                                       : make_program(pipeline, layout, OneFOneB{});
    const auto timeline = simulate(pipeline, program, SplitCosts{{1, 2, 0.125, 0.5}});
    Seconds end{};
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      Seconds computed{};
      for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
        const Action& action = program.ranks[r][i];
        const Span span = timeline.spans[r][i];
        end = std::max(end, span.end);
        if (action.kind == ActionKind::kReceive && action.stage.valid()) {
          const auto needs = [&](const Action& a) {
            return (a.kind == ActionKind::kForward || gives_input_gradients(a.kind)) && a.stage == action.stage &&
                   a.microbatch == action.microbatch && a.flow == action.flow;
          };
          const auto compute = std::find_if(program.ranks[r].begin(), program.ranks[r].end(), needs);
          REQUIRE(timeline.spans[r][static_cast<std::size_t>(compute - program.ranks[r].begin())].start >= span.end);
        }
        if (is_compute(action.kind)) {
          REQUIRE(span.start >= computed);
          computed = span.end;
        } else if (action.kind == ActionKind::kSend) {
          const Channel& channel = pipeline.channels[static_cast<std::size_t>(action.channel)];
          if ((action.flow == Flow::kValue ? channel.from : channel.to).valid()) REQUIRE(span.start >= computed);
        }
      }
    }
    REQUIRE(timeline.step == end);
  }
}

TEST_CASE("simulate: a deadlocked program is refused", "[schedule]") {
  const auto pipeline = row(2, 1);
  auto program = make_program(pipeline, even(pipeline, 2), GPipe{});
  program.ranks[1].pop_back();  // the last gradient is never sent
  CHECK_THROWS_AS(simulate(pipeline, program, UnitCosts{}), InvalidArgument);
}

TEST_CASE("simulate: handles 64 ranks x 64 micro-batches", "[schedule]") {
  const auto pipeline = row(16, 4);
  const auto program = make_program(pipeline, even(pipeline, 64), OneFOneB{});
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    CHECK(simulate(pipeline, program, UnitCosts{}).step.value() == Approx(3.0 * (64 + 15)));
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  WARN("64 ranks x 64 micro-batches simulated in " << best * 1e3 << " ms");
}
