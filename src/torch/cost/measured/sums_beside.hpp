#pragma once

#include <cstdint>
#include <functional>

#include <c10/core/Device.h>

#include <autopar/cost/contention.hpp>
#include <autopar/cost/transfer_curve.hpp>
#include <autopar/runtime/any_transport.hpp>

#include "torch/cost/measured/step_stopwatch.hpp"

namespace autopar::cost::detail {

/// All-reduces of some ranks that run beside their computation, to measure how much both delay each other. All of these
/// ranks make the same calls.
class SumsBeside {
 public:
  /// @param curve  seconds of the group's all-reduces, the same on all ranks
  /// @pre the device computes while it exchanges
  SumsBeside(AnyTransport wire, GroupId group, TransferCurve curve, c10::Device device);

  /// With a stopwatch's own work.
  [[nodiscard]] Contention contention(StepStopwatch& stopwatch);

 private:
  /// Chooses sums that take about so many seconds together. @return what they take alone
  double choose(double seconds);
  /// What `compute` returns, with the chosen sums beside it or after all ranks have met.
  double timed(StepStopwatch& stopwatch, const std::function<double()>& compute, bool beside);

  AnyTransport wire_;
  GroupId group_;
  TransferCurve curve_;
  c10::Device device_;
  std::int64_t bytes_ = 0;  ///< of each of the chosen sums
  int count_ = 0;
};

}  // namespace autopar::cost::detail
