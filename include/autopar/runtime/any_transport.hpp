#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <autopar/runtime/transport.hpp>

namespace autopar {

/// Where a transport's buffers lie and which library moves them.
enum class TransportKind : std::uint8_t {
  kHost,  ///< host memory: MPI between processes, shared memory between the threads of a loopback world
  kNccl,  ///< memory of one CUDA device for each rank, moved by NCCL
};

/// A sender and a receiver.
struct DirectedPair {
  Rank from;
  Rank to;
  friend bool operator==(const DirectedPair&, const DirectedPair&) = default;
};

namespace detail {

/// An operation in progress, owned by its ticket and by the thread that completes it.
class Operation {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;
};

/// Operations that were captured with the work of a device, to be run again with it. Kept while that may run.
class RecordedOperations {
 public:
  RecordedOperations() = default;
  RecordedOperations(const RecordedOperations&) = delete;
  RecordedOperations& operator=(const RecordedOperations&) = delete;
  virtual ~RecordedOperations() = default;
};

/// The interface of every transport; the concept `Transport` states its laws.
class TransportBackend {
 public:
  using Ticket = std::shared_ptr<Operation>;

  TransportBackend() = default;
  TransportBackend(const TransportBackend&) = delete;
  TransportBackend& operator=(const TransportBackend&) = delete;
  virtual ~TransportBackend() = default;

  [[nodiscard]] virtual Rank rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual bool in_order() const { return false; }
  virtual void connect(const std::vector<DirectedPair>& pairs) = 0;
  virtual GroupId make_group(const std::vector<Rank>& ranks) = 0;
  virtual Ticket send(Buffer buffer, Rank peer, Tag tag) = 0;
  virtual Ticket receive(Buffer buffer, Rank peer, Tag tag) = 0;
  virtual Ticket all_reduce(Buffer buffer, DType dtype, GroupId group) = 0;
  virtual Ticket reduce_scatter(Buffer buffer, DType dtype, GroupId group) = 0;
  virtual Ticket all_gather(Buffer buffer, GroupId group) = 0;
  virtual Ticket all_to_all(Buffer buffer, GroupId group) = 0;
  [[nodiscard]] virtual bool done(const Ticket& ticket) = 0;
  virtual void wait(const Ticket& ticket) = 0;
  [[nodiscard]] virtual bool can_record() const { return false; }
  virtual void begin_recording() {}
  [[nodiscard]] virtual std::shared_ptr<RecordedOperations> end_recording() { return nullptr; }
  virtual void replay(const std::shared_ptr<RecordedOperations>& /*operations*/, const std::function<void()>& launch) {
    launch();
  }
};

}  // namespace detail

/// A type-erased transport, as `World::make_transport` returns it; models `Transport`. Each operation costs one virtual
/// call. Used by one thread at a time.
///
/// A received message must have the tag and size that the receiver expects. Otherwise `wait` throws TransportError: the
/// ranks do not run the same program. Sums are defined for kF32, kF64, kF16, kBF16 and kI64. Host transports add in the
/// order of the group's ranks (16-bit types in fp32, rounded once), so loopback and MPI give the same bits.
class AnyTransport {
 public:
  using Ticket = detail::TransportBackend::Ticket;  ///< an empty ticket is complete

  AnyTransport() = default;
  explicit AnyTransport(std::shared_ptr<detail::TransportBackend> backend) : backend_(std::move(backend)) {}

  [[nodiscard]] explicit operator bool() const { return backend_ != nullptr; }
  [[nodiscard]] Rank rank() const { return backend_->rank(); }
  [[nodiscard]] int size() const { return backend_->size(); }
  [[nodiscard]] bool in_order() const { return backend_->in_order(); }

  /// Declares which ranks will exchange messages, before the first message. Collective over the world, with the same
  /// pairs in the same order on every rank. NCCL makes one communicator for each pair; host transports do nothing.
  void connect(const std::vector<DirectedPair>& pairs) { backend_->connect(pairs); }
  /// Makes a group. Collective over the world, in the same order on every rank, including ranks outside the group.
  /// @throws InvalidArgument if `ranks` is not ascending or names a rank outside the world
  [[nodiscard]] GroupId make_group(const std::vector<Rank>& ranks) { return backend_->make_group(ranks); }
  [[nodiscard]] Ticket send(Buffer buffer, Rank peer, Tag tag) { return backend_->send(std::move(buffer), peer, tag); }
  [[nodiscard]] Ticket receive(Buffer buffer, Rank peer, Tag tag) {
    return backend_->receive(std::move(buffer), peer, tag);
  }
  [[nodiscard]] Ticket all_reduce(Buffer buffer, DType dtype, GroupId group) {
    return backend_->all_reduce(std::move(buffer), dtype, group);
  }
  /// In place. The buffer has one part for each member, in rank order and of equal size. This rank's part becomes the
  /// sum; the other parts are unspecified afterwards.
  /// @throws InvalidArgument unless the parts consist of whole elements
  [[nodiscard]] Ticket reduce_scatter(Buffer buffer, DType dtype, GroupId group) {
    return backend_->reduce_scatter(std::move(buffer), dtype, group);
  }
  /// In place. The buffer has one part for each member; each becomes its member's part.
  /// @throws InvalidArgument unless the parts are of equal size
  [[nodiscard]] Ticket all_gather(Buffer buffer, GroupId group) {
    return backend_->all_gather(std::move(buffer), group);
  }
  /// The buffer has two halves, each with one part for each member. Part i of the first half is sent to member i, this
  /// rank's own as well. Part i of the second half becomes what member i sent to this rank.
  /// @throws InvalidArgument unless the parts are of equal size
  [[nodiscard]] Ticket all_to_all(Buffer buffer, GroupId group) {
    return backend_->all_to_all(std::move(buffer), group);
  }
  /// Whether the operation is complete. Detects failures early: throws TransportError as `wait` does.
  [[nodiscard]] bool done(const Ticket& ticket) { return !ticket || backend_->done(ticket); }
  void wait(const Ticket& ticket) {
    if (ticket) backend_->wait(ticket);
  }

  /// Whether operations can be captured with the compute stream's work (a CUDA graph) and run again with it.
  [[nodiscard]] bool can_record() const { return backend_->can_record(); }
  /// Until `end_recording`, operations are captured in one order, the order of these calls, if the compute stream is
  /// being captured. `wait` must be called for each. Every rank of an operation captures it.
  void begin_recording() { backend_->begin_recording(); }
  /// Call it before the capture ends, and in any case if it fails.
  [[nodiscard]] std::shared_ptr<detail::RecordedOperations> end_recording() { return backend_->end_recording(); }
  /// Calls `launch`, which runs captured work again on the compute stream. While its operations run, failures and
  /// stalls are noticed as those of other operations. Every rank of an operation replays it.
  /// @throws TransportError if another rank has failed
  void replay(const std::shared_ptr<detail::RecordedOperations>& operations, const std::function<void()>& launch) {
    backend_->replay(operations, launch);
  }

 private:
  std::shared_ptr<detail::TransportBackend> backend_;
};

static_assert(Transport<AnyTransport>);

}  // namespace autopar
