#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/units.hpp>

namespace autopar {

/// Seconds `y` at size `x`, in samples or bytes.
struct MeasuredPoint {
  double x = 0;
  double y = 0;
  friend bool operator==(const MeasuredPoint&, const MeasuredPoint&) = default;
};

/// Measured seconds by size: an atom's by samples, those of a message, a collective, an update or a copy by bytes.
/// Links change their protocol with the size, and devices their kernels, so that no single line holds for all sizes.
///
/// Laws: no less for a larger size, and no more for each sample or byte. So several parts never take less than the
/// whole.
class CostCurve {
 public:
  CostCurve() = default;  // takes no time
  /// Through the measurements. Where noise breaks a law, the smaller of two seconds is raised.
  /// @throws InvalidArgument without points, for sizes that do not ascend from above 0, and for numbers that are
  /// negative, infinite or undefined
  explicit CostCurve(std::vector<MeasuredPoint> points) : points_(std::move(points)) {
    expect(!points_.empty(), "nothing was measured; measure at least one size");
    double last_size = 0;
    for (const MeasuredPoint& point : points_) {
      const bool legal = point.x > last_size && point.y >= 0 && std::isfinite(point.x) && std::isfinite(point.y);
      expect(legal, "measured sizes must ascend from above 0, and their seconds be finite numbers of at least 0");
      last_size = point.x;
    }
    for (std::size_t i = points_.size() - 1; i > 0; --i)
      points_[i - 1].y = std::max(points_[i - 1].y, points_[i].y * (points_[i - 1].x / points_[i].x));
    for (std::size_t i = 1; i < points_.size(); ++i) points_[i].y = std::max(points_[i].y, points_[i - 1].y);
  }

  /// Linear between measured sizes and beyond both ends. Of one measured size, less takes as long.
  [[nodiscard]] Seconds operator()(Bytes bytes) const { return at(static_cast<double>(bytes.value())); }
  /// @param size  samples or bytes
  [[nodiscard]] Seconds at(double size) const {
    if (points_.empty()) return {};
    if (points_.size() == 1) return Seconds(points_.front().y * std::max(1.0, size / points_.front().x));
    const auto above = std::upper_bound(points_.begin() + 1, points_.end() - 1, size,
                                        [](double value, const MeasuredPoint& point) { return value < point.x; });
    const MeasuredPoint &from = *(above - 1), &to = *above;
    return Seconds(from.y + (to.y - from.y) / (to.x - from.x) * (size - from.x));
  }

  /// What is added by so many bytes or samples more than the largest measured size.
  [[nodiscard]] Seconds beyond(double more) const {
    if (points_.empty()) return {};
    const double largest = points_.back().x;
    return at(largest + more) - at(largest);
  }

  [[nodiscard]] bool empty() const { return points_.empty(); }
  [[nodiscard]] const std::vector<MeasuredPoint>& points() const { return points_; }

  /// All seconds `factor` times as long.
  [[nodiscard]] CostCurve scaled(double factor) const {
    CostCurve curve = *this;
    for (MeasuredPoint& point : curve.points_) point.y *= factor;
    return curve;
  }

  friend bool operator==(const CostCurve&, const CostCurve&) = default;

 private:
  std::vector<MeasuredPoint> points_;
};

}  // namespace autopar
