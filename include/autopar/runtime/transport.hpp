#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <autopar/core/dtype.hpp>
#include <autopar/core/ids.hpp>

namespace autopar {

/// Memory of the transport's kind: host memory, or device memory for NCCL. `owner` keeps it alive while in flight.
struct Buffer {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> owner;
};

/// Identifies a message between two ranks within a call; equal on both.
struct Tag {
  std::int32_t channel = 0;
  std::int32_t microbatch = 0;
  std::int32_t flow = 0;
  friend bool operator==(const Tag&, const Tag&) = default;
};

/// A group of ranks for collectives, made by all ranks in the same order.
struct GroupId {
  std::int32_t value = -1;
  friend bool operator==(GroupId, GroupId) = default;
};

/// Moves bytes between ranks. All operations return at once with a ticket.
///
/// Laws (tests/unit/runtime, tests/mpi):
/// - A sent message is received once, unchanged, in order for each directed pair.
/// - `all_reduce` gives the sum on every member, bit-identical on all. `reduce_scatter` gives each member its part of
///   that sum, with the same bits; parts are equal, one for each member. `all_gather` gives all members' parts to each,
///   in place. `all_to_all` gives member i part i of every member, in the order of the members.
/// - Operations of one group start in the same order on all its members.
/// - Work that is enqueued on the compute stream after `wait(ticket)` sees the data; after a send it may overwrite the
///   buffer. `wait` blocks the host only for host memory.
/// - `wait` throws TransportError, with rank, peer and action, if another rank failed or the stall limit has passed. No
///   operation blocks for ever.
///
/// `in_order()`: an operation that waits for another rank may delay whatever is issued after it, including computation.
/// This holds on devices. Streams share hardware queues, and loading a kernel for the first time waits for running
/// kernels (CUDA C++ Programming Guide, "Lazy Loading"). Operations must then be issued in the order of a program that
/// is free of deadlock under rendezvous, and none earlier.
template <class T>
concept Transport = requires(T& transport, Buffer buffer, Rank peer, Tag tag, GroupId group, DType dtype,
                             const std::vector<Rank>& ranks, typename T::Ticket ticket) {
  typename T::Ticket;
  { transport.rank() } -> std::same_as<Rank>;
  { transport.size() } -> std::convertible_to<int>;
  { transport.in_order() } -> std::convertible_to<bool>;
  { transport.make_group(ranks) } -> std::same_as<GroupId>;
  { transport.send(buffer, peer, tag) } -> std::same_as<typename T::Ticket>;
  { transport.receive(buffer, peer, tag) } -> std::same_as<typename T::Ticket>;
  { transport.all_reduce(buffer, dtype, group) } -> std::same_as<typename T::Ticket>;
  { transport.reduce_scatter(buffer, dtype, group) } -> std::same_as<typename T::Ticket>;
  { transport.all_gather(buffer, group) } -> std::same_as<typename T::Ticket>;
  { transport.all_to_all(buffer, group) } -> std::same_as<typename T::Ticket>;
  { transport.done(ticket) } -> std::convertible_to<bool>;
  transport.wait(ticket);
};

}  // namespace autopar
