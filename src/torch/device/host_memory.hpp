#pragma once

namespace autopar::devices {

/// From now on memory that is freed stays with the process, but for blocks of 32 MiB and more: what a step gives back
/// to the system, the next one gets page by page, which took up to a fifth of a step. Of the whole process; glibc only.
void keep_freed_memory();

/// What is free now goes back to the system once. @cost milliseconds
void release_freed_memory();

}  // namespace autopar::devices
