#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include <autopar/core/error.hpp>
#include <autopar/core/units.hpp>

namespace autopar {

/// A measurement `y` at size `x` (samples or bytes).
struct MeasuredPoint {
  double x = 0;
  double y = 0;
  friend bool operator==(const MeasuredPoint&, const MeasuredPoint&) = default;
};

/// A measured cost as a linear function of a size x. Non-negative and non-decreasing for x >= 0.
struct FittedLine {
  double slope = 0;      ///< >= 0
  double intercept = 0;  ///< >= 0
  double residual = 0;   ///< largest |line - measurement| / measurement; 0.1: no measurement is off by more than 10 %

  [[nodiscard]] double at(double x) const { return slope * x + intercept; }
  friend bool operator==(const FittedLine&, const FittedLine&) = default;
};

/// The line with slope and intercept >= 0 that minimises the squared relative error. The error is relative, since
/// micro-batches of one sample are as likely in plans as large ones. Exact for points on such a line; scaling all y
/// scales the line.
///
/// Points with one x do not determine a slope: for x = 0 their mean is the intercept, otherwise the line passes through
/// the origin. A measurement below a thousandth of the largest is weighted as if it were that large, so that a zero
/// does not have infinite weight.
/// @throws InvalidArgument without points, or for a negative, infinite or undefined number
[[nodiscard]] inline FittedLine fit_line(std::span<const MeasuredPoint> points) {
  expect(!points.empty(), "a line cannot be fitted to no measurement; measure at least one size");
  double largest = 0;
  for (const auto& point : points) {
    const bool legal = point.x >= 0 && point.y >= 0 && std::isfinite(point.x) && std::isfinite(point.y);
    expect(legal, "a measurement is negative, infinite or not a number");
    largest = std::max(largest, point.y);
  }
  if (largest == 0) return {};
  const auto magnitude = [&](const MeasuredPoint& point) { return std::max(point.y, largest * 1e-3); };

  double weight = 0, mean_x = 0, mean_y = 0;
  for (const auto& point : points) {
    const double w = std::pow(largest / magnitude(point), 2);
    weight += w;
    mean_x += w * point.x;
    mean_y += w * point.y;
  }
  mean_x /= weight;
  mean_y /= weight;
  double xx = 0, xy = 0, origin_xx = 0, origin_xy = 0;  // about the means, about the origin
  for (const auto& point : points) {
    const double w = std::pow(largest / magnitude(point), 2);
    xx += w * (point.x - mean_x) * (point.x - mean_x);
    xy += w * (point.x - mean_x) * (point.y - mean_y);
    origin_xx += w * point.x * point.x;
    origin_xy += w * point.x * point.y;
  }
  FittedLine line;
  const bool one_size = xx <= 1e-24 * std::max(origin_xx, 1e-300);
  line.slope = one_size ? 0 : xy / xx;
  line.intercept = mean_y - line.slope * mean_x;
  // If the optimum of this convex problem lies outside the quadrant, the constrained one lies on the nearer edge.
  if (line.slope < 0) {
    line = {0, mean_y, 0};
  } else if (line.intercept < 0 || (one_size && mean_x > 0)) {
    line = {origin_xy / origin_xx, 0, 0};
  }
  for (const auto& point : points) {
    line.residual = std::max(line.residual, std::abs(line.at(point.x) - point.y) / magnitude(point));
  }
  return line;
}

}  // namespace autopar
