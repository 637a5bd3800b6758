#include <autopar/runtime/config.hpp>

#if AUTOPAR_HAS_CUDA

#include "nccl_communicator.hpp"

#include <chrono>
#include <thread>
#include <utility>

namespace autopar::detail {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kPoll = 20us;

}  // namespace

void check_cuda(const char* function, cudaError_t code, Rank self) {
  if (code == cudaSuccess) return;
  throw TransportError(std::string(function) + ": " + cudaGetErrorString(code), self, Rank::none(), function,
                       static_cast<int>(code));
}

NcclCommunicator::NcclCommunicator(std::string name, const ncclUniqueId& id, int members, int position, int blocks,
                                   std::shared_ptr<Health> health)
    : name_(std::move(name)), members_(members), position_(position), health_(std::move(health)) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = blocks;
  int lowest = 0;
  int highest = 0;
  check_cuda("cudaDeviceGetStreamPriorityRange", cudaDeviceGetStreamPriorityRange(&lowest, &highest), health_->self());
  check_cuda("cudaStreamCreateWithPriority", cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest),
             health_->self());
  try {
    settle("ncclCommInitRankConfig", ncclCommInitRankConfig(&communicator_, members, id, position, &config));
  } catch (...) {
    abort();
    cudaStreamDestroy(stream_);
    throw;
  }
}

NcclCommunicator::~NcclCommunicator() {
  if (communicator_ != nullptr && !finish_quietly()) abort();
  cudaStreamDestroy(stream_);
}

bool NcclCommunicator::finish_quietly() noexcept {
  if (health_->failed()) return false;
  const auto deadline = Clock::now() + kFlushLimit;
  ncclResult_t state = ncclCommFinalize(communicator_);
  while (state == ncclInProgress && Clock::now() < deadline && !health_->failed()) {
    std::this_thread::sleep_for(kPoll);
    if (ncclCommGetAsyncError(communicator_, &state) != ncclSuccess) return false;
  }
  if (state != ncclSuccess || ncclCommDestroy(communicator_) != ncclSuccess) return false;
  communicator_ = nullptr;
  return true;
}

void NcclCommunicator::settle(const char* function, ncclResult_t code) {
  const std::string action = std::string(function) + " on communicator " + name_;
  const StallLimits limits = health_->limits();
  const auto begin = Clock::now();
  bool warned = false;
  while (code == ncclInProgress) {
    health_->check(action);
    const Seconds waited{std::chrono::duration<double>(Clock::now() - begin).count()};
    if (!warned && waited >= limits.warning) {
      health_->logger().warn("still waits for the other members in '" + action + "'");
      warned = true;
    }
    if (waited >= limits.timeout) {
      const std::string message = "gave up waiting for the other members in '" + action + "' (stall_timeout)";
      health_->report({health_->self(), action, message, static_cast<int>(ncclInProgress)});
      throw TransportError(message, health_->self(), Rank::none(), action, static_cast<int>(ncclInProgress));
    }
    // Connecting takes milliseconds; an operation on a connected communicator is under way at once.
    if (waited > Seconds(1e-4)) std::this_thread::sleep_for(kPoll);
    if (const ncclResult_t polled = ncclCommGetAsyncError(communicator_, &code); polled != ncclSuccess) code = polled;
  }
  if (code == ncclSuccess) return;
  const std::string message = action + ": " + ncclGetErrorString(code) + " (" + ncclGetLastError(communicator_) + ")";
  health_->report({health_->self(), action, message, static_cast<int>(code)});
  throw TransportError(message, health_->self(), Rank::none(), action, static_cast<int>(code));
}

std::string NcclCommunicator::background_error() const {
  if (communicator_ == nullptr) return {};
  ncclResult_t state = ncclSuccess;
  if (const ncclResult_t polled = ncclCommGetAsyncError(communicator_, &state); polled != ncclSuccess) state = polled;
  if (state == ncclSuccess || state == ncclInProgress) return {};
  return std::string(ncclGetErrorString(state)) + " (" + ncclGetLastError(communicator_) + ")";
}

void NcclCommunicator::abort() noexcept {
  if (communicator_ != nullptr) ncclCommAbort(communicator_);
  communicator_ = nullptr;
}

}  // namespace autopar::detail

#endif
