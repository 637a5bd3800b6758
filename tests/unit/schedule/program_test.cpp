#include <autopar/schedule/program.hpp>

#include <algorithm>
#include <string>

#include <autopar/schedule/gpipe.hpp>
#include <autopar/schedule/one_f_one_b.hpp>
#include <autopar/schedule/validate.hpp>
#include <autopar/testing/pipelines.hpp>

#include <catch_shim.hpp>

#include "random_orders.hpp"
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
std::string fault_of_any_phase(const testing::PipelineCase& example, const Policy& policy) {
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

/// Whatever its groups hold in shards.
template <SchedulePolicy Policy>
std::string fault_of_any_phase_in_shares(const testing::PipelineCase& example, const Policy& policy,
                                         std::uint32_t seed) {
  auto wrong = fault_of_any_phase(example, policy);
  return wrong.empty() ? fault_of_any_phase(testing::in_shards(example, seed), policy) : wrong;
}

/// Stage 1 wants micro-batch 1 first, stage 0 gives it last and waits for the backward of 0 before.
struct Stubborn {
  using policy_category = schedule_policy_tag;
  [[nodiscard]] std::vector<ComputeAction> order(StageId stage, int, int) const {
    using enum ActionKind;
    if (stage.value() == 0) return {{kForward, 0}, {kBackward, 0}, {kForward, 1}, {kBackward, 1}};
    return {{kForward, 1}, {kBackward, 1}, {kForward, 0}, {kBackward, 0}};
  }
  [[nodiscard]] int peak_activations(StageId, int, int) const { return 1; }
};

struct Forgetful {
  using policy_category = schedule_policy_tag;
  [[nodiscard]] std::vector<ComputeAction> order(StageId, int, int) const {
    return {{ActionKind::kBackward, 0}, {ActionKind::kForward, 0}};
  }
  [[nodiscard]] int peak_activations(StageId, int, int) const { return 1; }
};

struct Fixed {
  using policy_category = schedule_policy_tag;
  std::vector<std::vector<ComputeAction>> orders;
  [[nodiscard]] std::vector<std::vector<ComputeAction>> rank_orders(const Pipeline&, int) const { return orders; }
};

Pipeline two_stages() {
  return {.ranks = 2,
          .stages = {{Rank(0)}, {Rank(1)}},
          .channels = {{kSource, StageId(0), ChannelKind::kBatched, false},
                       {StageId(0), StageId(1), ChannelKind::kBatched, true}},
          .groups = {}};
}

void check_pipelines(std::uint32_t seeds) {
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    const auto example = testing::random_case(seed, 7, 6);
    INFO("seed " << seed);
    REQUIRE(fault_of_any_phase_in_shares(example, OneFOneB{}, seed) == "");
    REQUIRE(fault_of_any_phase_in_shares(example, GPipe{}, seed) == "");
  }
}

void check_chunked_pipelines(std::uint32_t seeds) {
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    const auto example = testing::random_chunked_case(seed, 6, 5);
    INFO("seed " << seed);
    REQUIRE(fault_of_any_phase_in_shares(example, OneFOneB{}, seed) == "");
    REQUIRE(fault_of_any_phase_in_shares(example, GPipe{}, seed) == "");
  }
}

/// Backwards in two parts are among them.
void check_orders(std::uint32_t seeds) {
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    REQUIRE(fault_of_any_phase_in_shares(testing::random_case(seed, 7, 6), testing::RandomOrders{seed}, seed) == "");
    REQUIRE(fault_of_any_phase_in_shares(testing::random_chunked_case(seed, 6, 5), testing::RandomOrders{seed}, seed) ==
            "");
  }
}

}  // namespace

TEST_CASE("make_program: random pipelines compute the reference", "[schedule]") { check_pipelines(500); }

TEST_CASE("make_program: random chunked pipelines compute the reference", "[schedule]") {
  check_chunked_pipelines(500);
}

TEST_CASE("make_program: random orders compute the reference", "[schedule]") { check_orders(500); }

TEST_CASE("make_program: 2,000 of each compute the reference", "[schedule][.nightly]") {
  check_pipelines(2000);
  check_chunked_pipelines(2000);
  check_orders(2000);
}

TEST_CASE("make_program: compute actions follow the policy's order", "[schedule]") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    auto [pipeline, layout] = testing::random_chunked_case(seed, 6, 5);
    for (auto& samples : layout.local) samples = 40;  // no empty slice
    const testing::RandomOrders policy{seed};
    const auto program = make_program(pipeline, layout, policy);
    const auto orders = policy.rank_orders(pipeline, layout.microbatches);
    for (std::size_t r = 0; r < orders.size(); ++r) {
      std::vector<ComputeAction> computes;
      for (const Action& action : program.ranks[r]) {
        if (is_compute(action.kind)) computes.push_back({action.kind, action.microbatch, action.stage});
      }
      REQUIRE(computes == orders[r]);
    }
  }
}

