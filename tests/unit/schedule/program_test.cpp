#include <autopar/schedule/program.hpp>

#include <algorithm>
#include <string>

#include <autopar/schedule/gpipe.hpp>
#include <autopar/schedule/one_f_one_b.hpp>
#include <autopar/schedule/validate.hpp>

#include <catch_shim.hpp>

#include "random_pipeline.hpp"
#include "rendezvous.hpp"

using namespace autopar;

namespace {

std::vector<std::string> words(const std::vector<Action>& actions) {
  std::vector<std::string> out;
  for (const Action& action : actions) out.push_back(describe(action));
  return out;
}

/// Empty if the program of every phase is accepted and runs to the reference's result.
template <SchedulePolicy Policy>
std::string fault_of_any_phase(const testing::Case& example, const Policy& policy) {
  const auto& [pipeline, layout] = example;
  auto step_ranks = testing::symbolic_ranks(pipeline, layout);
  auto two_phase_ranks = step_ranks;
  for (const Phase phase : {Phase::kStep, Phase::kForward, Phase::kBackward}) {
    const auto program = make_program(pipeline, layout, policy, phase);
    if (const auto fault = find_fault(pipeline, layout, phase, program)) return fault->what;
    auto& ranks = phase == Phase::kStep ? step_ranks : two_phase_ranks;
    const auto wrong = testing::run_blocking(pipeline, layout, phase, program, ranks);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

/// Stage 1 wants micro-batch 1 first, stage 0 gives it last and waits for the backward of 0 before.
struct Stubborn {
  using policy_category = schedule_policy_tag;
  [[nodiscard]] std::vector<Turn> order(StageId stage, int, int) const {
    using enum ActionKind;
    if (stage.value() == 0) return {{kForward, 0}, {kBackward, 0}, {kForward, 1}, {kBackward, 1}};
    return {{kForward, 1}, {kBackward, 1}, {kForward, 0}, {kBackward, 0}};
  }
  [[nodiscard]] int peak_activations(StageId, int, int) const { return 1; }
};

struct Forgetful {
  using policy_category = schedule_policy_tag;
  [[nodiscard]] std::vector<Turn> order(StageId, int, int) const {
    return {{ActionKind::kBackward, 0}, {ActionKind::kForward, 0}};
  }
  [[nodiscard]] int peak_activations(StageId, int, int) const { return 1; }
};

Pipeline two_stages() {
  return {.ranks = 2,
          .stages = {{Rank(0)}, {Rank(1)}},
          .channels = {{kSource, StageId(0), ChannelKind::kBatched, false},
                       {StageId(0), StageId(1), ChannelKind::kBatched, true}},
          .groups = {}};
}

}  // namespace

TEST_CASE("2,000 random pipelines give programs that are accepted and compute the reference", "[schedule]") {
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    const auto example = testing::random_case(seed, 7, 6);
    INFO("seed " << seed);
    REQUIRE(fault_of_any_phase(example, OneFOneB{}) == "");
    REQUIRE(fault_of_any_phase(example, GPipe{}) == "");
  }
}

TEST_CASE("programs of larger random pipelines are accepted", "[schedule]") {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const auto [pipeline, layout] = testing::random_case(seed, 40, 24);
    for (const Phase phase : {Phase::kStep, Phase::kForward, Phase::kBackward}) {
      const auto fault = find_fault(pipeline, layout, phase, make_program(pipeline, layout, OneFOneB{}, phase));
      INFO("seed " << seed << (fault ? ": " + fault->what : ""));
      REQUIRE(!fault);
    }
  }
}

