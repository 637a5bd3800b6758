#include <autopar/schedule/schedule.hpp>

#include <string>

#include <autopar/schedule/validate.hpp>
#include <autopar/testing/pipelines.hpp>

#include <catch_shim.hpp>

#include "equal_times.hpp"
#include "random_orders.hpp"
#include "rendezvous.hpp"

using namespace autopar;

namespace {

/// A case on which the kind runs, and orders if it is nothing but orders.
struct Placed {
  testing::PipelineCase example;
  GivenOrders orders;
};

Placed random_placed(ScheduleKind kind, std::uint32_t seed, int max_ranks, int max_microbatches) {
  Placed out{testing::random_placed_case(seed, traits_of(kind).layout, max_ranks, max_microbatches), {}};
  if (kind != ScheduleKind::kSynthesised) return out;
  out.orders.microbatches = out.example.layout.microbatches;
  out.orders.orders = testing::RandomOrders{seed}.rank_orders(out.example.pipeline, out.orders.microbatches);
  return out;
}

}  // namespace

TEST_CASE("ScheduleKind: names are those of the options", "[schedule]") {
  std::string all;
  for (const ScheduleKind kind : kScheduleKinds) {
    all += std::string(to_string(kind)) + " ";
    CHECK(enum_named<ScheduleKind>(to_string(kind)) == kind);
  }
  CHECK(all == "gpipe 1f1b interleaved zb-h1 zb-v synth ");
  CHECK(!enum_named<ScheduleKind>("zb"));
}

TEST_CASE("schedules: 1,000 random pipelines match the reference", "[schedule]") {
  for (const ScheduleKind kind : kScheduleKinds) {
    for (std::uint32_t seed = 0; seed < 1000; ++seed) {
      const auto [example, orders] = random_placed(kind, seed, 7, 7);
      const auto& [pipeline, layout] = example;
      INFO(to_string(kind) << ", seed " << seed);
      auto step_ranks = testing::symbolic_ranks(pipeline, layout);
      auto two_phase_ranks = step_ranks;
      for (const Phase phase : {Phase::kStep, Phase::kForward, Phase::kBackward}) {
        const auto program = make_program(pipeline, layout, kind, phase, orders);
        const auto fault = find_fault(pipeline, layout, phase, program);
        REQUIRE((fault ? fault->what : "") == "");
        auto& ranks = phase == Phase::kStep ? step_ranks : two_phase_ranks;
        REQUIRE(testing::run_blocking(pipeline, layout, phase, program, ranks) == "");
      }
    }
  }
}

TEST_CASE("schedules: each rank follows its policy, less empty slices", "[schedule]") {
  for (const ScheduleKind kind : {ScheduleKind::kInterleaved, ScheduleKind::kZbH1, ScheduleKind::kZbV}) {
    for (std::uint32_t seed = 0; seed < 300; ++seed) {
      const auto example = testing::random_placed_case(seed, traits_of(kind).layout, 9, 9);
      const auto& [pipeline, layout] = example;
      INFO(to_string(kind) << ", seed " << seed);
      const BatchSplit split(pipeline, layout);
      std::vector<std::vector<ComputeAction>> orders(static_cast<std::size_t>(pipeline.ranks));
      if (kind == ScheduleKind::kZbH1) {
        for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
          auto order = ZbH1{}.order(StageId::of(s), static_cast<int>(pipeline.stages.size()), layout.microbatches);
          for (ComputeAction& compute : order) compute.stage = StageId::of(s);
          for (const Rank rank : pipeline.stages[s].ranks()) orders[rank.index()] = order;
        }
      } else {
        orders = kind == ScheduleKind::kZbV ? ZbV{}.rank_orders(pipeline, layout.microbatches)
                                            : Interleaved{}.rank_orders(pipeline, layout.microbatches);
      }
      for (std::size_t r = 0; r < orders.size(); ++r) {
        std::erase_if(orders[r], [&](const ComputeAction compute) {
          const int replica = *pipeline.stages[compute.stage.index()].replica_of(Rank::of(r));
          return split.slice(compute.stage, replica, compute.microbatch).empty();
        });
      }
      REQUIRE(testing::computes_of(make_program(pipeline, layout, kind)) == orders);
    }
  }
}

TEST_CASE("schedules: replicated positions have the same bubble", "[schedule]") {
  for (const ScheduleKind kind : {ScheduleKind::kGPipe, ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved,
                                  ScheduleKind::kZbH1, ScheduleKind::kZbV}) {
    const auto one = testing::in_a_row(stages_in(traits_of(kind).layout, testing::single_ranks(3), 2));
    const auto many = testing::in_a_row(stages_in(traits_of(kind).layout, testing::positions_of({2, 1, 3}), 2));
    with_policy(kind, [&](const auto& policy) {
      CHECK(testing::timeline_of(many, 7, policy).step == Approx(testing::timeline_of(one, 7, policy).step));
    });
  }
}

TEST_CASE("GivenOrders: run fewer micro-batches, never more", "[schedule]") {
  const auto pipeline = testing::in_a_row(testing::single_ranks(2));
  const GivenOrders orders{testing::RandomOrders{3}.rank_orders(pipeline, 5), 5};
  for (int m = 1; m <= 5; ++m) {
    const auto layout = testing::even_layout(pipeline, m);
    const auto program = make_program(pipeline, layout, ScheduleKind::kSynthesised, Phase::kStep, orders);
    CHECK(!find_fault(pipeline, layout, Phase::kStep, program));
  }
  const auto six = testing::even_layout(pipeline, 6);
  CHECK_THROWS_WITH(make_program(pipeline, six, ScheduleKind::kSynthesised, Phase::kStep, orders),
                    Catch::Matchers::ContainsSubstring("orders of 5 micro-batches cannot run 6"));
}
