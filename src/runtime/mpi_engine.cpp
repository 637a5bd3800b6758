#include "mpi_engine.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

namespace autopar::detail {
namespace {

using namespace std::chrono_literals;

constexpr int kEagerRounds = 50;          ///< tests in a row, yielding in between, before the first sleep
constexpr auto kShortestNap = 5us;
constexpr auto kLongestNapWaited = 20us;  ///< while a thread waits for something
constexpr auto kLongestNap = 200us;       ///< while all compute

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

void MpiEngine::run(std::function<void()> first) {
  std::promise<void> began;
  auto result = began.get_future();
  running_ = true;
  thread_ = std::thread([this, &began, first = std::move(first)] {
    // Naps of microseconds would last 50 µs longer under the default slack.
    prctl(PR_SET_TIMERSLACK, 1000UL);
    try {
      first();
    } catch (...) {
      began.set_exception(std::current_exception());
      return;
    }
    began.set_value();
    loop();
  });
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
  wake_.notify_one();
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

void MpiEngine::abort(MPI_Comm communicator) noexcept {
  try {
    perform([communicator] { MPI_Abort(communicator, 1); });
  } catch (const std::exception&) {
    // The thread has ended already; whoever armed the watch gets the process aborted.
  }
}

bool MpiEngine::take_new() {
  std::vector<std::unique_ptr<MpiTask>> fresh;
  {
    std::unique_lock lock(mutex_);
    if (active_.empty()) wake_.wait(lock, [&] { return stopping_ || !submitted_.empty(); });
    if (stopping_) return false;
    fresh.swap(submitted_);
  }
  if (!fresh.empty()) idle_rounds_ = 0;  // what begins soon ends, or needs a few steps
  for (auto& task : fresh) {
    task->start();
    active_.push_back(std::move(task));
  }
  return true;
}

void MpiEngine::waiting(bool begins) noexcept {
  {
    const std::lock_guard lock(mutex_);
    waiters_ += begins ? 1 : -1;
  }
  if (begins) wake_.notify_one();
}

void MpiEngine::nap() {
  if (idle_rounds_ < kEagerRounds) {
    std::this_thread::yield();
    return;
  }
  const int doublings = std::min((idle_rounds_ - kEagerRounds) / 4, 8);
  const auto wanted = std::min<std::chrono::microseconds>(kShortestNap * (1 << doublings), kLongestNap);
  std::unique_lock lock(mutex_);
  const auto length = [&] {
    return waiters_ > 0 ? std::min<std::chrono::microseconds>(wanted, kLongestNapWaited) : wanted;
  };
  const auto planned = length();
  wake_.wait_for(lock, planned, [&] { return stopping_ || !submitted_.empty() || length() < planned; });
}

void MpiEngine::loop() {
  while (take_new()) {
    const std::size_t before = active_.size();
    std::erase_if(active_, [](const std::unique_ptr<MpiTask>& task) { return task->advance(); });
    if (active_.size() < before) {
      idle_rounds_ = 0;
    } else {
      nap();
      ++idle_rounds_;
    }
  }
  std::function<void()> last;
  {
    const std::lock_guard lock(mutex_);
    last.swap(last_);
  }
  active_.clear();
  if (last) last();
}

}  // namespace autopar::detail
