#pragma once

#include <exception>
#include <span>
#include <string>
#include <string_view>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/runtime/world.hpp>

namespace autopar::training {

/// What `make` gives on rank 0, on all ranks; it is not called elsewhere. What it throws all ranks throw, so that none
/// waits for another. Collective.
/// @throws InvalidArgument with the message of what `make` threw
template <class Make>
std::string from_first(World& world, std::string_view what, const Make& make) {
  std::string told;  // its first character says whether it is an error's message
  if (world.rank() == 0) {
    try {
      told = "+" + make();
    } catch (const std::exception& error) {
      told = std::string("-") + error.what();
    }
  }
  const auto bytes = std::as_bytes(std::span(told));
  const auto all = world.broadcast({bytes.begin(), bytes.end()}, Rank(0), what);
  std::string text(reinterpret_cast<const char*>(all.data()), all.size());
  if (text.front() == '-') throw InvalidArgument(text.substr(1));
  return text.substr(1);
}

}  // namespace autopar::training
