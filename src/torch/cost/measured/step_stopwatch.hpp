#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace autopar::cost::detail {

/// Times work as it runs within a step. On an asynchronous device the host is ahead of the device, which has been busy:
/// products and passes over memory for a few milliseconds, or `run_around`.
///
///   StepStopwatch stopwatch(device);
///   const auto [on_device, on_host] = stopwatch.time([&] { at::mm_out(c, a, b); });
class StepStopwatch {
 public:
  struct Seconds {
    double device = 0;  ///< from the device's start of the work to its end
    double host = 0;    ///< until everything is queued; on a CPU, the same

    /// What the work adds to a step. A device waits for the host unless the host is ahead, as with replayed steps.
    [[nodiscard]] double in_step(bool host_is_ahead) const { return host_is_ahead ? device : std::max(device, host); }
  };

  explicit StepStopwatch(c10::Device device) : device_(device) {}

  /// Times `work`; waits for the device before and after, or only for the work with `run_around`. If queueing takes
  /// longer than the device was kept busy, gaps are counted; the next call adapts (up to 30 ms). So do not use the
  /// first time of any work.
  [[nodiscard]] Seconds time(const std::function<void()>& work);

  /// What ranks do together beside timed work, on other streams of their devices.
  struct Together {
    std::function<void()> meet = [] {};   ///< queued just before the work, so that all ranks start it at the same time
    std::function<void()> begin = [] {};  ///< queues what runs beside the work
    std::function<void()> end = [] {};    ///< lets the device's stream wait for it
  };
  /// From now on, `time` does this, until it is given something else. Collective then.
  void run_beside(Together together) { together_ = std::move(together); }

  /// Runs this again and again for a while, and from now on before and after timed work without a gap: a device's clock
  /// is then what the power of such work allows permanently. Large products on an H200 take a sixth longer by that.
  /// Nothing on CPUs.
  void run_around(std::function<void()> own);

  /// Queues work of about so many seconds: products and passes over memory in turn. Nothing on CPUs.
  void keep_busy(double seconds);

  [[nodiscard]] c10::Device device() const { return device_; }

 private:
  void take_turn();
  void measure_turn();
  void make_busy();
  void run_own(double seconds);

  c10::Device device_;
  std::array<at::Tensor, 2> factors_;
  at::Tensor product_, numbers_;
  Together together_;
  std::function<void()> own_;
  double of_own_ = 0;       ///< seconds
  double of_turn_ = 0;      ///< seconds
  double of_queueing_ = 0;  ///< host time to queue the latest work
};

}  // namespace autopar::cost::detail
