#pragma once

#include <exception>
#include <string>
#include <string_view>

#include <autopar/core/ids.hpp>

#include "torch/ranks/ranks.hpp"

namespace autopar::ranks {

/// An error as text that another rank can throw again with its type: errors of what was asked (arguments, options,
/// model, plan) concern every rank alike. Never empty.
[[nodiscard]] std::string to_message(const std::exception& error);

/// Throws on `rank` what `failed` put into `message`: the same type and text for errors of what was asked, else a
/// TransportError naming `failed`, `action` and the text.
/// @throws the error, always
[[noreturn]] void throw_message(const std::string& message, Rank rank, Rank failed, const std::string& action);

/// Called within a catch: what is caught. One of libtorch becomes an OperatorError without its frames, in which it is
/// nested; the log has the frames (debug).
[[nodiscard]] std::exception_ptr without_frames(const Logger& log, std::string_view action);

/// Called within a catch: tells the other ranks that this one failed in `action`.
/// @throws what is caught, `without_frames`, always
[[noreturn]] void fail_without_frames(Ranks& ranks, const Logger& log, std::string_view action);

/// Runs `work` of one rank, which the others wait for: what it throws ends the training of all (`fail_without_frames`).
template <class Work>
auto or_fail(Ranks& ranks, std::string_view action, Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception&) {
    fail_without_frames(ranks, ranks.logger(LogModule::kSession), action);
  }
}

}  // namespace autopar::ranks
