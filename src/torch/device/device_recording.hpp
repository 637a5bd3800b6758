#pragma once

namespace autopar::devices {

/// Work of a device, recorded once: kernels in their order, with the memory that they read and write. What they left
/// there is valid until it is run again; while the recording lives, nobody else gets that memory.
class DeviceRecording {
 public:
  DeviceRecording() = default;
  DeviceRecording(const DeviceRecording&) = delete;
  DeviceRecording& operator=(const DeviceRecording&) = delete;
  virtual ~DeviceRecording() = default;

  /// Queues all of it on this thread's stream of the device. O(1) calls of the driver.
  /// @throws Error if the driver refuses it
  virtual void run() const = 0;
};

}  // namespace autopar::devices