TEST_CASE("two stages under 1F1B: inputs two turns ahead, messages right behind their producer", "[schedule]") {
  const auto program = make_program(two_stages(), {{2, 2}, 2}, OneFOneB{});
  CHECK(words(program.ranks[0]) ==
        std::vector<std::string>{"send of values of channel 0, micro-batch 0, samples [0, 1), to rank 0",
                                 "receive of values of channel 0, micro-batch 0, samples [0, 1), from rank 0",
                                 "receive of values of channel 0, micro-batch 0, samples [1, 2), from rank 1",
                                 "send of values of channel 0, micro-batch 1, samples [0, 1), to rank 0",
                                 "receive of values of channel 0, micro-batch 1, samples [0, 1), from rank 0",
                                 "receive of values of channel 0, micro-batch 1, samples [1, 2), from rank 1",
                                 "forward of stage 0, micro-batch 0, samples [0, 2)",
                                 "send of values of channel 1, micro-batch 0, samples [0, 2), to rank 1",
                                 "forward of stage 0, micro-batch 1, samples [0, 2)",
                                 "send of values of channel 1, micro-batch 1, samples [0, 2), to rank 1",
                                 "receive of gradients of channel 1, micro-batch 0, samples [0, 2), from rank 1",
                                 "backward of stage 0, micro-batch 0, samples [0, 2)",
                                 "receive of gradients of channel 1, micro-batch 1, samples [0, 2), from rank 1",
                                 "backward of stage 0, micro-batch 1, samples [0, 2)"});
}

TEST_CASE("every message of a stage directly follows what makes it", "[schedule]") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    const auto [pipeline, layout] = testing::random_case(seed, 7, 6);
    const auto program = make_program(pipeline, layout, OneFOneB{});
    for (const auto& actions : program.ranks) {
      Action last;
      for (const Action& action : actions) {
        const bool computes = action.kind == ActionKind::kForward || action.kind == ActionKind::kBackward;
        if (computes) last = action;
        if (action.kind != ActionKind::kSend) continue;
        const Channel& channel = pipeline.channels[static_cast<std::size_t>(action.channel)];
        if ((action.flow == Flow::kValue ? channel.from : channel.to).valid()) {
          REQUIRE(last.flow == action.flow);
          REQUIRE(last.microbatch == action.microbatch);
        }
      }
    }
  }
}

TEST_CASE("the whole-step phase leaves result gradients out, a forward phase reductions too", "[schedule]") {
  Pipeline pipeline = two_stages();
  pipeline.channels.push_back({StageId(1), kSink, ChannelKind::kBatched, true});
  pipeline.groups.push_back({{Rank(0), Rank(1)}, StageId::none(), 2});
  const BatchLayout layout{{1, 1}, 1};
  const auto count = [&](Phase phase, auto wanted) {
    std::ptrdiff_t n = 0;
    for (const auto& actions : make_program(pipeline, layout, GPipe{}, phase).ranks) {
      n += std::count_if(actions.begin(), actions.end(), wanted);
    }
    return n;
  };
  const auto result_gradient = [](const Action& a) { return a.channel == 2 && a.flow == Flow::kGradient; };
  const auto reduces = [](const Action& a) { return a.kind == ActionKind::kReduce; };
  CHECK(count(Phase::kStep, result_gradient) == 0);
  CHECK(count(Phase::kBackward, result_gradient) == 4);
  CHECK(count(Phase::kStep, reduces) == 4);
  CHECK(count(Phase::kForward, reduces) == 0);
  CHECK(count(Phase::kBackward, reduces) == 4);
}

TEST_CASE("a step without any sample still reduces on every member", "[schedule]") {
  Pipeline pipeline = two_stages();
  pipeline.groups.push_back({{Rank(0), Rank(1)}, StageId::none(), 1});
  const auto program = make_program(pipeline, {{0, 0}, 3}, OneFOneB{});
  for (const auto& actions : program.ranks) {
    CHECK(words(actions) == std::vector<std::string>{"reduction of bucket 0 over group 0"});
  }
}

TEST_CASE("policies whose orders cannot run are refused by name", "[schedule]") {
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(make_program(two_stages(), {{2, 2}, 2}, Stubborn{}),
                    ContainsSubstring("wait for each other") && ContainsSubstring("micro-batch"));
  CHECK_THROWS_WITH(make_program(two_stages(), {{2, 2}, 1}, Forgetful{}),
                    ContainsSubstring("the order of stage 0 must name each of the 1 micro-batches once"));
}
