#pragma once

#include <memory>
#include <string>

#include <autopar/io/cache_folder.hpp>
#include <autopar/runtime/world.hpp>

namespace autopar::planning {

/// What this user's programs keep for one another; null: nothing is kept.
struct UserCache {
  std::shared_ptr<CacheFolder> costs;
  std::shared_ptr<CacheFolder> kernels;  ///< in the other: compiled kernels, algorithms of products
};

/// @param folder  `ConfigSources::cache_folder`. What is wrong with it a rank of each host says, as a warning: its
/// programs then compile and measure for themselves. What cannot be written is said at level info.
[[nodiscard]] UserCache user_cache(const std::string& folder, const World& world);

}  // namespace autopar::planning
