#include "mpi_backend.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <autopar/io/config.hpp>
#include <autopar/io/host_name.hpp>
#include <autopar/runtime/mpi_comm.hpp>

#include "communicator_pool.hpp"
#include "failure_detector.hpp"
#include "launcher.hpp"
#include "mpi_engine.hpp"
#include "mpi_transport.hpp"
#include "process_end.hpp"
#include "start_up.hpp"

namespace autopar::detail {
namespace {

using namespace std::chrono_literals;

/// After a failure, ranks wait this long for one another to report theirs before one of them ends the job.
constexpr auto kLastWords = 2s;
/// The others leave the rank that failed first this long to report why: its end may end them, and theirs may end it.
constexpr auto kFirstCauseFirst = 500ms;
/// Ranks that fail alike do so within this long.
constexpr auto kSameWords = 200ms;
/// Launchers pass on what a process wrote before MPI_Abort if they have had this long.
constexpr auto kOutputGrace = 100ms;
/// And a process has this long to report the exception that leaves it, or MPI_Abort to work.
constexpr auto kAbortGrace = 3s;
constexpr auto kFinaliseWarning = 10s;

void check_mpi(const char* function, int code) {
  if (code == MPI_SUCCESS) return;
  const MpiFailure failure = mpi_failure(function, code);
  throw TransportError(failure.message, Rank::none(), Rank::none(), function, failure.code);
}

/// What the communication thread finds out first.
struct Membership {
  bool initialised_here = false;
  int rank = 0;
  int size = 1;
  int tag_limit = 32767;
  MPI_Comm base = MPI_COMM_NULL;  ///< ours; only duplicated
  std::array<MPI_Comm, 4> first{MPI_COMM_NULL, MPI_COMM_NULL, MPI_COMM_NULL, MPI_COMM_NULL};
};

void initialise(int argc, char** argv, Membership& self) {
  int flag = 0;
  MPI_Finalized(&flag);
  if (flag != 0)
    throw InvalidArgument("MPI was already finalised in this process; make one World, at the start of main");
  MPI_Initialized(&flag);
  int level = MPI_THREAD_SINGLE;
  if (flag == 0) {
    check_mpi("MPI_Init_thread", MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level));
    self.initialised_here = true;
    return;
  }
  MPI_Query_thread(&level);
  if (level != MPI_THREAD_MULTIPLE) {
    throw InvalidArgument(
        "this program initialised MPI without MPI_THREAD_MULTIPLE; call MPI_Init_thread with it, or "
        "let World(argc, argv) initialise MPI");
  }
}

void check_size(int size, int expected, const std::string& who) {
  if (expected == 0 || expected == size) return;
  throw InvalidArgument("the MPI library made a world of " + std::to_string(size) + " ranks, but " + who + " says " +
                        std::to_string(expected) +
                        "; mpiexec and the MPI library of this program do not belong together (Ubuntu 24.04's mpich "
                        "4.2.0 is broken: install Open MPI), or the wrong number was asked for");
}

void enter(MPI_Comm communicator, Membership& self) {
  check_mpi("MPI_Comm_dup", MPI_Comm_dup(communicator, &self.base));
  MPI_Comm_set_errhandler(self.base, MPI_ERRORS_RETURN);
  for (MPI_Comm& each : self.first) {
    check_mpi("MPI_Comm_dup", MPI_Comm_dup(self.base, &each));
    MPI_Comm_set_errhandler(each, MPI_ERRORS_RETURN);
  }
  int* limit = nullptr;
  int flag = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &flag);
  if (flag != 0) self.tag_limit = *limit;
}

/// What became of a duplication.
struct Duplicate {
  MPI_Comm communicator = MPI_COMM_NULL;
  int code = MPI_SUCCESS;
};

/// Duplicates a communicator without blocking.
class DuplicateTask final : public MpiTask {
 public:
  DuplicateTask(std::shared_ptr<HostTransport> told, std::shared_ptr<HostOperation> operation, MPI_Comm base,
                std::shared_ptr<Duplicate> result)
      : told_(std::move(told)), operation_(std::move(operation)), base_(base), result_(std::move(result)) {}

  void start() override { result_->code = MPI_Comm_idup(base_, &result_->communicator, &request_); }

  bool advance() override {
    int& code = result_->code;
    int flag = 0;
    if (code == MPI_SUCCESS) code = MPI_Test(&request_, &flag, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS && flag == 0) return false;
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(result_->communicator, MPI_ERRORS_RETURN);
    told_->complete(*operation_);
    return true;
  }

 private:
  std::shared_ptr<HostTransport> told_;
  std::shared_ptr<HostOperation> operation_;
  const MPI_Comm base_;
  std::shared_ptr<Duplicate> result_;  ///< shared, since who waits may be unwound by an error
  MPI_Request request_ = MPI_REQUEST_NULL;
};

