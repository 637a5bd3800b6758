#include <autopar/schedule/zb_v.hpp>

#include <catch_shim.hpp>

#include "equal_times.hpp"

using namespace autopar;
using testing::in_a_row;
using testing::single_ranks;
using testing::timeline_of;

TEST_CASE("ZbV: 3.5 % bubble with the memory of 1F1B's first stage", "[schedule]") {
  const auto timeline = timeline_of(in_a_row(stages_in(StageLayout::kVShaped, single_ranks(8))), 32, ZbV{});
  CHECK(timeline.idle == Approx(3.5 / (3 * 32 + 3.5)));
  CHECK(timeline.idle == Approx(0.035).margin(0.0005));
  for (const int peak : timeline.peaks) CHECK(peak == 2 * 8);
}

TEST_CASE("ZbV: bubble and memory follow the closed forms", "[schedule]") {
  for (const int p : {1, 2, 3, 4, 5, 6, 8}) {
    const auto pipeline = in_a_row(stages_in(StageLayout::kVShaped, single_ranks(p)));
    for (int m = 1; m <= 34; ++m) {
      const auto timeline = timeline_of(pipeline, m, ZbV{});
      INFO(p << " positions, " << m << " micro-batches");
      // With few micro-batches what counts is the way there and back, of 2 p forwards and as many input backwards.
      REQUIRE(timeline.step == Approx(std::max(6.0 * m + p - 1, 4.0 * (m + p) - 2)));
      if (m >= 2 * p - 1) REQUIRE(timeline.idle == Approx((p - 1.0) / (6.0 * m + p - 1.0)).margin(1e-12));
      const auto most = *std::max_element(timeline.peaks.begin(), timeline.peaks.end());
      for (int d = 0; d < p; ++d) {
        REQUIRE(timeline.peaks[static_cast<std::size_t>(d)] <= ZbV::peak_activations(d, p, m));
        if (m >= 2 * p - 1) REQUIRE(timeline.peaks[static_cast<std::size_t>(d)] == ZbV::peak_activations(d, p, m));
      }
      REQUIRE(most == std::min(2 * p, 2 * m));
    }
  }
}

TEST_CASE("ZbV: the order fills every gap", "[schedule]") {
  const auto orders = ZbV{}.rank_orders(in_a_row(stages_in(StageLayout::kVShaped, single_ranks(2))), 3);
  CHECK(testing::spelled(orders[0]) == "F00 F01 F02 F30 B30 W30 F31 B31 W31 B00 W00 F32 B32 W32 B01 W01 B02 W02");
  CHECK(testing::spelled(orders[1]) == "F10 F20 F11 F21 B20 W20 F12 B10 W10 F22 B21 W21 B11 B22 B12 W11 W22 W12");
}

TEST_CASE("ZbV: stages that are not V-shaped are refused", "[schedule]") {
  CHECK_THROWS_WITH(ZbV{}.rank_orders(in_a_row(stages_in(StageLayout::kLooped, single_ranks(2), 2)), 4),
                    Catch::Matchers::ContainsSubstring("kVShaped"));
  CHECK_THROWS_AS(ZbV{}.rank_orders(in_a_row(single_ranks(2)), 4), InvalidArgument);
}
