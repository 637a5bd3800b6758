#pragma once

#include <autopar/runtime/world.hpp>

namespace autopar::detail {

/// From now on a `PlanOnly` that nobody catches ends the process with success, after rank 0 has said what it says: an
/// ordinary main, which catches nothing, can be asked for a plan. Other exceptions end it as before. `world` is whose
/// other ranks are told that this one leaves.
void end_well_where_plan_only_is_uncaught(const World& world);

}  // namespace autopar::detail
