#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <autopar/runtime/log.hpp>

namespace autopar::calls {

/// Says which steps had a loss that is no finite number. Losses of GPUs are looked at when they have arrived, in a
/// later call: nothing waits for them.
class LossWatch {
 public:
  explicit LossWatch(Logger log) : log_(std::move(log)) {}

  /// @param step  the call that made the loss, counted from 1
  void add(const at::Tensor& loss, std::int64_t step);
  /// How many have been seen so far.
  [[nodiscard]] std::int64_t not_finite() const { return not_finite_; }

 private:
  struct Coming {
    at::Tensor host;
    c10::Event arrived;
    std::int64_t step;
  };
  void judge(const at::Tensor& host, std::int64_t step);

  Logger log_;
  std::deque<Coming> coming_;
  std::int64_t not_finite_ = 0;
};

}  // namespace autopar::calls
