#pragma once

#include <stdexcept>
#include <string>

namespace autopar {

/// An invariant of the library is violated: a bug in autopar, never in the caller.
class InternalError : public std::logic_error {
  using std::logic_error::logic_error;
};

namespace detail {
[[noreturn]] inline void fail_assertion(const char* condition, const char* file, int line, const std::string& what) {
  throw InternalError("autopar is wrong here: " + what + " (" + condition + ", " + file + ":" + std::to_string(line) +
                      "); please report it");
}
}  // namespace detail

}  // namespace autopar

/// Checked in every build, since training must not continue after a violation.
#define AUTOPAR_ASSERT(condition, what) \
  ((condition) ? void(0) : ::autopar::detail::fail_assertion(#condition, __FILE__, __LINE__, (what)))
