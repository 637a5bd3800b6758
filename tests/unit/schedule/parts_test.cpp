#include <autopar/schedule/parts.hpp>

#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/validate.hpp>

#include <catch_shim.hpp>

#include "equal_times.hpp"

using namespace autopar;

TEST_CASE("orders_of_parts: forwards in order, backwards reversed") {
  using enum ActionKind;
  const StageId s0(0), s1(1);
  const auto divided = orders_of_parts(
      {{{kForward, 0, s0}, {kBackwardInput, 0, s0}, {kBackwardWeight, 0, s0}}, {{kForward, 0, s1}, {kBackward, 0, s1}}},
      {{StageId(0), StageId(2)}, {}});
  CHECK(testing::spelled(divided[0]) == "F00 F20 B20 B00 W20 W00");
  CHECK(divided[1].empty());
}

TEST_CASE("orders_of_parts: partitioned schedules still run") {
  for (const auto kind : {ScheduleKind::kInterleaved, ScheduleKind::kZbV}) {
    for (int positions = 1; positions <= 3; ++positions) {
      for (int microbatches = 1; microbatches <= 4; ++microbatches) {
        const auto whole = testing::in_a_row(
            stages_in(traits_of(kind).layout,
                      testing::positions_of(std::vector<int>(static_cast<std::size_t>(positions), 2)), 2));
        std::vector<Mesh> stages;
        std::vector<std::vector<StageId>> parts;
        for (std::size_t s = 0; s < whole.stages.size(); ++s) {
          auto& of_stage = parts.emplace_back();
          for (std::size_t k = 0; k < 1 + s % 3; ++k) {
            of_stage.push_back(StageId::of(stages.size()));
            stages.push_back(whole.stages[s]);
          }
        }
        const auto divided = testing::in_a_row(stages);
        const auto orders = with_policy(kind, [&](const auto& policy) {
          if constexpr (RankOrderPolicy<std::decay_t<decltype(policy)>>)
            return policy.rank_orders(whole, microbatches);
          else
            return std::vector<std::vector<ComputeAction>>();
        });
        const auto layout = testing::even_layout(divided, microbatches);
        const auto program = make_program(divided, layout, GivenOrders{orders_of_parts(orders, parts), microbatches});
        CHECK_NOTHROW(validate(divided, layout, Phase::kStep, program));
      }
    }
  }
}