TEST_CASE("make_program: larger random pipelines are accepted", "[schedule]") {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const auto [pipeline, layout] = testing::random_case(seed, 40, 24);
    for (const Phase phase : {Phase::kStep, Phase::kForward, Phase::kBackward}) {
      const auto fault = find_fault(pipeline, layout, phase, make_program(pipeline, layout, OneFOneB{}, phase));
      INFO("seed " << seed << (fault ? ": " + fault->what : ""));
      REQUIRE(!fault);
    }
  }
}

TEST_CASE("make_program: 1F1B receives ahead and sends at once", "[schedule]") {
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

TEST_CASE("make_program: two stages on one rank exchange by a copy", "[schedule]") {
  const Pipeline pipeline{.ranks = 2,
                          .stages = {{Rank(0)}, {Rank(0), Rank(1)}, {Rank(0), Rank(1)}},
                          .channels = {{StageId(0), StageId(1), ChannelKind::kReplicated, true},
                                       {StageId(1), StageId(2), ChannelKind::kTotal, true}},
                          .groups = {{{Rank(0), Rank(1)}, StageId(2), 1},
                                     {{Rank(0), Rank(1)}, StageId(1), 1},
                                     {{Rank(0), Rank(1)}, StageId::none(), 1}}};
  const auto program = make_program(pipeline, {{2, 0}, 1}, OneFOneB{});
  CHECK(words(program.ranks[0]) ==
        std::vector<std::string>{"forward of stage 0, micro-batch 0, samples [0, 2)",
                                 "send of values of channel 0, micro-batch 0, to rank 0",
                                 "receive of values of channel 0, micro-batch 0, from rank 0",
                                 "send of values of channel 0, micro-batch 0, to rank 1",
                                 "forward of stage 1, micro-batch 0, samples [0, 1)",
                                 "send of values of channel 1, micro-batch 0, to rank 0",
                                 "receive of values of channel 1, micro-batch 0, from rank 0",
                                 "send of values of channel 1, micro-batch 0, to rank 1",
                                 "receive of values of channel 1, micro-batch 0, from rank 1",
                                 "forward of stage 2, micro-batch 0, samples [0, 1)",
                                 "backward of stage 2, micro-batch 0, samples [0, 1)",
                                 "send of gradients of channel 1, micro-batch 0, to rank 0",
                                 "receive of gradients of channel 1, micro-batch 0, from rank 0",
                                 "send of gradients of channel 1, micro-batch 0, to rank 1",
                                 "receive of gradients of channel 1, micro-batch 0, from rank 1",
                                 "reduction of bucket 0 over group 0",
                                 "backward of stage 1, micro-batch 0, samples [0, 1)",
                                 "send of gradients of channel 0, micro-batch 0, to rank 0",
                                 "receive of gradients of channel 0, micro-batch 0, from rank 0",
                                 "receive of gradients of channel 0, micro-batch 0, from rank 1",
                                 "reduction of bucket 0 over group 1",
                                 "backward of stage 0, micro-batch 0, samples [0, 2)",
                                 "reduction of bucket 0 over group 2"});
}

TEST_CASE("make_program: stages on one rank run the first micro-batch", "[schedule]") {
  const auto computes = [](const std::vector<Action>& actions) {
    std::string out;
    for (const Action& action : actions) {
      if (!is_compute(action.kind)) continue;
      out += (out.empty() ? "" : " ") + std::string(action.kind == ActionKind::kForward ? "F" : "B") +
             std::to_string(action.stage.value()) + std::to_string(action.microbatch);
    }
    return out;
  };
  const auto row = [](std::vector<Mesh> stages, int ranks) {
    Pipeline out{.ranks = ranks, .stages = std::move(stages), .channels = {}, .groups = {}};
    for (int s = 1; s < static_cast<int>(out.stages.size()); ++s) {
      out.channels.push_back({StageId(s - 1), StageId(s), ChannelKind::kBatched, true});
    }
    return out;
  };
  const Rank r0(0), r1(1);
  const auto beside = make_program(row({{r0}, {r0}}, 1), {{3}, 3}, GPipe{});
  CHECK(computes(beside.ranks[0]) == "F00 F10 F01 F11 F02 F12 B10 B00 B11 B01 B12 B02");
  const auto around = make_program(row({{r0}, {r1}, {r0}, {r1}}, 2), {{4, 0}, 4}, GPipe{}, Phase::kForward);
  CHECK(computes(around.ranks[0]) == "F00 F01 F20 F21 F02 F03 F22 F23");
  CHECK(computes(around.ranks[1]) == "F10 F11 F30 F31 F12 F13 F32 F33");
}

TEST_CASE("make_program: a message follows its producer", "[schedule]") {
  for (std::uint32_t seed = 0; seed < 600; ++seed) {
    const auto [pipeline, layout] =
        seed % 2 == 0 ? testing::random_case(seed, 7, 6) : testing::random_chunked_case(seed, 6, 5);
    const auto program = seed % 3 == 0 ? make_program(pipeline, layout, testing::RandomOrders{seed})
                                       : make_program(pipeline, layout, OneFOneB{});
    for (const auto& actions : program.ranks) {
      Action last;
      for (const Action& action : actions) {
        if (is_compute(action.kind)) last = action;
        if (action.kind != ActionKind::kSend && action.kind != ActionKind::kReceive) continue;
        const Channel& channel = pipeline.channels[static_cast<std::size_t>(action.channel)];
        const bool sends = action.kind == ActionKind::kSend;
        REQUIRE(action.stage == (sends ? writer_of(channel, action.flow) : reader_of(channel, action.flow)));
        if (sends && action.stage.valid()) {
          REQUIRE(last.stage == action.stage);
          REQUIRE(last.flow == action.flow);
          REQUIRE(last.microbatch == action.microbatch);
        }
      }
    }
  }
}

TEST_CASE("make_program: phases omit result gradients and reductions", "[schedule]") {
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
  const auto reduces = [](const Action& a) { return a.kind == ActionKind::kAllReduce; };
  CHECK(count(Phase::kStep, result_gradient) == 0);
  CHECK(count(Phase::kBackward, result_gradient) == 4);
  CHECK(count(Phase::kStep, reduces) == 4);
  CHECK(count(Phase::kForward, reduces) == 0);
  CHECK(count(Phase::kBackward, reduces) == 4);
}

TEST_CASE("make_program: a step without samples still reduces", "[schedule]") {
  Pipeline pipeline = two_stages();
  pipeline.groups.push_back({{Rank(0), Rank(1)}, StageId::none(), 1});
  const auto program = make_program(pipeline, {{0, 0}, 3}, OneFOneB{});
  for (const auto& actions : program.ranks) {
    CHECK(words(actions) == std::vector<std::string>{"reduction of bucket 0 over group 0"});
  }
}

TEST_CASE("make_program: rank orders that cannot run are refused", "[schedule]") {
  using Catch::Matchers::ContainsSubstring;
  const auto refusal = [](std::vector<std::vector<ComputeAction>> orders) -> std::string {
    try {
      (void)make_program(two_stages(), {{2, 2}, 1}, Fixed{std::move(orders)});
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return {};
  };
  using enum ActionKind;
  const StageId s0(0), s1(1);
  const std::vector<ComputeAction> first{{kForward, 0, s0}, {kBackward, 0, s0}},
      second{{kForward, 0, s1}, {kBackward, 0, s1}};
  CHECK(refusal({first, second}).empty());
  CHECK(refusal({first, {{kForward, 0, s1}, {kBackwardInput, 0, s1}, {kBackwardWeight, 0, s1}}}).empty());
  CHECK_THAT(refusal({first}), ContainsSubstring("orders of 1 ranks, the pipeline has 2"));
  CHECK_THAT(refusal({first, {}}), ContainsSubstring("the order of stage 1 on rank 1 must name each of the 1"));
  CHECK_THAT(refusal({second, first}), ContainsSubstring("the order of stage 0 on rank 0 must name"));
  CHECK_THAT(refusal({first, {{kForward, 0, s1}, {kBackward, 0, s1}, {kForward, 0, s0}}}),
             ContainsSubstring("the order of rank 1 names stage 0, which that rank does not run"));
  const auto broken = {std::vector<ComputeAction>{{kForward, 0, s1}, {kBackwardInput, 0, s1}},
                       {{kForward, 0, s1}, {kBackwardWeight, 0, s1}, {kBackwardInput, 0, s1}},
                       {{kForward, 0, s1}, {kBackward, 0, s1}, {kBackwardWeight, 0, s1}},
                       {{kForward, 0, s1}, {kBackwardInput, 0, s1}, {kBackward, 0, s1}},
                       {{kForward, 0, s1}, {kForward, 0, s1}, {kBackward, 0, s1}},
                       {{kForward, 1, s1}, {kBackward, 1, s1}},
                       {{kForward, 0, s1}, {kSend, 0, s1}, {kBackward, 0, s1}}};
  for (const auto& order : broken) CHECK_THAT(refusal({first, order}), ContainsSubstring("order of stage 1 on rank 1"));

  Pipeline chunks = two_stages();  // both stages on rank 0, the later one first
  chunks.stages = {{Rank(0)}, {Rank(0)}};
  const Fixed backwards{{{{kForward, 0, s1}, {kForward, 0, s0}, {kBackward, 0, s1}, {kBackward, 0, s0}}, {}}};
  CHECK_THROWS_WITH(make_program(chunks, {{2, 2}, 1}, backwards),
                    ContainsSubstring("stage 1 never gets what it needs"));
}

TEST_CASE("make_program: policies that cannot run are refused", "[schedule]") {
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(make_program(two_stages(), {{2, 2}, 2}, Stubborn{}),
                    ContainsSubstring("wait for each other") && ContainsSubstring("micro-batch"));
  CHECK_THROWS_WITH(make_program(two_stages(), {{2, 2}, 1}, Forgetful{}),
                    ContainsSubstring("the order of stage 0 must name each of the 1 micro-batches once"));
}
