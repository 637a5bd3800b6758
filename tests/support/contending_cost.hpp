#pragma once

#include <span>
#include <utility>

#include <autopar/cost/roofline.hpp>
#include <autopar/testing/dice.hpp>

namespace autopar::test {

/// The roofline's costs, with any contention between computation and exchanges, and passes over memory.
class ContendingCost : public RooflineCost {
 public:
  struct Given {
    Contention contention;
    double message_delay = 0;
    BytesPerSecond memory{1e30};  ///< of passes
  };
  ContendingCost(Cluster cluster, const Given& given) : RooflineCost(std::move(cluster)), given_(given) {}

  [[nodiscard]] Contention contention(std::span<const Rank>) const { return given_.contention; }
  [[nodiscard]] Contention least_contention(int) const { return given_.contention; }
  [[nodiscard]] double message_delay() const { return given_.message_delay; }
  [[nodiscard]] Seconds passes(Bytes bytes) const {
    return Seconds(static_cast<double>(bytes.value()) / given_.memory.value());
  }

 private:
  Given given_;
};

/// Half of all instances have the roofline's contention, the others any.
[[nodiscard]] inline ContendingCost::Given random_contention(testing::Dice dice, const Cluster& cluster) {
  if (dice.chance(50)) return {RooflineCost(cluster).least_contention(1)};
  const auto part = [&] { return 0.1 * dice(0, 10); };
  return {{part(), part()}, part(), BytesPerSecond(1e10 * dice(1, 10))};
}

}  // namespace autopar::test
