#pragma once

namespace autopar::devices {

/// Captured work of a device (a CUDA graph): kernels in order, with the memory that they read and write. Their results
/// are valid until the next run. While the object lives, no other code gets that memory.
class DeviceRecording {
 public:
  DeviceRecording() = default;
  DeviceRecording(const DeviceRecording&) = delete;
  DeviceRecording& operator=(const DeviceRecording&) = delete;
  virtual ~DeviceRecording() = default;

  /// Queues all of it on this thread's stream of the device. O(1) driver calls.
  /// @throws Error if the driver refuses it
  virtual void run() const = 0;
};

}  // namespace autopar::devices
