#include <autopar/runtime/world.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "backend.hpp"
#include "launcher.hpp"
#include "loopback.hpp"
#include "mpi_backend.hpp"
#include "nccl_transport.hpp"

namespace autopar {
namespace {

std::unique_ptr<detail::WorldBackend> join(int argc, char** argv, const WorldOptions& options) {
  const auto launcher = detail::find_launcher();
  const bool alone = !launcher || launcher->size == 1;
  if (!alone || detail::mpi_is_running()) {
    return detail::join_mpi(argc, argv, options, launcher.value_or(detail::Launcher{}));
  }
  if (options.expected_size > 1) {
    throw InvalidArgument("a world of " + std::to_string(options.expected_size) +
                          " ranks was asked for, but this process was started alone; start it with 'mpiexec -n " +
                          std::to_string(options.expected_size) + " program …'");
  }
  return detail::make_world_of_one(options);
}

/// Few numbers are gathered, in messages that say what they are for: ranks that are out of step are told so.
constexpr std::size_t kFewNumbers = 16;

template <class T>
void sum(detail::ControlPlane& control, std::span<T> values, DType dtype, std::string_view action) {
  if (values.size() > kFewNumbers) return control.all_reduce(std::as_writable_bytes(values), dtype, action);
  const auto all = control.all_gather(std::as_bytes(values), action);
  for (const auto& blob : all) {
    if (blob.size() == values.size_bytes()) continue;
    throw InvalidArgument(std::string(action) +
                          ": the ranks sum different numbers of values; every rank must make the " +
                          "same calls in the same order");
  }
  std::fill(values.begin(), values.end(), T{});
  for (const auto& blob : all) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      T value{};
      std::memcpy(&value, blob.data() + i * sizeof(T), sizeof(T));
      values[i] += value;
    }
  }
}

}  // namespace

World::World(int argc, char** argv, WorldOptions options) : World(join(argc, argv, options)) {
  backend_->set_transports(std::move(options.transports));
}

World::World(std::unique_ptr<detail::WorldBackend> backend) : backend_(std::move(backend)) {}

World::~World() {
  if (!owns_) return;
  if (std::uncaught_exceptions() > 0 && !backend_->health().failed() && !backend_->expects_exception()) {
    const std::string action = backend_->health().action();
    fail("its program", "left by an exception" + (action.empty() ? "" : " after '" + action + "'"));
  }
  backend_->announce_leaving();
  backend_->close();
  backend_->set_ended();
}

void World::expect_exception() noexcept { backend_->set_expects_exception(); }

World World::view() const { return {backend_, false}; }

detail::WorldBackend& World::living() const {
  if (!backend_->ended()) return *backend_;
  throw InvalidArgument(
      "the World has ended before what uses it; let the World outlive its models: make it first, at the "
      "start of main");
}

int World::rank() const { return rank_id().value(); }
Rank World::rank_id() const { return backend_->rank(); }
int World::size() const { return backend_->size(); }
int World::local_rank() const { return backend_->locality().rank; }
int World::local_size() const { return backend_->locality().size; }
Seconds World::waited() const { return backend_->health().waited(); }

void World::barrier(std::string_view action) { (void)all_gather({}, action); }

std::vector<Blob> World::all_gather(std::span<const std::byte> mine, std::string_view action) {
  const auto inside = enter(action);
  auto blobs = living().control().all_gather(mine, action);
  backend_->health().note_started();
  return blobs;
}

Blob World::broadcast(Blob bytes, Rank root, std::string_view action) {
  const auto inside = enter(action);
  return living().control().broadcast(std::move(bytes), root, action);
}

void World::all_reduce_sum(std::span<double> values, std::string_view action) {
  const auto inside = enter(action);
  sum(living().control(), values, DType::kF64, action);
}

void World::all_reduce_sum(std::span<std::int64_t> values, std::string_view action) {
  const auto inside = enter(action);
  sum(living().control(), values, DType::kI64, action);
}

void World::send(std::span<const std::byte> bytes, Rank to, std::string_view action) {
  const auto inside = enter(action);
  living().control().send(bytes, to, action);
}

void World::receive(std::span<std::byte> bytes, Rank from, std::string_view action) {
  const auto inside = enter(action);
  living().control().receive(bytes, from, action);
}

AnyTransport World::make_transport(const TransportOptions& options) {
  const auto inside = enter("make_transport");
  auto& backend = living();
  const MakeTransport built_in = [&backend](const TransportOptions& how) {
    if (how.kind == TransportKind::kNccl) return AnyTransport(detail::make_nccl_transport(backend, how));
    return AnyTransport(backend.make_transport());
  };
  if (!backend.transports()) return built_in(options);
  auto transport = backend.transports()(options, built_in);
  if (!transport) throw InvalidArgument("WorldOptions::transports returned an empty transport; return built_in(how)");
  return transport;
}

void World::fail(std::string_view action, std::string_view message) noexcept {
  backend_->health().report({backend_->rank(), std::string(action), std::string(message)});
}

bool World::failed() const noexcept { return backend_->health().failed(); }

void World::announce_leaving() noexcept { backend_->announce_leaving(); }

OneCaller::Inside World::enter(std::string_view action) { return backend_->caller().enter(action); }

int World::count_model() noexcept { return backend_->count_model(); }

void World::set_stall_limits(StallLimits limits) { backend_->health().set_limits(limits); }

Log& World::log() { return backend_->log(); }

Logger World::logger(LogModule module) const { return backend_->log().logger(module); }

}  // namespace autopar
