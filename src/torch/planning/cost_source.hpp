#pragma once

#include <cstdint>

#include <autopar/core/cluster.hpp>
#include <autopar/cost/measured.hpp>

#include "torch/cost/profile.hpp"
#include "torch/planning/model_program.hpp"

namespace autopar::planning {

/// What planning asks of the devices.
class CostSource {
 public:
  CostSource() = default;
  CostSource(const CostSource&) = delete;
  CostSource& operator=(const CostSource&) = delete;
  virtual ~CostSource() = default;

  /// Whether `costs` measures, equal on all ranks.
  [[nodiscard]] virtual bool measures() const = 0;
  /// The devices that a plan is made for.
  [[nodiscard]] virtual Cluster cluster() const = 0;
  /// What a program's atoms, links and updates take; nothing, if options ask for the roofline. Collective: everything
  /// that a search needs is measured before it.
  /// @param batch     samples of a step, all ranks together
  /// @param recorded  see ModelPrograms
  [[nodiscard]] virtual MeasuredCosts costs(const ModelProgram& program, const cost::GraphProfile& profile,
                                            std::int64_t batch, bool recorded) = 0;
};

}  // namespace autopar::planning
