#include <autopar/schedule/traits.hpp>

#include <set>
#include <string>

#include <autopar/schedule/schedule.hpp>
#include <autopar/testing/pipelines.hpp>

#include <catch_shim.hpp>

#include "equal_times.hpp"
#include "oracle/schedule_laws.hpp"

using namespace autopar;

namespace {
namespace traits_test {

/// Stages as a row wants them, and how many micro-batches.
struct Sizes {
  int positions, chunks, microbatches;
};

Sizes random_sizes(const ScheduleTraits& row, testing::Dice& dice) {
  Sizes out{dice(1, 7), dice(1, 4), dice(1, 20)};
  while (!allows_chunks(row.layout, out.chunks)) out.chunks = dice(1, 4);
  return out;
}

Pipeline laid_out(const ScheduleTraits& row, const Sizes& sizes) {
  return testing::in_a_row(stages_in(row.layout, testing::single_ranks(sizes.positions), sizes.chunks));
}

std::vector<std::vector<ComputeAction>> orders_of(const ScheduleTraits& row, const Sizes& sizes) {
  const Pipeline pipeline = laid_out(row, sizes);
  return with_policy(row.kind,
                     [&](const auto& policy) { return rank_orders_of(policy, pipeline, sizes.microbatches); });
}

/// Holds every row whose orders follow from the pipeline to `claim` for 200 random sizes.
template <class Claim>
void hold(const Claim& claim) {
  for (const ScheduleTraits& row : kScheduleTraits) {
    if (row.orders_in_plan) continue;
    testing::Dice dice(17);
    for (int i = 0; i < 200; ++i) {
      const Sizes sizes = random_sizes(row, dice);
      INFO(row.name << ": " << sizes.positions << " positions, " << sizes.chunks << " chunks, " << sizes.microbatches
                    << " micro-batches");
      claim(row, sizes);
    }
  }
}

}  // namespace traits_test
}  // namespace

using namespace traits_test;

TEST_CASE("ScheduleTraits: one row and one name per kind", "[schedule][traits]") {
  std::set<std::string_view> names;
  for (const ScheduleKind kind : kScheduleKinds) {
    CHECK(traits_of(kind).kind == kind);
    CHECK(names.insert(traits_of(kind).name).second);
  }
  CHECK(kScheduleTraits.size() == kScheduleKinds.size());
  CHECK_THROWS_AS(traits_of(static_cast<ScheduleKind>(kScheduleKinds.size())), InvalidArgument);
  CHECK_THROWS_AS(with_policy(static_cast<ScheduleKind>(kScheduleKinds.size()), [](const auto&) {}), InvalidArgument);
}

TEST_CASE("ScheduleTraits: closed forms, unless orders are in the plan", "[schedule][traits]") {
  for (const ScheduleTraits& row : kScheduleTraits) {
    INFO(row.name);
    const bool is_law = !row.orders_in_plan;
    CHECK((row.peak != nullptr) == is_law);
    CHECK((row.bubble != nullptr) == is_law);
    CHECK(with_policy(row.kind, [](const auto& policy) {
            return std::same_as<std::remove_cvref_t<decltype(policy)>, GivenOrders>;
          }) == row.orders_in_plan);
    // Bounds on stages that lie straight and run whole backwards know both laws of what is in flight.
    CHECK(has_closed_form(row.kind) == (row.layout == StageLayout::kStraight && !row.splits_backwards));
  }
}

TEST_CASE("ScheduleTraits: a policy accepts its row's layout alone", "[schedule][traits]") {
  hold([](const ScheduleTraits& row, const Sizes& sizes) {
    const Pipeline pipeline = laid_out(row, sizes);
    const ChunkLayout stages = chunk_layout(pipeline);
    REQUIRE(lies_in(row.layout, stages));
    REQUIRE(stages.chunks() == sizes.chunks);
    for (std::size_t s = 0; s < stages.at.size(); ++s)
      REQUIRE(static_cast<int>(stages.at[s]) == position_in(row.layout, static_cast<int>(s), sizes.positions));
    with_policy(row.kind, [&]<class Policy>(const Policy& policy) {
      REQUIRE(StageOrderPolicy<Policy> == (row.layout == StageLayout::kStraight));
      if constexpr (RankOrderPolicy<Policy>) {
        for (const auto& other : {stages_in(StageLayout::kLooped, testing::single_ranks(sizes.positions), sizes.chunks),
                                  stages_in(StageLayout::kVShaped, testing::single_ranks(sizes.positions))}) {
          const Pipeline lying = testing::in_a_row(other);
          if (lies_in(row.layout, chunk_layout(lying))) continue;
          REQUIRE_THROWS_AS(policy.rank_orders(lying, sizes.microbatches), InvalidArgument);
        }
      }
    });
  });
}

