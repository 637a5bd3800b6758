#pragma once

#include <cstdint>
#include <vector>

#include "torch/planning/cost_source.hpp"

namespace autopar::test {

/// A device that nobody asks, and how often it is asked for costs.
class FakeCosts final : public planning::CostSource {
 public:
  [[nodiscard]] bool measures() const override { return true; }
  [[nodiscard]] Cluster cluster() const override {
    Cluster cluster;
    cluster.name = "fake";
    cluster.devices = 1;
    cluster.device.name = "fake";
    cluster.device.memory = memory;
    return cluster;
  }
  [[nodiscard]] MeasuredCosts costs(const planning::ModelProgram&, const cost::GraphProfile&, std::int64_t batch,
                                    bool) override {
    asked.push_back(batch);
    return {};
  }

  Bytes memory{std::int64_t{1} << 30};
  std::vector<std::int64_t> asked;
};

}  // namespace autopar::test
