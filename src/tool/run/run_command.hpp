#pragma once

#include "console.hpp"
#include "settings.hpp"

namespace autopar::tool {

/// `autopar run`: the program's exit status.
/// @throws Error before anything is started if the arguments, the hostfile or the launcher are of no use
int run_supervised(const RunSettings& settings, const Console& console = {});

}  // namespace autopar::tool