TEST_CASE("ScheduleTraits: backwards are split where the row says so", "[schedule][traits]") {
  hold([](const ScheduleTraits& row, const Sizes& sizes) {
    for (const auto& computes : orders_of(row, sizes)) {
      const auto has = [&](ActionKind kind) {
        return std::ranges::any_of(computes, [&](ComputeAction compute) { return compute.kind == kind; });
      };
      REQUIRE(has(ActionKind::kBackwardInput) == row.splits_backwards);
      REQUIRE(has(ActionKind::kBackwardWeight) == row.splits_backwards);
      REQUIRE(has(ActionKind::kBackward) == !row.splits_backwards);
    }
  });
}

TEST_CASE("ScheduleTraits: micro-batches in flight follow the row", "[schedule][traits]") {
  hold([](const ScheduleTraits& row, const Sizes& sizes) {
    if (row.in_flight == InFlightLaw::kCounted) return;
    const auto orders = orders_of(row, sizes);
    for (int s = 0; s < sizes.positions; ++s) {
      const bool all = row.in_flight == InFlightLaw::kAllMicrobatches;
      const int expected = all ? sizes.microbatches : std::min(sizes.positions - s, sizes.microbatches);
      int now = 0, most = 0, before_first = -1;
      for (const ComputeAction compute : orders[static_cast<std::size_t>(s)]) {
        if (compute.kind != ActionKind::kForward && before_first < 0) before_first = now;
        now += compute.kind == ActionKind::kForward ? 1 : -1;
        most = std::max(most, now);
      }
      REQUIRE(before_first == expected);
      REQUIRE(most == expected);
      REQUIRE(row.peak(s, sizes.positions, 1, sizes.microbatches) == expected);
    }
  });
}

TEST_CASE("ScheduleTraits: peak activations equal the closed form", "[schedule][traits]") {
  hold([](const ScheduleTraits& row, const Sizes& sizes) {
    const auto orders = orders_of(row, sizes);
    for (int d = 0; d < sizes.positions; ++d) {
      int now = 0, most = 0;
      for (const ComputeAction compute : orders[static_cast<std::size_t>(d)]) {
        if (compute.kind == ActionKind::kForward) most = std::max(most, ++now);
        if (gives_weight_gradients(compute.kind)) --now;
      }
      const int said = row.peak(d, sizes.positions, sizes.chunks, sizes.microbatches);
      REQUIRE(most <= said);
      if (sizes.microbatches >= oracle::filled_by(row.kind, sizes.positions)) REQUIRE(most == said);
    }
  });
}

TEST_CASE("ScheduleTraits: simulated bubble equals the closed form", "[schedule][traits]") {
  hold([](const ScheduleTraits& row, const Sizes& sizes) {
    if (sizes.microbatches < oracle::filled_by(row.kind, sizes.positions)) return;
    const auto timeline = with_policy(row.kind, [&](const auto& policy) {
      return testing::timeline_of(laid_out(row, sizes), sizes.microbatches, policy);
    });
    // A second for each of a forward, an input and a weight backward.
    const double pass = 3.0 * sizes.chunks, weight = 1.0 * sizes.chunks;
    const double bubble = (sizes.positions - 1) * row.bubble(pass, weight, sizes.chunks);
    REQUIRE(timeline.step == Approx(sizes.microbatches * pass + bubble));
    REQUIRE(timeline.idle == Approx(bubble / timeline.step).margin(1e-12));
  });
}

TEST_CASE("ScheduleTraits: orders derived from the papers equal the policy's", "[schedule][traits]") {
  hold([](const ScheduleTraits& row, const Sizes& sizes) {
    const Pipeline pipeline = laid_out(row, sizes);
    const auto orders = orders_of(row, sizes);
    for (int d = 0; d < sizes.positions; ++d) {
      std::vector<int> stages;
      for (int s = 0; s < static_cast<int>(pipeline.stages.size()); ++s) {
        if (pipeline.stages[static_cast<std::size_t>(s)].rank(0) == Rank(d)) stages.push_back(s);
      }
      oracle::ActionScribe scribe(stages, sizes.microbatches);
      oracle::ScheduleLaws laws(d, sizes.positions, sizes.chunks, sizes.microbatches, scribe);
      oracle::write_order(laws, row.kind);
      REQUIRE(testing::spelled(std::move(scribe).written()) == testing::spelled(orders[static_cast<std::size_t>(d)]));
    }
  });
}

TEST_CASE("ScheduleTraits: schedules are found by property", "[schedule][traits]") {
  CHECK(traits_of(kSynthesisedSchedule).orders_in_plan);
  CHECK(puts_forwards_first(kForwardsFirst));
  CHECK(has_closed_form(kDefaultSchedule));
  CHECK(schedules_where(has_closed_form) == std::vector{ScheduleKind::kGPipe, ScheduleKind::kOneFOneB});
  CHECK(schedules_where(wants_chunks) == std::vector{ScheduleKind::kInterleaved, ScheduleKind::kZbV});
}
