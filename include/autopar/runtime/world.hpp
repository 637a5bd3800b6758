#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/core/ids.hpp>
#include <autopar/core/units.hpp>
#include <autopar/runtime/any_transport.hpp>
#include <autopar/runtime/log.hpp>
#include <autopar/runtime/one_caller.hpp>

namespace autopar {

using Blob = std::vector<std::byte>;

/// How long a rank waits for other ranks.
struct StallLimits {
  Seconds warning{60};   ///< then the rank logs which ranks it waits for, and for what
  Seconds timeout{600};  ///< then it throws TransportError, and so does every other rank
};

/// How `World::make_transport` moves bytes.
struct TransportOptions {
  TransportKind kind = TransportKind::kHost;
  int device = 0;  ///< kNccl: the CUDA device of this rank
  /// kNccl: returns the cudaStream_t on which the calling thread produces and reads buffers; called at each operation.
  /// If it is null or returns null, that is CUDA's default stream.
  std::function<void*()> compute_stream{};
};

/// Makes a transport of the World's own. Collective.
using MakeTransport = std::function<AnyTransport(const TransportOptions& how)>;
/// Makes a transport in place of a World. Collective.
using TransportFactory = std::function<AnyTransport(const TransportOptions& how, const MakeTransport& built_in)>;

struct WorldOptions {
  int expected_size = 0;  ///< refuse any other number of ranks; 0: accept any
  StallLimits stall;      ///< until all ranks have made their first call, AUTOPAR_START_TIMEOUT (120 s) applies if it
                          ///< is shorter
  /// Makes the transports of models in place of the World, from the built-in ones if it likes. The same on all ranks.
  ///
  ///   ap::World world(argc, argv, {.transports = [](const ap::TransportOptions& how, const ap::MakeTransport&
  ///   built_in) {
  ///     return ap::erased(Logged(built_in(how)));
  ///   }});
  TransportFactory transports{};
};

namespace detail {
class WorldBackend;
}

/// The ranks that train together, and this process's rank. Constructed once, at the start of main.
///
/// Collective members are called by every rank in the same order with the same `action`, from one thread at a time.
/// `action` is the purpose of the call in error messages. They block until their result is available. If another rank
/// fails or leaves, or a stall limit passes, they throw TransportError, and so does every later call. If another thread
/// is in a collective member, they throw InvalidArgument and do nothing.
class World {
 public:
  /// Joins the ranks that the launcher (mpiexec, srun, …) started. Without a launcher: a world of one rank, without
  /// MPI.
  /// @throws InvalidArgument if MPI's world differs from the size in the launcher's variables or `options`, or MPI was
  /// finalised
  /// @throws TransportError, with the missing ranks if they are known, unless all ranks join within
  /// AUTOPAR_START_TIMEOUT
  World(int argc, char** argv, WorldOptions options = {});
  /// For backends: loopback::run, mpi_comm.hpp.
  explicit World(std::unique_ptr<detail::WorldBackend> backend);
  /// Neither copied nor moved, since models refer to it.
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  /// Waits for all ranks, and finalises MPI if this World initialised it. After a failure, or if an exception leaves
  /// the World's scope, it tells the other ranks and aborts the job instead. So does a process that exits while its
  /// World lives.
  ~World();

  [[nodiscard]] int rank() const;      ///< 0 <= rank < size
  [[nodiscard]] Rank rank_id() const;  ///< rank(), as the type that plans and programs use
  [[nodiscard]] int size() const;
  [[nodiscard]] int local_rank() const;  ///< index among the ranks of this host
  [[nodiscard]] int local_size() const;
  /// How long this rank's threads have waited for other ranks so far, in collective members and for messages in host
  /// memory. Waits of devices do not count.
  [[nodiscard]] Seconds waited() const;

  void barrier(std::string_view action = "barrier");

  /// The bytes of every rank, by rank. For small data: each rank sends to each other rank.
  [[nodiscard]] std::vector<Blob> all_gather(std::span<const std::byte> mine, std::string_view action);
  /// The bytes of `root`, on every rank.
  [[nodiscard]] Blob broadcast(Blob bytes, Rank root, std::string_view action);
  /// Element-wise sums in place, bit-identical on every rank. Lengths are equal on every rank.
  void all_reduce_sum(std::span<double> values, std::string_view action);
  void all_reduce_sum(std::span<std::int64_t> values, std::string_view action);
  /// Point to point; both ranks know the size, which is not limited. Not collective.
  void send(std::span<const std::byte> bytes, Rank to, std::string_view action);
  void receive(std::span<std::byte> bytes, Rank from, std::string_view action);

  /// A transport for one model, from `WorldOptions::transports` if there is one, in a separate context: messages of two
  /// transports never mix. Collective. Destroy it before the World.
  /// @throws InvalidArgument, on every rank, if this build or host does not support the kind
  /// @throws InvalidArgument, on every rank, if MPI has no communicators left (mpich: about 1000 live transports). The
  /// World stays usable.
  [[nodiscard]] AnyTransport make_transport(const TransportOptions& options = {});

  /// Tells every other rank that this one cannot continue. What they wait for and call next throws TransportError with
  /// this rank, `action` and `message`. Call it when an exception leaves a collective call.
  void fail(std::string_view action, std::string_view message) noexcept;
  [[nodiscard]] bool failed() const noexcept;
  /// Tells the other ranks that this rank makes no further collective call: their next one throws instead of waiting.
  /// The destructor calls it, too.
  void announce_leaving() noexcept;

  /// Declares, on every rank, that an exception that leaves this World's scope from now on is not a failure. The
  /// destructor then ends as it does without an exception.
  void expect_exception() noexcept;

  /// Another World over the same ranks that may outlive this one; its destructor does nothing. After this World has
  /// ended, communication through the view throws InvalidArgument.
  [[nodiscard]] World view() const;

  /// Makes several collective calls one unit: until the result is destroyed, collective calls of other threads throw.
  /// @throws InvalidArgument if another thread is in a collective call
  [[nodiscard]] OneCaller::Inside enter(std::string_view action);

  /// The number of a model that is being constructed, from 1. It is the same on all ranks if they construct their
  /// models in the same order.
  [[nodiscard]] int count_model() noexcept;
  void set_stall_limits(StallLimits limits);
  [[nodiscard]] Log& log();
  [[nodiscard]] Logger logger(LogModule module) const;

 private:
  World(std::shared_ptr<detail::WorldBackend> backend, bool owns) : backend_(std::move(backend)), owns_(owns) {}
  /// @throws InvalidArgument if the World has ended
  [[nodiscard]] detail::WorldBackend& living() const;

  std::shared_ptr<detail::WorldBackend> backend_;
  bool owns_ = true;  ///< false for a view, whose destructor does nothing
};

}  // namespace autopar
