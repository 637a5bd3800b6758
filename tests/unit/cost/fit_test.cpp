#include <autopar/cost/fit.hpp>

#include <catch_shim.hpp>

#include <limits>
#include <random>
#include <vector>

using namespace autopar;

TEST_CASE("fit_line: affine data is fitted exactly") {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> number(0, 5);
  for (int trial = 0; trial < 200; ++trial) {
    const double slope = number(random) * 1e-4, intercept = number(random) * 1e-5;
    std::vector<MeasuredPoint> points;
    for (const double x : {1.0, 4.0, 8.0, 32.0}) points.push_back({x, slope * x + intercept});
    const auto line = fit_line(points);
    CHECK(line.slope == Approx(slope).epsilon(1e-9).margin(1e-15));
    CHECK(line.intercept == Approx(intercept).epsilon(1e-9).margin(1e-15));
    CHECK(line.residual < 1e-9);
  }
}

TEST_CASE("fit_line: residual is the largest relative error") {
  const std::vector<MeasuredPoint> points{{1, 10}, {2, 26}, {3, 30}};
  const auto line = fit_line(points);
  double worst = 0;
  for (const auto& point : points) worst = std::max(worst, std::abs(line.at(point.x) - point.y) / point.y);
  CHECK(line.residual == worst);
  CHECK(line.residual > 0.1);
}

TEST_CASE("fit_line: best line of non-negative slope and intercept") {
  std::mt19937 random(4);
  std::uniform_real_distribution<double> time(0, 1), nudge(-0.05, 0.05);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<MeasuredPoint> points;
    for (const double x : {1.0, 3.0, 9.0}) points.push_back({x, time(random)});
    const auto line = fit_line(points);
    REQUIRE(line.slope >= 0);
    REQUIRE(line.intercept >= 0);
    double largest = 0;
    for (const auto& point : points) largest = std::max(largest, point.y);
    const auto error = [&](double slope, double intercept) {
      double sum = 0;
      for (const auto& [x, y] : points) {
        const double miss = (slope * x + intercept - y) / std::max(y, largest * 1e-3);
        sum += miss * miss;
      }
      return sum;
    };
    for (int other = 0; other < 50; ++other) {
      const double slope = std::max(0.0, line.slope + nudge(random));
      const double intercept = std::max(0.0, line.intercept + nudge(random));
      REQUIRE(error(line.slope, line.intercept) <= error(slope, intercept) * (1 + 1e-9) + 1e-12);
    }
  }
}

TEST_CASE("fit_line: scaled input scales the line, not the residual") {
  const std::vector<MeasuredPoint> points{{1, 3}, {2, 4}, {8, 20}};
  auto scaled = points;
  for (auto& point : scaled) point.y *= 8;
  CHECK(fit_line(scaled).slope == Approx(8 * fit_line(points).slope).epsilon(1e-12));
  CHECK(fit_line(scaled).intercept == Approx(8 * fit_line(points).intercept).epsilon(1e-12));
  CHECK(fit_line(scaled).residual == Approx(fit_line(points).residual).epsilon(1e-9));
}

TEST_CASE("fit_line: a single size gives no slope") {
  CHECK(fit_line(std::vector<MeasuredPoint>{{4, 2}}) == FittedLine{0.5, 0, 0});
  CHECK(fit_line(std::vector<MeasuredPoint>{{0, 2}}) == FittedLine{0, 2, 0});
  CHECK(fit_line(std::vector<MeasuredPoint>{{1, 0}, {2, 0}}) == FittedLine{});
}

TEST_CASE("fit_line: invalid measurements are refused") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  CHECK_THROWS_AS(fit_line({}), InvalidArgument);
  for (const MeasuredPoint bad : {MeasuredPoint{1, -1}, {-1, 1}, {1, kInfinity}, {1, kInfinity - kInfinity}}) {
    CHECK_THROWS_AS(fit_line(std::vector<MeasuredPoint>{{1, 1}, bad}), InvalidArgument);
  }
}