constexpr const char* kMakingTransport = "making a transport";

/// Equal for the ranks of one host and different for others, also where containers share a name or a kernel: what has a
/// network of its own is a host, as a container mostly sees devices of its own, too.
std::string host_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::error_code unknown;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", unknown);
  return host_name() + " " + boot + " " + network.string();
}

/// Whether the ranks of each host follow one another.
bool are_in_blocks(const std::vector<Blob>& hosts) {
  for (auto host = hosts.begin(); host != hosts.end(); ++host) {
    const auto first = std::find(hosts.begin(), host, *host);
    if (first != host && *std::prev(host) != *host) return false;
  }
  return true;
}

constexpr const char* kNotInBlocks =
    "the ranks of a host are not numbered one after the other, as plans take them to be; a step may be slower than it "
    "need be: start with slots in the hostfile or mpiexec -ppn (mpich), --map-by ppr:N:node (Open MPI) or srun "
    "--distribution=block";

/// While it lives MPI_Finalize runs; after kFinaliseWarning it says that this takes long, and why that may be.
class FinaliseWatch {
 public:
  explicit FinaliseWatch(const Logger& logger) : thread_([this, &logger] { watch(logger); }) {}
  FinaliseWatch(const FinaliseWatch&) = delete;
  FinaliseWatch& operator=(const FinaliseWatch&) = delete;
  ~FinaliseWatch() {
    {
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
    }
    ended_.notify_one();
    thread_.join();
  }

 private:
  void watch(const Logger& logger) {
    std::unique_lock lock(mutex_);
    if (ended_.wait_for(lock, kFinaliseWarning, [this] { return has_ended_; })) return;
    logger.warn(
        "MPI_Finalize has not returned for 10 s, though all ranks have left their World, and what they saved is saved; "
        "MPICH 4.0 over UCX and TCP is known to hang there: end the job (examples/launch/README.md)");
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::thread thread_;
};

/// What stays of a World that has failed, until its process ends: the watch, which sees to that, and the means to end
/// the job with the status of the program. Launchers make a status of their own of a process that ends without
/// MPI_Finalize, 0 among them.
class FailedJob final : public ProcessEndListener {
 public:
  FailedJob(std::shared_ptr<MpiEngine> engine, MPI_Comm base, std::unique_ptr<FailureDetector> watch, int lifeline)
      : engine_(std::move(engine)), base_(base), watch_(std::move(watch)), lifeline_(lifeline) {}

  void process_exits(int status) noexcept override {
    std::this_thread::sleep_for(kOutputGrace);
    engine_->abort(base_, status != 0 ? status : EXIT_FAILURE, lifeline_);
  }
  bool process_terminates(const std::string&) noexcept override { return false; }

 private:
  std::shared_ptr<MpiEngine> engine_;
  MPI_Comm base_;
  std::unique_ptr<FailureDetector> watch_;
  const int lifeline_;
};

class MpiBackend final : public WorldBackend, private ProcessEndListener {
 public:
  MpiBackend(std::shared_ptr<MpiEngine> engine, const Membership& self, const Log& log, const WorldOptions& options,
             StallLimits start, int lifeline)
      : WorldBackend(std::make_shared<Health>(Rank(self.rank), self.size, options.stall,
                                              log.logger(LogModule::kTransport), start),
                     log),
        engine_(std::move(engine)),
        self_(self),
        communicators_(self.first.begin(), self.first.end()),
        watch_(std::make_unique<FailureDetector>(shared_health(), lifeline)),
        lifeline_(lifeline) {
    control_transport_ = first_transport(self.first[0], self.first[1]);
    set_control(control_transport_);
    goodbye_ = std::make_unique<ControlPlane>(first_transport(self.first[2], self.first[3]));
    find_neighbours();
    health().set_announcer([this](const Failure& failure) { announce(failure); });
    if (size() > 1) listen_for_process_end();
  }

  ~MpiBackend() override {
    stop_listening();
    health().set_announcer({});
    if (!watch_) return;  // the job has failed, and what ends it needs the engine
    watch_->stop();
    engine_->stop();
  }

  std::shared_ptr<HostTransport> make_transport() override {
    const auto idle = idle_everywhere();
    return transport_over(pool_->take(idle >= 0 ? idle : make_pair()));
  }

  void stop_watching() noexcept override { watch_->stop(); }

  void announce_leaving() noexcept override {
    if (std::exchange(leaving_, true)) return;
    health().note_left(rank());
    watch_->tell_leaving();
  }

