#pragma once

/// The version of autopar. `find_package(autopar)` and saved plans are checked against it.
#define AUTOPAR_VERSION_MAJOR 0
#define AUTOPAR_VERSION_MINOR 1
#define AUTOPAR_VERSION_PATCH 0

#define AUTOPAR_DETAIL_QUOTE_(x) #x
#define AUTOPAR_DETAIL_QUOTE(x) AUTOPAR_DETAIL_QUOTE_(x)
#define AUTOPAR_DETAIL_DOTTED(major, minor, patch) \
  AUTOPAR_DETAIL_QUOTE(major) "." AUTOPAR_DETAIL_QUOTE(minor) "." AUTOPAR_DETAIL_QUOTE(patch)

namespace autopar {

/// `major.minor.patch`.
inline constexpr const char* kVersion =
    AUTOPAR_DETAIL_DOTTED(AUTOPAR_VERSION_MAJOR, AUTOPAR_VERSION_MINOR, AUTOPAR_VERSION_PATCH);

}  // namespace autopar
