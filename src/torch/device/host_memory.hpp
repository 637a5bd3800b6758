#pragma once

#include <optional>

#include <autopar/core/units.hpp>

namespace autopar::devices {

/// From now on freed memory stays with the process, except blocks of 32 MiB and more. Otherwise a step returns memory
/// to the system. The next one gets it page by page, which took up to a fifth of a step. Affects the whole process;
/// glibc only.
void keep_freed_memory();

/// Returns free memory to the system once.
/// @cost milliseconds
void release_freed_memory();

/// What programs of this host can still get without swapping. Empty if the system does not say.
[[nodiscard]] std::optional<Bytes> available_host_memory();

}  // namespace autopar::devices
