#include <autopar/cost/contention.hpp>

#include <catch_shim.hpp>

#include <random>

using namespace autopar;

TEST_CASE("Contention: rates explain the delays", "[laws]") {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> part(0, 1);
  for (int trial = 0; trial < 300; ++trial) {
    const Contention both{part(random), part(random)};
    const double computing = part(random), exchange = part(random);
    const double a = both.computing_rate(), b = both.exchange_rate();
    REQUIRE(a > 0);
    REQUIRE(b > 0);
    CHECK(both.of_computing == Approx((1 - a) / b));
    CHECK(both.of_exchange == Approx((1 - b) / a));
    const double first = std::min(computing / a, exchange / b);  // until then both run
    const double rest = std::max(computing - first * a, exchange - first * b);
    CHECK(both.together(Seconds(computing), Seconds(exchange)).value() == Approx(first + rest));
  }
}

TEST_CASE("Contention: none, and one after the other") {
  CHECK(kNoContention.together(Seconds(3), Seconds(2)) == Seconds(3));
  CHECK(kOneAfterTheOther.together(Seconds(3), Seconds(2)) == Seconds(5));
  CHECK(kNoContention.exchange_rate() == 1);
  CHECK(kOneAfterTheOther.exchange_rate() == 0.5);
  CHECK(Contention{1, 0}.computing_rate() == 0);
  CHECK(Contention{1, 0}.exchange_rate() == 1);
}
