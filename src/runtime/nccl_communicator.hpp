#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <memory>
#include <string>

#include "health.hpp"

namespace autopar::detail {

/// Destructors give the last messages this long to leave.
inline constexpr std::chrono::seconds kFlushLimit{5};

/// Throws TransportError with CUDA's text unless `code` is cudaSuccess.
void check_cuda(const char* function, cudaError_t code, Rank self);

/// Makes a device current for a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    cudaGetDevice(&before_);
    if (before_ != device) cudaSetDevice(device);
    device_ = device;
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (before_ != device_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  int device_ = 0;
};

/// A CUDA event without time stamps.
class Event {
 public:
  explicit Event(Rank self) { check_cuda("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&event_, kFlags), self); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }

  [[nodiscard]] cudaEvent_t get() const { return event_; }
  [[nodiscard]] bool passed() const { return cudaEventQuery(event_) != cudaErrorNotReady; }

 private:
  static constexpr unsigned kFlags = cudaEventDisableTiming;
  cudaEvent_t event_ = nullptr;
};

/// One NCCL communicator, non-blocking, with the stream on which all its operations run. The device is current in
/// every call.
class NcclCommunicator {
 public:
  /// As NCCL chooses it.
  static constexpr int kAnyBlocks = NCCL_CONFIG_UNDEF_INT;

  /// Collective over its members; returns when all have joined.
  /// @param name    for errors, e.g. "0 -> 2"
  /// @param blocks  at most so many thread blocks an operation
  NcclCommunicator(std::string name, const ncclUniqueId& id, int members, int position, int blocks,
                   std::shared_ptr<Health> health);
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator();

  [[nodiscard]] ncclComm_t get() const { return communicator_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int members() const { return members_; }
  [[nodiscard]] int position() const { return position_; }  ///< among them

  /// Polls until what was called last is under way. @throws TransportError on errors, failures and stalls.
  void settle(const char* function, ncclResult_t code);
  /// An error that came up in the background; empty if none.
  [[nodiscard]] std::string background_error() const;
  /// Ends kernels that wait for others. Nothing can be called afterwards.
  void abort() noexcept;

 private:
  [[nodiscard]] bool finish_quietly() noexcept;

  const std::string name_;
  const int members_;
  const int position_;
  const std::shared_ptr<Health> health_;
  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace autopar::detail
