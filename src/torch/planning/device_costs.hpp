#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <c10/core/Device.h>

#include <autopar/core/cluster.hpp>
#include <autopar/cost/measured.hpp>
#include <autopar/io/cost_file.hpp>
#include <autopar/plan/options.hpp>
#include <autopar/runtime/any_transport.hpp>
#include <autopar/runtime/world.hpp>

#include "torch/planning/cost_source.hpp"
#include "torch/planning/optional_files.hpp"
#include "torch/planning/user_cache.hpp"

namespace autopar::planning {

/// Measures on the ranks of a World, and keeps what it measured in `Options::cost_file` or in the user's cache.
class DeviceCosts final : public CostSource {
 public:
  struct Setting {
    const Options& options;
    c10::Device device;
    const UserCache& cache;
    OptionalFiles& files;
    std::function<AnyTransport()> new_transport;  ///< for the device; collective
    bool steps_at_once = false;                   ///< all attached optimizers are those of `autopar::optim`
  };

  /// @pre the World and what the setting refers to outlive this
  DeviceCosts(World& world, Setting setting) : world_(world), setting_(std::move(setting)) {}

  [[nodiscard]] bool measures() const override;
  [[nodiscard]] Cluster cluster() const override;
  [[nodiscard]] MeasuredCosts costs(const ModelProgram& program, const cost::GraphProfile& profile, std::int64_t batch,
                                    bool recorded) override;

 private:
  [[nodiscard]] MeasuredCosts kept_costs(const CostOrigin& origin) const;
  void keep(MeasuredCosts costs, const CostOrigin& origin);

  World& world_;
  Setting setting_;
};

}  // namespace autopar::planning
