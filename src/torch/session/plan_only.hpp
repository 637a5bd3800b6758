#pragma once

namespace autopar::detail {

/// From now on a `PlanOnly` that nobody catches ends the process with success, after rank 0 has said what it says: an
/// ordinary main, which catches nothing, can be asked for a plan. Other exceptions end it as before.
void end_well_where_plan_only_is_uncaught();

}  // namespace autopar::detail
