#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cuda_on_cpu/kernel_table.hpp"
#include "kernels/kernel_source.hpp"

namespace cuda_on_cpu {

/// In which order blocks run, and threads between two barriers. What a kernel makes depends on neither.
struct Order {
  bool blocks_backwards = false, threads_backwards = false;
};

/// What a thread did that ended the launch: an address that it may not touch, or a trap of the undefined-behaviour
/// sanitizer.
struct Fault {
  bool is_trap = false;
  const void* address = nullptr;
  std::string place;  ///< "thread (3, 0) of block (1, 0)"
};
struct ThreadFault {
  Fault fault;
};

/// Runs all blocks, one after the other. Threads of a block are fibers: a warp runs to the block's barrier, its
/// threads from shuffle to shuffle. Shared
/// memory holds NaN when a block begins.
/// @throws ThreadFault; autopar::Error if threads wait for each other without end, or wait at different barriers, or
///   a shuffle reads a lane that does not take part
void run_blocks(const Kernel& kernel, const autopar::kernels::LaunchShape& shape, void* const* arguments, Order order);

}  // namespace cuda_on_cpu
