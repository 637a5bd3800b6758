#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/units.hpp>
#include <autopar/cost/fit.hpp>

namespace autopar {

/// Measured seconds of a message or a collective by its bytes. Links change their protocol with the size, so that no
/// single line holds from a KiB to hundreds of MiB.
///
/// Laws: no less for more bytes, and no more for each byte. So several transfers never take less than one of all their
/// bytes.
class TransferCurve {
 public:
  TransferCurve() = default;  // takes no time
  /// Through the measurements. Where noise breaks a law, the smaller of two seconds is raised.
  /// @throws InvalidArgument without points, for sizes that do not ascend from above 0, and for numbers that are
  /// negative, infinite or undefined
  explicit TransferCurve(std::vector<MeasuredPoint> points) : points_(std::move(points)) {
    expect(!points_.empty(), "no transfer was measured; measure at least one size");
    double last_size = 0;
    for (const MeasuredPoint& point : points_) {
      const bool legal = point.x > last_size && point.y >= 0 && std::isfinite(point.x) && std::isfinite(point.y);
      expect(legal, "sizes of measured transfers must ascend, and their seconds be finite numbers of at least 0");
      last_size = point.x;
    }
    for (std::size_t i = points_.size() - 1; i > 0; --i)
      points_[i - 1].y = std::max(points_[i - 1].y, points_[i].y * (points_[i - 1].x / points_[i].x));
    for (std::size_t i = 1; i < points_.size(); ++i) points_[i].y = std::max(points_[i].y, points_[i - 1].y);
  }

  /// Linear between measured sizes, and beyond the largest. A transfer below the smallest size takes as long as that.
  [[nodiscard]] Seconds operator()(Bytes bytes) const { return at(static_cast<double>(bytes.value())); }
  /// @param size  in bytes
  [[nodiscard]] Seconds at(double size) const {
    if (points_.empty()) return {};
    if (size <= points_.front().x) return Seconds(points_.front().y);
    if (points_.size() == 1) return Seconds(points_.front().y / points_.front().x * size);
    const auto above = std::ranges::upper_bound(points_, size, {}, &MeasuredPoint::x);
    const auto end = above == points_.end() ? above - 1 : above;
    const MeasuredPoint &from = *(end - 1), &to = *end;
    return Seconds(from.y + (to.y - from.y) / (to.x - from.x) * (size - from.x));
  }

  [[nodiscard]] const std::vector<MeasuredPoint>& points() const { return points_; }

  /// All seconds `factor` times as long.
  [[nodiscard]] TransferCurve scaled(double factor) const {
    TransferCurve curve = *this;
    for (MeasuredPoint& point : curve.points_) point.y *= factor;
    return curve;
  }

  friend bool operator==(const TransferCurve&, const TransferCurve&) = default;

 private:
  std::vector<MeasuredPoint> points_;
};

}  // namespace autopar
