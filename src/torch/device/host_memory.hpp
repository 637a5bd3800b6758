#pragma once

namespace autopar::devices {

/// From now on freed memory stays with the process, except blocks of 32 MiB and more. Otherwise a step returns memory
/// to the system. The next one gets it page by page, which took up to a fifth of a step. Affects the whole process;
/// glibc only.
void keep_freed_memory();

/// Returns free memory to the system once.
/// @cost milliseconds
void release_freed_memory();

}  // namespace autopar::devices
