#pragma once

#include <string>
#include <utility>
#include <vector>

namespace training {

/// Named figures, in the order in which they are shown.
using Values = std::vector<std::pair<std::string, double>>;

}  // namespace training
