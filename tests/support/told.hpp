#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/runtime/loopback.hpp>

/// What each rank is told by an InvalidArgument; empty = nothing.
inline std::vector<std::string> told(int ranks, const std::function<void(autopar::World&)>& body) {
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  autopar::loopback::run(ranks, [&](autopar::World& world) {
    try {
      body(world);
    } catch (const autopar::InvalidArgument& error) {
      messages[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  return messages;
}
