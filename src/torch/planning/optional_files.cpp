#include "torch/planning/optional_files.hpp"

#include <autopar/core/error.hpp>

namespace autopar::planning {

bool OptionalFiles::write(const std::string& option, const std::function<void()>& write) {
  try {
    write();
    return true;
  } catch (const ConfigError& error) {
    if (failed_.insert(option).second)
      log_.warn("the file of " + option + " is not written, and training goes on without it: " + error.what());
    return false;
  }
}

}  // namespace autopar::planning
