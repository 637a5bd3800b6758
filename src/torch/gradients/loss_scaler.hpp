#pragma once

#include <algorithm>
#include <cstdint>

namespace autopar::gradients {

/// The loss scale that keeps fp16 gradients in range. The loss is multiplied by it before the backward, and the
/// gradients are divided by it afterwards. If one is not finite, the step is skipped and the scale is reduced.
/// Constants and rule are those of torch.amp.GradScaler. A value: equal updates give equal scales, so ranks agree
/// without communication.
/// @source Micikevicius et al., Mixed Precision Training, section 3.2
class LossScaler {
 public:
  static constexpr double kFirst = 65536, kGrowth = 2, kBackoff = 0.5;
  static constexpr std::int64_t kGrowthInterval = 2000;
  /// Gradients are divided in single precision, in which the scale and its reciprocal must be normal numbers.
  static constexpr double kLargest = 0x1p120, kSmallest = 0x1p-120;

  struct State {
    double scale = kFirst;
    std::int64_t good_steps = 0;  ///< steps since the scale last changed
    std::int64_t skipped = 0;     ///< steps skipped so far
    friend bool operator==(const State&, const State&) = default;
  };

  LossScaler() = default;
  explicit LossScaler(const State& state) : state_(state) {}

  [[nodiscard]] double scale() const { return state_.scale; }
  [[nodiscard]] const State& state() const { return state_; }

  /// Called after each step.
  /// @param overflow  whether a gradient of some rank was infinite or NaN
  void update(bool overflow) {
    if (overflow) {
      state_.scale = std::max(state_.scale * kBackoff, kSmallest);
      state_.good_steps = 0;
      ++state_.skipped;
    } else if (++state_.good_steps == kGrowthInterval) {
      state_.scale = std::min(state_.scale * kGrowth, kLargest);
      state_.good_steps = 0;
    }
  }

 private:
  State state_;
};

}  // namespace autopar::gradients
