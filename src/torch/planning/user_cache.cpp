#include "torch/planning/user_cache.hpp"

#include <string_view>

#include <autopar/runtime/log.hpp>

namespace autopar::planning {

namespace {

bool contains(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

/// Earlier versions wrote files that say nothing of their content.
bool is_old_cost_file(std::string_view name) { return name.starts_with("costs-") && contains(name, ".json"); }
bool is_old_kernel_file(std::string_view name) {
  return contains(name, ".cubin") || (name.starts_with("products-") && contains(name, ".txt"));
}

}  // namespace

UserCache user_cache(const std::string& folder, const World& world) {
  if (folder.empty()) return {};
  const auto report = [log = world.logger(LogModule::kSession), speaks = world.local_rank() == 0](
                          CacheTrouble trouble, const std::string& message) {
    const bool is_refused = trouble == CacheTrouble::kRefused;
    log.write(is_refused && speaks ? LogLevel::kWarn : is_refused ? LogLevel::kDebug : LogLevel::kInfo, message);
  };
  UserCache cache;
  cache.costs = std::make_shared<CacheFolder>(folder, report, is_old_cost_file);
  cache.kernels = std::make_shared<CacheFolder>(cache.costs, "kernels", is_old_kernel_file);
  return cache;
}

}  // namespace autopar::planning
