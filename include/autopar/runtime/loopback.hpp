#pragma once

#include <functional>

#include <autopar/runtime/world.hpp>

namespace autopar::loopback {

/// Runs `body` on `ranks` threads of this process, each with its own World over shared memory. Returns when all have
/// ended. Messages are transferred when both sides have called (rendezvous). So a program that needs buffering stops at
/// the stall limit here; with other transports it may.
///
/// If a body throws, communication of the others throws TransportError, and the first cause is rethrown here.
/// @throws InvalidArgument if ranks < 1
void run(int ranks, const std::function<void(World&)>& body, const WorldOptions& options = {});

}  // namespace autopar::loopback
