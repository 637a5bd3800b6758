#pragma once

#include <string>

#include <autopar/runtime/transport.hpp>

namespace autopar::detail {

/// As messages call them.
[[nodiscard]] inline std::string name(Rank rank) { return "rank " + std::to_string(rank.value()); }
[[nodiscard]] inline std::string text(const Tag& tag) {
  return "channel " + std::to_string(tag.channel) + ", micro-batch " + std::to_string(tag.microbatch) + ", flow " +
         std::to_string(tag.flow);
}

}  // namespace autopar::detail