  void close() noexcept override {
    stop_listening();
    if (!health().failed()) {
      try {
        // Who ends first waits here, watched, instead of in MPI_Finalize.
        (void)goodbye_->all_gather({}, "the end of the World", Patience::kFinishing);
      } catch (const std::exception& error) {
        health().note({rank(), "the end of the World", error.what()});
      }
    }
    if (health().failed()) return end_failed_job(EXIT_FAILURE);
    health().set_announcer({});
    watch_->stop();
    std::optional<FinaliseWatch> watch;  // no rank leaves MPI_Finalize alone: one speaks for all
    if (rank() == Rank(0) && size() > 1) watch.emplace(logger_);
    engine_->stop([this] {
      for (MPI_Comm& each : communicators_) MPI_Comm_free(&each);
      MPI_Comm_free(&self_.base);
      if (self_.initialised_here) MPI_Finalize();
    });
  }

 private:
  /// Where ranks fail alike, the lowest of those that have not heard of another says so. The others give it the time
  /// (`kFirstCauseFirst`).
  void announce(const Failure& failure) {
    watch_->tell_failure(failure);
    if (health().is_said_elsewhere(kSameWords)) return;
    const std::string where = failure.action.empty() ? "" : " in '" + failure.action + "'";
    logger_.error("rank " + std::to_string(failure.rank.value()) + " failed" + where + ": " + failure.message);
  }

  /// Another rank says why the job ends.
  [[nodiscard]] bool is_silent() { return health().failure().rank != rank() || health().is_said_elsewhere(0ms); }

  void process_exits(int status) noexcept override {
    stop_listening();
    const std::string action = health().action();
    health().report({rank(), "its program",
                     "it called exit(" + std::to_string(status) + ") " +
                         (action.empty() ? "" : "after '" + action + "', ") +
                         "before its World had ended; let main return, or throw"});
    end_failed_job(status != 0 ? status : EXIT_FAILURE);
  }

  bool process_terminates(const std::string& message) noexcept override {
    stop_listening();
    health().report({rank(), "its program", message});
    if (!is_silent()) return false;
    std::this_thread::sleep_for(kLastWords);  // unless the other's end is the job's before
    return message.find(health().failure().message) != std::string::npos;
  }

  std::shared_ptr<MpiTransport> transport_over(std::shared_ptr<const CommunicatorPair> communicators) {
    return std::make_shared<MpiTransport>(engine_, shared_health(), std::move(communicators), self_.tag_limit);
  }

  std::shared_ptr<MpiTransport> first_transport(MPI_Comm messages, MPI_Comm sums) {
    return transport_over(std::make_shared<const CommunicatorPair>(CommunicatorPair{messages, sums}));
  }

  /// A pair that no rank uses any more, or -1.
  CommunicatorPool::Number idle_everywhere() {
    const auto mine = pool_->idle();
    std::vector<std::vector<CommunicatorPool::Number>> lists;
    for (const auto& blob : control().all_gather(std::as_bytes(std::span(mine)), kMakingTransport)) {
      auto& list = lists.emplace_back(blob.size() / sizeof(CommunicatorPool::Number));
      std::copy(blob.begin(), blob.end(), std::as_writable_bytes(std::span(list)).begin());
    }
    return lowest_in_all(lists);
  }

  /// Ranks agree on whether it is there, so that all throw if not, and the World lives on.
  CommunicatorPool::Number make_pair() {
    CommunicatorPair made;
    const std::byte well{duplicate(made.messages) && duplicate(made.sums)};
    const auto all = control().all_gather(std::span(&well, 1), kMakingTransport);
    if (std::count(all.begin(), all.end(), Blob{std::byte{1}}) == size()) return pool_->add(made);
    throw InvalidArgument("MPI has no communicators left: " + std::to_string(pool_->in_use()) + " transports of this " +
                          "World are alive, one for each model that was called, and hold two each (mpich has some " +
                          "2000 for a process); end models that are not used any more on all ranks, the next ones " +
                          "get theirs");
  }

  /// Collective. @return whether MPI made it
  bool duplicate(MPI_Comm& made) {
    const auto operation = std::make_shared<HostOperation>();
    const auto result = std::make_shared<Duplicate>();
    engine_->submit(std::make_unique<DuplicateTask>(control_transport_, operation, self_.base, result));
    control_transport_->await(operation, kMakingTransport);
    if (result->code != MPI_SUCCESS) {
      logger_.warn(mpi_failure("MPI_Comm_idup", result->code).message);
      return false;
    }
    made = result->communicator;
    communicators_.push_back(made);
    return true;
  }

