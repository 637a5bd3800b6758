#pragma once

#include <functional>
#include <string>

namespace autopar {

/// Receives one line for each phase of a planner, as the phase begins. The plan does not depend on it.
using PlanObserver = std::function<void(const std::string& phase)>;

}  // namespace autopar
