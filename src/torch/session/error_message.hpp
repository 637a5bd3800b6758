#pragma once

#include <exception>
#include <string>

#include <autopar/core/ids.hpp>

namespace autopar {

/// An error as text that another rank can throw again with its type: errors of what was asked (arguments, options,
/// model, plan) concern every rank alike. Never empty.
[[nodiscard]] std::string to_message(const std::exception& error);

/// Throws on `rank` what `failed` put into `message`: the same type and text for errors of what was asked, else a
/// TransportError naming `failed`, `action` and the text.
/// @throws the error, always
[[noreturn]] void throw_message(const std::string& message, Rank rank, Rank failed, const std::string& action);

}  // namespace autopar
