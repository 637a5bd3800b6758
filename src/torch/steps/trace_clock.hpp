#pragma once

#include <chrono>
#include <memory>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

namespace autopar::steps {

/// A point in time: of the host, and of the work that was queued on a device before.
struct TraceMark {
  std::chrono::steady_clock::time_point host{};
  std::shared_ptr<const c10::Event> device{};  ///< null: the host's time is meant
};

/// Takes times on a host and on the device that it queues work on, and tells both by the host's clock.
class TraceClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit TraceClock(c10::Device device) : device_(device) {}

  /// Whether the device works through a queue, so that the host's times are not those of the work.
  [[nodiscard]] bool has_queue() const { return !device_.is_cpu(); }
  /// Now, and on a device with a queue where the thread's stream stands. Not while the stream is captured.
  [[nodiscard]] TraceMark now() const;
  /// Compares the device's clock with the host's: at first, and where that was some seconds ago, as they drift. Waits
  /// for the device then; does nothing on CPUs. Not while the stream is captured.
  void align();
  /// Waits until the device has reached the mark. @pre aligned
  [[nodiscard]] Time time_of(const TraceMark& mark) const;

 private:
  c10::Device device_;
  TraceMark base_;  ///< both of its parts are of one moment
};

}  // namespace autopar::steps
