#pragma once

#include <functional>

#include <autopar/runtime/world.hpp>

namespace autopar::loopback {

/// Runs `body` on `ranks` threads of this process, each with its own World over shared memory; returns when all have
/// ended. Messages are handed over when both sides are there (rendezvous), so a program that needs buffering hangs here
/// until the stall limit, as it may anywhere.
///
/// If one body throws, the others' communication throws TransportError, and the first cause is rethrown here.
/// @throws InvalidArgument if ranks < 1.
void run(int ranks, const std::function<void(World&)>& body, const WorldOptions& options = {});

}  // namespace autopar::loopback
