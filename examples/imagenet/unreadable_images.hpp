#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include <autopar/runtime/world.hpp>

#include "images/image_loader.hpp"

/// Tells once of each image that could not be read, whichever rank has met it.
class UnreadableImages {
 public:
  using Say = std::function<void(const std::string&)>;

  /// Path and reason of those that no call before this one has told of go to `say`, on rank 0. Collective.
  void tell(autopar::World& world, const images::ImageLoader& loader, const Say& say);
  /// How many there are so far: the same on all ranks.
  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(known_.size()); }

 private:
  std::set<std::string> known_;  ///< paths
};
