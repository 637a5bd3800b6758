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

/// Work on MPI that takes several steps. Its members run on one thread at a time, not always the same; they do not
/// block.
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

/// Tasks of this process on MPI, one thread at a time: who submits a task starts it, who waits for one tests all that
/// are under way. A thread of its own does so while all compute, now and then, and sleeps while nothing is under way.
/// Where ranks compute on all cores that thread may wait a few milliseconds for its turn, so nothing urgent is left to
/// it. It lives until `stop`.
class MpiEngine : public std::enable_shared_from_this<MpiEngine> {
 public:
  MpiEngine() = default;
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;
  ~MpiEngine() = default;

  /// Starts the thread; runs `first` on it before anything else and returns when that has returned or thrown. Meanwhile
  /// calls `look` again and again; if that throws, the thread is left to itself, and ends when `first` does: it must
  /// own what it uses.
  void run(std::function<void()> first, const std::function<void()>& look);
  /// Hands a task over. @throws TransportError when the engine has stopped.
  void submit(std::unique_ptr<MpiTask> task);
  /// Tests everything once, unless another thread is at it.
  void help();
  /// Runs `call`, which must not block, and returns when it has run.
  void perform(std::function<void()> call);
  /// Ends the thread: drops the tasks under way, runs `last` on it.
  void stop(std::function<void()> last = {}) noexcept;
  /// Runs MPI_Abort, which ends the job with that status, while MPI is there; tasks are left alone. `lifeline` is this
  /// process's connection to its launcher, or -1.
  void abort(MPI_Comm communicator, int status, int lifeline) noexcept;

 private:
  void loop();
  /// Starts what was submitted. @pre turn_ is held
  void start_submitted();
  /// Tests everything under way. @pre turn_ is held
  void advance_all();
  /// Until it is time to test again, or until something is submitted if nothing is under way. @return false to end
  [[nodiscard]] bool nap();

  std::mutex turn_;  ///< to run members of tasks; taken before mutex_
  std::vector<std::unique_ptr<MpiTask>> active_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::unique_ptr<MpiTask>> submitted_;
  bool asleep_ = false;  ///< the thread, until something is submitted
  bool running_ = false;
  bool stopping_ = false;
  std::function<void()> last_;
  std::thread thread_;
};

}  // namespace autopar::detail
