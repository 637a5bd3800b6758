// How a session asks for its plan.
#include <algorithm>
#include <utility>

#include <autopar/torch/optim/fused.hpp>
#include <autopar/torch/optim/lamb.hpp>
#include <autopar/torch/optim/lars.hpp>

#include "torch/planning/device_costs.hpp"
#include "torch/planning/plan_builder.hpp"
#include "torch/ranks/ranks.hpp"
#include "torch/session/session_impl.hpp"

namespace autopar::session {

namespace {

/// Whether it is one of `autopar::optim`.
bool steps_at_once(const torch::optim::Optimizer* optimizer) {
  return dynamic_cast<const optim::SGD*>(optimizer) != nullptr ||
         dynamic_cast<const optim::Adam*>(optimizer) != nullptr ||
         dynamic_cast<const optim::AdamW*>(optimizer) != nullptr ||
         dynamic_cast<const optim::LAMB*>(optimizer) != nullptr ||
         dynamic_cast<const optim::LARS*>(optimizer) != nullptr;
}

}  // namespace

void Impl::make_plan(PlannedModes& modes, cost::GraphProfile& profile, std::int64_t batch) {
  planning::Optimizers stepped_by;
  for (const auto* optimizer : optimizers_) {
    const double factor = parameters::state_factor(*optimizer, options_.zero == 0 ? 1 : world_.size());
    stepped_by.state_factor = stepped_by.attached ? std::max(stepped_by.state_factor, factor) : factor;
    stepped_by.attached = true;
  }
  const bool at_once = !optimizers_.empty() && std::ranges::all_of(optimizers_, steps_at_once);
  const auto new_transport = [this] { return deployment_.new_transport(); };
  planning::DeviceCosts costs(world_, {options_, deployment_.device(), cache_, files_, new_transport, at_once});
  ranks::WorldRanks ranks(world_);
  const planning::PlanFiles files(options_, files_);
  planning::PlanBuilder builder(ranks, options_, deployment_.device(), planner_, costs, files);
  auto programs = modes.programs();
  deployment_.adopt(builder.build(programs, profile, batch, stepped_by, trace_path(), given_plan_));
}

}  // namespace autopar::session
