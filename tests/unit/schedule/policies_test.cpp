#include <cstdint>

#include <autopar/schedule/concepts.hpp>
#include <autopar/schedule/gpipe.hpp>
#include <autopar/schedule/one_f_one_b.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/testing/schedule_laws.hpp>

#include <catch_shim.hpp>

#include "random_orders.hpp"

using namespace autopar;

namespace {

constexpr auto kF = ActionKind::kForward;
constexpr auto kB = ActionKind::kBackward;

struct NoTag {
  std::vector<ComputeAction> order(StageId, int, int) const { return {}; }
  int peak_activations(StageId, int, int) const { return 0; }
};
static_assert(!SchedulePolicy<NoTag>);

}  // namespace

TEST_CASE("kScheduleTraits: every policy obeys the schedule laws", "[schedule][laws]") {
  for (const ScheduleTraits& row : kScheduleTraits) {
    INFO(row.name);
    if (row.orders_in_plan) continue;  // their orders are of one pipeline
    with_policy(row.kind, [&](const auto& policy) {
      testing::check_schedule_laws(policy, {.layout = row.layout, .inputs = 1000});
    });
  }
}

TEST_CASE("RandomOrders: obeys the schedule laws for any layout", "[schedule][laws]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    testing::check_schedule_laws(testing::RandomOrders{seed}, {.layout = StageLayout::kAnywhere, .inputs = 20});
}

TEST_CASE("GPipe: all forwards, then all backwards", "[schedule]") {
  CHECK_THROWS_AS(GPipe{}.order(StageId(2), 2, 1), InvalidArgument);
  CHECK_THROWS_AS(GPipe{}.order(StageId(0), 1, 0), InvalidArgument);
  CHECK(GPipe{}.order(StageId(0), 2, 2) == std::vector<ComputeAction>{{kF, 0}, {kF, 1}, {kB, 0}, {kB, 1}});
}

TEST_CASE("OneFOneB: alternates once warm, with bounded activations", "[schedule]") {
  CHECK_THROWS_AS(OneFOneB{}.order(StageId(2), 2, 1), InvalidArgument);
  CHECK_THROWS_AS(OneFOneB{}.order(StageId(0), 1, 0), InvalidArgument);
  CHECK(OneFOneB{}.order(StageId(0), 2, 3) ==
        std::vector<ComputeAction>{{kF, 0}, {kF, 1}, {kB, 0}, {kF, 2}, {kB, 1}, {kB, 2}});
  CHECK(OneFOneB{}.order(StageId(1), 2, 2) == std::vector<ComputeAction>{{kF, 0}, {kB, 0}, {kF, 1}, {kB, 1}});
  CHECK(OneFOneB{}.peak_activations(StageId(1), 4, 8) == 3);
}
