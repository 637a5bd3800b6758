#include <autopar/cost/cost_curve.hpp>

#include <catch_shim.hpp>

#include <limits>
#include <random>

using namespace autopar;

TEST_CASE("CostCurve: linear between measurements and beyond them") {
  const CostCurve curve({{1000, 2e-6}, {3000, 4e-6}, {5000, 5e-6}});
  CHECK(curve(Bytes(0)).value() == Approx(1e-6));
  CHECK(curve(Bytes(500)).value() == Approx(1.5e-6));
  CHECK(curve(Bytes(1000)).value() == Approx(2e-6));
  CHECK(curve(Bytes(2000)).value() == Approx(3e-6));
  CHECK(curve(Bytes(3000)).value() == Approx(4e-6));
  CHECK(curve(Bytes(9000)).value() == Approx(7e-6));
  CHECK(CostCurve({{1000, 2e-6}})(Bytes(4000)).value() == Approx(8e-6));
  CHECK(CostCurve({{1000, 2e-6}})(Bytes(10)).value() == Approx(2e-6));
  CHECK(CostCurve()(Bytes(4000)) == Seconds{});
  CHECK(curve.scaled(2)(Bytes(2000)).value() == Approx(6e-6));
  CHECK(curve.beyond(1000).value() == Approx(0.5e-6));
  CHECK(CostCurve({{1000, 2e-6}}).beyond(500).value() == Approx(1e-6));
  CHECK(CostCurve().beyond(500) == Seconds{});
}

TEST_CASE("CostCurve: laws hold whatever was measured", "[laws]") {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> seconds(0, 1e-3), ratio(1.01, 40);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<MeasuredPoint> points;
    double size = ratio(random);
    for (int i = 0; i < 1 + trial % 6; ++i, size *= ratio(random))
      points.push_back({size, random() % 4 == 0 ? 0 : seconds(random)});
    const CostCurve curve(points);
    CHECK(CostCurve(curve.points()) == curve);
    CHECK(curve.points().back().y >= points.back().y);
    double last = 0;
    for (double x = 0.1; x < 2 * size; x *= 1.3) {
      const double now = curve.at(x).value();
      CHECK(now >= last);
      last = now;
      const double part = x * (1 + static_cast<double>(random() % 8)) / 9;
      CHECK((curve.at(part) + curve.at(x - part)).value() >= now * (1 - 1e-12));
    }
  }
}

TEST_CASE("CostCurve: what is no measurement is refused") {
  CHECK_THROWS_AS(CostCurve(std::vector<MeasuredPoint>{}), InvalidArgument);
  CHECK_THROWS_AS(CostCurve({{0, 1}}), InvalidArgument);
  CHECK_THROWS_AS(CostCurve({{2, 1}, {2, 1}}), InvalidArgument);
  CHECK_THROWS_AS(CostCurve({{1, -1}}), InvalidArgument);
  CHECK_THROWS_AS(CostCurve({{1, std::numeric_limits<double>::quiet_NaN()}}), InvalidArgument);
  CHECK_THROWS_AS(CostCurve({{std::numeric_limits<double>::infinity(), 1}}), InvalidArgument);
}
