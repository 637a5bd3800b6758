#pragma once

#include <functional>
#include <string>

namespace autopar {

/// Is told what a planner does, one line a phase, as it begins. The plan does not depend on it.
using PlanObserver = std::function<void(const std::string& phase)>;

}  // namespace autopar
