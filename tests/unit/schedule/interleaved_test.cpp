#include <autopar/schedule/interleaved.hpp>

#include <autopar/schedule/one_f_one_b.hpp>

#include <catch_shim.hpp>

#include "equal_times.hpp"

using namespace autopar;
using testing::in_a_row;
using testing::single_ranks;
using testing::timeline_of;

TEST_CASE("Interleaved: 9.9 % bubble for 8 ranks, 32 micro-batches", "[schedule]") {
  const auto timeline = timeline_of(in_a_row(stages_in(StageLayout::kLooped, single_ranks(8), 2)), 32, Interleaved{});
  CHECK(timeline.idle == Approx(7.0 / (2 * 32 + 7)));
  CHECK(timeline.idle == Approx(0.099).margin(0.0005));
  CHECK(timeline.peaks.front() == 2 * 8 + 7);  // 1.44 times 1F1B's
}

TEST_CASE("Interleaved: bubble and memory follow the closed forms", "[schedule]") {
  for (const int p : {1, 2, 3, 4, 5, 8}) {
    for (const int v : {1, 2, 3, 4}) {
      const auto pipeline = in_a_row(stages_in(StageLayout::kLooped, single_ranks(p), v));
      for (int m = 1; m <= 35; ++m) {
        const auto timeline = timeline_of(pipeline, m, Interleaved{});
        INFO(p << " positions, " << v << " chunks, " << m << " micro-batches");
        REQUIRE(timeline.step == Approx(3.0 * (v * std::max(m, p) + std::min(m, p) - 1)));
        if (m >= p) REQUIRE(timeline.idle == Approx((p - 1.0) / (v * m + p - 1.0)).margin(1e-12));
        for (int d = 0; d < p; ++d) {
          REQUIRE(timeline.peaks[static_cast<std::size_t>(d)] == Interleaved::peak_activations(d, p, v, m));
        }
        if (m % p == 0) REQUIRE(timeline.peaks[0] == std::min(m * v, v == 1 ? p : v * p + p - 1));
      }
    }
  }
}

TEST_CASE("Interleaved: one chunk is 1F1B", "[schedule]") {
  for (const int p : {1, 3, 4}) {
    for (const int m : {1, 2, 5, 8}) {
      const auto pipeline = in_a_row(stages_in(StageLayout::kLooped, single_ranks(p), 1));
      const auto layout = testing::even_layout(pipeline, m);
      CHECK(make_program(pipeline, layout, Interleaved{}) == make_program(pipeline, layout, OneFOneB{}));
    }
  }
}

TEST_CASE("Interleaved: published order, else groups of equal size", "[schedule]") {
  const auto pipeline = in_a_row(stages_in(StageLayout::kLooped, single_ranks(2), 2));
  const auto four = Interleaved{}.rank_orders(pipeline, 4);
  CHECK(testing::spelled(four[0]) == "F00 F01 F20 F21 F02 b20 F03 b21 F22 b00 F23 b01 b22 b23 b02 b03");
  CHECK(testing::spelled(four[1]) == "F10 F11 F30 b30 F31 b31 F12 b10 F13 b11 F32 b32 F33 b33 b12 b13");
  const auto three = Interleaved{}.rank_orders(pipeline, 3);
  CHECK(testing::spelled(three[1]) == "F10 F11 F12 F30 b30 F31 b31 F32 b32 b10 b11 b12");
}

TEST_CASE("Interleaved: stages that are not looped are refused", "[schedule]") {
  CHECK_THROWS_WITH(Interleaved{}.rank_orders(in_a_row(stages_in(StageLayout::kVShaped, single_ranks(2))), 4),
                    Catch::Matchers::ContainsSubstring("kLooped"));
  CHECK_THROWS_AS(Interleaved{}.rank_orders(in_a_row({{Rank(0)}, {Rank(1)}, {Rank(0)}}), 4), InvalidArgument);
  CHECK_THROWS_AS(Interleaved{}.rank_orders(in_a_row(stages_in(StageLayout::kLooped, single_ranks(2), 2)), 0),
                  InvalidArgument);
}
