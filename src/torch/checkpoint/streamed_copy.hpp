#pragma once

#include <cstddef>
#include <span>

namespace autopar::checkpoint {

/// Copies bytes with stores that pass the caches, as fast as memory allows; the caches keep what the training uses. On
/// all threads of libtorch. @param to  begins at a multiple of 16 bytes; as many bytes
void streamed_copy(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace autopar::checkpoint