  void find_neighbours() {
    const std::string own = host_identity();
    const auto hosts = control().all_gather(std::as_bytes(std::span(own)), "start of the World");
    const auto& here = hosts[rank().index()];
    const auto before = hosts.begin() + rank().value();
    const auto on_host = std::count(hosts.begin(), hosts.end(), here);
    set_locality({static_cast<int>(std::count(hosts.begin(), before, here)), static_cast<int>(on_host)});
    const bool single_host = on_host == size();
    if (rank() == Rank(0) && !are_in_blocks(hosts)) logger_.warn(kNotInBlocks);
    Blob address = rank() == Rank(0) ? watch_->listen(single_host) : Blob{};
    address = control().broadcast(std::move(address), Rank(0), "start of the World");
    if (rank() == Rank(0)) {
      watch_->accept_all();
    } else {
      watch_->connect(address);
    }
  }

  /// Without MPI_Finalize, which would wait for ranks that do not come. A process that an exception is leaving gets the
  /// time to report it; its exit, or else the watch, ends the job.
  void end_failed_job(int status) noexcept {
    announce_leaving();
    const auto deadline = std::chrono::steady_clock::now() + kLastWords;
    while (!health().all_others_left() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(10ms);
    watch_->abort_after(kAbortGrace);
    if (is_silent()) std::this_thread::sleep_for(kFirstCauseFirst);
    if (std::uncaught_exceptions() == 0) {
      std::this_thread::sleep_for(kOutputGrace);
      engine_->abort(self_.base, status, lifeline_);
    }
    health().set_announcer({});
    auto rest = std::make_unique<FailedJob>(engine_, self_.base, std::move(watch_), lifeline_);
    rest->listen_for_process_end();
    (void)rest.release();
  }

  std::shared_ptr<MpiEngine> engine_;
  Membership self_;
  std::vector<MPI_Comm> communicators_;  ///< all that are to be freed
  const std::shared_ptr<CommunicatorPool> pool_ = std::make_shared<CommunicatorPool>();
  std::unique_ptr<FailureDetector> watch_;
  const int lifeline_;
  std::shared_ptr<HostTransport> control_transport_;
  std::unique_ptr<ControlPlane> goodbye_;
  const Logger logger_ = log().logger(LogModule::kWorld);
  bool leaving_ = false;
};

/// Starts the communication thread, lets `begin` find the membership on it, and builds the backend. `begin` owns what
/// it uses: MPI may keep it for ever, beyond the time that start-up has.
std::unique_ptr<WorldBackend> start(const WorldOptions& options, const Launcher& launcher,
                                    std::function<void(Membership&)> begin) {
  StartUp start_up(start_timeout(process_environment()), launcher);
  const auto engine = std::make_shared<MpiEngine>();
  const auto self = std::make_shared<Membership>();
  const auto first = [self, begin = std::move(begin)] {
    try {
      begin(*self);
    } catch (...) {
      if (self->initialised_here) MPI_Finalize();
      throw;
    }
  };
  engine->run(first, [&] { start_up.look(); });
  try {
    const Log log(Rank(self->rank), self->size);
    return std::make_unique<MpiBackend>(engine, *self, log, options, start_up.limits(), launcher.lifeline);
  } catch (...) {
    engine->stop();
    throw;
  }
}

void find_place(MPI_Comm communicator, Membership& self) {
  MPI_Comm_rank(communicator, &self.rank);
  MPI_Comm_size(communicator, &self.size);
}

}  // namespace

bool mpi_is_running() {
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  return initialised != 0 && finalised == 0;
}

std::unique_ptr<WorldBackend> join_mpi(int argc, char** argv, const WorldOptions& options, const Launcher& launcher) {
  const int expected = options.expected_size;
  return start(options, launcher, [argc, argv, expected, launcher](Membership& self) {
    initialise(argc, argv, self);
    find_place(MPI_COMM_WORLD, self);
    check_size(self.size, launcher.size, launcher.variable);
    check_size(self.size, expected, "the world size asked for");
    enter(MPI_COMM_WORLD, self);
  });
}

}  // namespace autopar::detail

namespace autopar {

World world_from(MPI_Comm communicator, WorldOptions options) {
  if (!detail::mpi_is_running()) {
    throw InvalidArgument(
        "MPI is not initialised, or already finalised: a World from an MPI_Comm must begin after "
        "MPI_Init_thread and end before MPI_Finalize");
  }
  // Who is who in the launcher's eyes says nothing about the ranks of a communicator.
  detail::Launcher launcher;
  launcher.lifeline = detail::find_launcher().value_or(detail::Launcher{}).lifeline;
  const int expected = options.expected_size;
  auto backend = detail::start(options, launcher, [communicator, expected](detail::Membership& self) {
    detail::initialise(0, nullptr, self);
    detail::find_place(communicator, self);
    detail::check_size(self.size, expected, "the world size asked for");
    detail::enter(communicator, self);
  });
  backend->set_transports(std::move(options.transports));
  return World(std::move(backend));
}

}  // namespace autopar
