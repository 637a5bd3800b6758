#include <autopar/schedule/zb_h1.hpp>

#include <autopar/schedule/one_f_one_b.hpp>

#include <catch_shim.hpp>

#include "equal_times.hpp"

using namespace autopar;
using testing::in_a_row;
using testing::single_ranks;
using testing::timeline_of;

TEST_CASE("ZbH1: 6.8 % bubble for 8 stages, 32 micro-batches", "[schedule]") {
  const auto pipeline = in_a_row(single_ranks(8));
  const auto timeline = timeline_of(pipeline, 32, ZbH1{});
  CHECK(timeline.idle == Approx(7.0 / (3 * 32 + 7)));
  CHECK(timeline.idle == Approx(0.068).margin(0.0005));
  CHECK(timeline_of(pipeline, 32, OneFOneB{}).idle == Approx(0.179).margin(0.0005));
}

TEST_CASE("ZbH1: bubble and memory follow the closed forms", "[schedule]") {
  for (const int p : {1, 2, 3, 4, 6, 8}) {
    for (int m = 1; m <= 34; ++m) {
      const auto timeline = timeline_of(in_a_row(single_ranks(p)), m, ZbH1{});
      INFO(p << " stages, " << m << " micro-batches");
      REQUIRE(timeline.step == Approx(m >= p ? 3.0 * m + p - 1 : 2.0 * (m + p) - 1));
      if (m >= p) REQUIRE(timeline.idle == Approx((p - 1.0) / (3.0 * m + p - 1.0)).margin(1e-12));
      for (int s = 0; s < p; ++s) {
        REQUIRE(timeline.peaks[static_cast<std::size_t>(s)] == ZbH1{}.peak_activations(StageId(s), p, m));
      }
      REQUIRE(timeline.peaks[0] == OneFOneB{}.peak_activations(StageId(0), p, m));
    }
  }
}

TEST_CASE("ZbH1: later stages defer more weight backwards", "[schedule]") {
  CHECK(testing::spelled(ZbH1{}.order(StageId(0), 2, 3)) == "F0 F1 B0 W0 F2 B1 W1 B2 W2");
  CHECK(testing::spelled(ZbH1{}.order(StageId(1), 2, 3)) == "F0 B0 F1 B1 W0 F2 B2 W1 W2");
  CHECK_THROWS_AS(ZbH1{}.order(StageId(2), 2, 1), InvalidArgument);
  CHECK_THROWS_AS(ZbH1{}.order(StageId(0), 1, 0), InvalidArgument);
}
