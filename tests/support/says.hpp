#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>

/// The text of what `work` throws, of autopar's errors; empty = nothing.
template <class Work>
std::string said_by(const Work& work) {
  try {
    work();
  } catch (const autopar::Error& error) {
    return error.what();
  }
  return {};
}

/// `refused` throws an error of autopar's that says all of `parts`, and nothing that only a capture knows of.
/// @throws std::logic_error otherwise; so that ranks that are threads may call it
template <class Work>
void check_says(const std::vector<std::string>& parts, const Work& refused) {
  const auto message = said_by(refused);
  if (message.empty()) throw std::logic_error("nothing was refused");
  const auto has = [&](const std::string& part) { return message.find(part) != std::string::npos; };
  for (const auto& part : parts) {
    if (!has(part)) throw std::logic_error("'" + part + "' is not in: " + message);
  }
  for (const char* internal : {"autopar::all_reduce", "batch 7", "batch 12", "batch 18", "7, 12, 18", "(7)"}) {
    if (has(internal)) throw std::logic_error("'" + std::string(internal) + "' is in: " + message);
  }
}
