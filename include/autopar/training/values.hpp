#pragma once

#include <string>
#include <utility>
#include <vector>

namespace autopar::training {

/// Named figures, in the order in which they are shown.
using Values = std::vector<std::pair<std::string, double>>;

}  // namespace autopar::training
