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

/// How long a rank waits for others.
struct StallLimits {
  Seconds warning{60};   ///< after this it logs for whom and for what it waits
  Seconds timeout{600};  ///< after this it throws TransportError, and so does every other rank
};

struct WorldOptions {
  int expected_size = 0;  ///< refuse any other number of ranks; 0 = whatever was started
  StallLimits stall;      ///< until the first call of all ranks, AUTOPAR_START_TIMEOUT (120 s) counts where it is less
};

/// How `World::make_transport` moves bytes.
struct TransportOptions {
  TransportKind kind = TransportKind::kHost;
  int device = 0;  ///< kNccl: CUDA device of this rank
  /// kNccl: the cudaStream_t on which the calling thread makes and reads buffers, asked for at each operation; null,
  /// or what gives null, is CUDA's default stream.
  std::function<void*()> compute_stream{};
};

namespace detail {
class WorldBackend;
}

/// The ranks that train together, and this process's place among them. Made once, at the start of main; ends with it.
///
/// Collective members are called by every rank in the same order with the same `action`, from one thread at a time;
/// `action` names the purpose in errors. They block until their result is there, another rank fails or leaves, or a
/// stall limit passes; then they throw TransportError, as every later call does. If another thread is in one, they
/// throw InvalidArgument and do nothing.
class World {
 public:
  /// Joins the ranks that the launcher (mpiexec, srun, …) started. Without a launcher: a world of one, without MPI.
  /// @throws InvalidArgument if MPI's world is not the size that the launcher or `options` say, or MPI was finalised;
  ///         TransportError if not all ranks are there within AUTOPAR_START_TIMEOUT, by name where that can be known.
  World(int argc, char** argv, WorldOptions options = {});
  /// For backends: loopback::run, mpi_comm.hpp.
  explicit World(std::unique_ptr<detail::WorldBackend> backend);
  /// It stays where it was made: models refer to it.
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  /// Waits until all ranks are here and finalises MPI if this World initialised it. After a failure, or when left by an
  /// exception, it tells the others and aborts the job instead; so does a process that exits while its World lives.
  ~World();

  [[nodiscard]] int rank() const;      ///< 0 <= rank < size
  [[nodiscard]] Rank rank_id() const;  ///< the same, as the type that plans and programs use
  [[nodiscard]] int size() const;
  [[nodiscard]] int local_rank() const;  ///< among the ranks of this host
  [[nodiscard]] int local_size() const;

  void barrier(std::string_view action = "barrier");

  /// Every rank's bytes, by rank. For what is small: each rank sends to each other one.
  [[nodiscard]] std::vector<Blob> all_gather(std::span<const std::byte> mine, std::string_view action);
  /// `root`'s bytes on every rank.
  [[nodiscard]] Blob broadcast(Blob bytes, Rank root, std::string_view action);
  /// Element-wise sums, in place, the same bits on every rank. Equal lengths on every rank.
  void all_reduce_sum(std::span<double> values, std::string_view action);
  void all_reduce_sum(std::span<std::int64_t> values, std::string_view action);
  /// Between two ranks; sizes known to both, of any number of bytes. Not collective.
  void send(std::span<const std::byte> bytes, Rank to, std::string_view action);
  void receive(std::span<std::byte> bytes, Rank from, std::string_view action);

  /// Bytes between ranks for one model, in a context of its own: messages of two transports never mix. Collective.
  /// It must end before the World. @throws InvalidArgument if this build or host cannot provide the kind, or if so many
  /// are alive that MPI has no communicators left (mpich: about 1000), on every rank; the World lives on.
  [[nodiscard]] AnyTransport make_transport(TransportOptions options = {});

  /// Tells every other rank that this one cannot go on: what they wait for and do next throws TransportError naming
  /// this rank, `action` and `message`. Whoever catches an exception on its way out of a collective call calls this.
  void fail(std::string_view action, std::string_view message) noexcept;
  [[nodiscard]] bool failed() const noexcept;
  /// Tells the others that this rank makes no further collective call; their next one throws instead of waiting.
  /// ~World does it, too.
  void announce_leaving() noexcept;

  /// An exception that leaves this World from now on, on every rank, is no failure: ~World ends as it does without one.
  void expect_exception() noexcept;

  /// The same ranks, for what may outlive this World: as a World, but its end ends nothing. When this World has ended,
  /// everything that would talk to other ranks through the view throws InvalidArgument instead.
  [[nodiscard]] World view() const;

  /// For what makes several collective calls that belong together: until it is left, other threads' throw.
  /// @throws InvalidArgument as those do
  [[nodiscard]] OneCaller::Inside enter(std::string_view action);

  /// The number, from 1, of a model that is being made: the same on all ranks as long as they make theirs in one order.
  [[nodiscard]] int count_model() noexcept;
  void set_stall_limits(StallLimits limits);
  [[nodiscard]] Log& log();
  [[nodiscard]] Logger logger(LogModule module) const;

 private:
  World(std::shared_ptr<detail::WorldBackend> backend, bool owns) : backend_(std::move(backend)), owns_(owns) {}
  /// @throws InvalidArgument if the World has ended
  [[nodiscard]] detail::WorldBackend& living() const;

  std::shared_ptr<detail::WorldBackend> backend_;
  bool owns_ = true;  ///< false: a view, whose end ends nothing
};

}  // namespace autopar
