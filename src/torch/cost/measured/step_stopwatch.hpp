#pragma once

#include <algorithm>
#include <array>
#include <functional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace autopar::cost::detail {

/// Times work as it runs within a step: where a device works asynchronously, the host is ahead of it, and the device
/// has been busy, so that its clock is what its power allows in the long run (an H100 takes 14 % longer then for
/// products of a large model than for one of them alone).
///
///   StepStopwatch stopwatch(device);
///   const auto [on_device, on_host] = stopwatch.time([&] { at::mm_out(c, a, b); });
class StepStopwatch {
 public:
  struct Seconds {
    double device = 0;  ///< from when the device begins with the work until it is done
    double host = 0;    ///< until everything is queued. On a CPU the same

    /// What it adds to a step: a device waits for a host that is not ahead, as it is where steps are replayed.
    [[nodiscard]] double in_step(bool host_is_ahead) const { return host_is_ahead ? device : std::max(device, host); }
  };

  explicit StepStopwatch(c10::Device device) : device_(device) {}

  /// Waits for the device before and after. Where queueing takes longer than the device was kept busy, which the next
  /// call mends (up to 30 ms), gaps are counted: the first time of a work is not to be used.
  [[nodiscard]] Seconds time(const std::function<void()>& work);

  [[nodiscard]] c10::Device device() const { return device_; }

 private:
  void keep_busy(double seconds);
  void take_turn();
  void measure_turn();

  c10::Device device_;
  std::array<at::Tensor, 2> factors_;
  at::Tensor product_, numbers_;
  double of_turn_ = 0;      ///< seconds
  double of_queueing_ = 0;  ///< what the latest work took of the host
};

}  // namespace autopar::cost::detail
