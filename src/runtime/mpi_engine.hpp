#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <mpi.h>

#include "health.hpp"

namespace autopar::detail {

/// An error that an MPI function returned.
struct MpiFailure {
  std::string message;
  int code = 0;
};

/// Text for a code other than MPI_SUCCESS.
[[nodiscard]] MpiFailure mpi_failure(const char* function, int code);

/// Work of the communication thread that takes several steps. Its members run on that thread only; they do not block.
class MpiTask {
 public:
  MpiTask() = default;
  MpiTask(const MpiTask&) = delete;
  MpiTask& operator=(const MpiTask&) = delete;
  virtual ~MpiTask() = default;

  /// Called once, in the order in which tasks were submitted.
  virtual void start() = 0;
  /// Tests for progress; true when the task has ended and told so.
  [[nodiscard]] virtual bool advance() = 0;
};

/// The one thread of this process that calls MPI. It tests what is under way and sleeps a little in between: little
/// while somebody waits for it, more while nobody does, entirely while nothing is under way.
class MpiEngine {
 public:
  MpiEngine() = default;
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;
  ~MpiEngine() { stop(); }

  /// Starts the thread; runs `first` on it before anything else and returns when that has returned or thrown.
  void run(std::function<void()> first);
  /// Hands a task over. @throws TransportError when the engine has stopped.
  void submit(std::unique_ptr<MpiTask> task);
  /// Runs `call` on the thread, which must not block, and returns when it has run.
  void perform(std::function<void()> call);
  /// Ends the thread: drops the tasks under way, runs `last` on it.
  void stop(std::function<void()> last = {}) noexcept;
  /// Runs MPI_Abort on the thread, which ends the job; tasks are left alone.
  void abort(MPI_Comm communicator) noexcept;

  /// A thread begins or ends to wait for a task.
  void waiting(bool begins) noexcept;

 private:
  void loop();
  /// Takes over new tasks; sleeps while there is nothing to do. False when the thread shall end.
  bool take_new();
  /// Until it is time to test again, something is submitted, or somebody begins to wait for what was tested at leisure.
  void nap();

  std::vector<std::unique_ptr<MpiTask>> active_;  ///< the thread's own
  int idle_rounds_ = 0;                           ///< likewise: tests in a row that changed nothing

  std::mutex mutex_;
  std::condition_variable wake_;
  int waiters_ = 0;
  std::vector<std::unique_ptr<MpiTask>> submitted_;
  bool running_ = false;
  bool stopping_ = false;
  std::function<void()> last_;
  std::thread thread_;
};

}  // namespace autopar::detail
