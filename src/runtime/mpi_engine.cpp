#include "mpi_engine.hpp"

#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <utility>

namespace autopar::detail {
namespace {

using namespace std::chrono_literals;

/// Between tests of what nobody waits for. Each takes some 10 µs, from a core that may be computing.
constexpr auto kNap = 500us;
/// Between looks at a start that takes long.
constexpr auto kLookAtStart = 50ms;

void hang_up(int, void* lifeline) {
  ::shutdown(static_cast<int>(reinterpret_cast<std::intptr_t>(lifeline)), SHUT_RDWR);
}

class Call final : public MpiTask {
 public:
  explicit Call(std::function<void()> call) : call_(std::move(call)) {}
  [[nodiscard]] std::future<void> result() { return promise_.get_future(); }
  void start() override {
    try {
      call_();
      promise_.set_value();
    } catch (...) {
      promise_.set_exception(std::current_exception());
    }
  }
  bool advance() override { return true; }

 private:
  std::function<void()> call_;
  std::promise<void> promise_;
};

}  // namespace

MpiFailure mpi_failure(const char* function, int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {std::string(function) + ": " + std::string(text, static_cast<std::size_t>(std::max(length, 0))), code};
}

void MpiEngine::run(std::function<void()> first, const std::function<void()>& look) {
  const auto began = std::make_shared<std::promise<void>>();
  auto result = began->get_future();
  running_ = true;
  thread_ = std::thread([self = shared_from_this(), began, first = std::move(first)] {
    // Naps of microseconds would last 50 µs longer under the default slack.
    prctl(PR_SET_TIMERSLACK, 1000UL);
    try {
      first();
    } catch (...) {
      began->set_exception(std::current_exception());
      return;
    }
    began->set_value();
    self->loop();
  });
  try {
    while (result.wait_for(kLookAtStart) != std::future_status::ready) look();
  } catch (...) {
    thread_.detach();
    stop();
    throw;
  }
  try {
    result.get();
  } catch (...) {
    stop();
    throw;
  }
}

void MpiEngine::submit(std::unique_ptr<MpiTask> task) {
  {
    const std::lock_guard lock(mutex_);
    if (!running_ || stopping_) {
      throw TransportError("the World of this transport has ended; end models before it", Rank::none(), Rank::none(),
                           "communication after the end of the World");
    }
    submitted_.push_back(std::move(task));
  }
  const std::unique_lock turn(turn_, std::try_to_lock);
  if (turn.owns_lock()) start_submitted();
  const std::lock_guard lock(mutex_);
  if (!asleep_ && submitted_.empty()) return;  // it tests soon by itself
  asleep_ = false;
  wake_.notify_one();
}

void MpiEngine::help() {
  const std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn.owns_lock()) return;
  start_submitted();
  advance_all();
}

void MpiEngine::perform(std::function<void()> call) {
  auto task = std::make_unique<Call>(std::move(call));
  auto result = task->result();
  submit(std::move(task));
  result.get();
}

void MpiEngine::stop(std::function<void()> last) noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    last_ = std::move(last);
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void MpiEngine::abort(MPI_Comm communicator, int status, int lifeline) noexcept {
  try {
    perform([communicator, status, lifeline] {
      int finalised = 0;
      MPI_Finalized(&finalised);
      if (finalised != 0) return;
      // mpich tells hydra the status and calls exit; hydra ends the job at the end of the connection, which others
      // hold.
      // NOLINTNEXTLINE(performance-no-int-to-ptr): what on_exit hands on is a pointer
      if (lifeline >= 0) ::on_exit(hang_up, reinterpret_cast<void*>(static_cast<std::intptr_t>(lifeline)));
      MPI_Abort(communicator, status);
    });
  } catch (const std::exception&) {
    // The thread has ended already; whoever armed the watch gets the process aborted.
  }
}

void MpiEngine::start_submitted() {
  std::vector<std::unique_ptr<MpiTask>> fresh;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    fresh.swap(submitted_);
  }
  for (auto& task : fresh) {
    task->start();
    if (!task->advance()) active_.push_back(std::move(task));
  }
}

void MpiEngine::advance_all() {
  std::erase_if(active_, [](const std::unique_ptr<MpiTask>& task) { return task->advance(); });
}

bool MpiEngine::nap() {
  {
    const std::lock_guard lock(mutex_);
    asleep_ = true;  // before it is looked whether anything is under way: what begins afterwards sees it
  }
  bool under_way = false;
  {
    const std::lock_guard turn(turn_);
    under_way = !active_.empty();
  }
  std::unique_lock lock(mutex_);
  if (under_way) {
    asleep_ = false;
    wake_.wait_for(lock, kNap, [&] { return stopping_ || !submitted_.empty(); });
  } else {
    wake_.wait(lock, [&] { return stopping_ || !asleep_ || !submitted_.empty(); });
    asleep_ = false;
  }
  return !stopping_;
}

void MpiEngine::loop() {
  while (nap()) {
    const std::lock_guard turn(turn_);
    start_submitted();
    advance_all();
  }
  const std::lock_guard turn(turn_);
  std::function<void()> last;
  {
    const std::lock_guard lock(mutex_);
    last.swap(last_);
  }
  active_.clear();
  if (last) last();
}

}  // namespace autopar::detail
