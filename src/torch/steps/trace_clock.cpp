#include "torch/steps/trace_clock.hpp"

#include "torch/device/device_context.hpp"

namespace autopar::steps {

TraceMark TraceClock::now() const {
  TraceMark mark;
  if (has_queue()) {
    auto event = std::make_shared<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    event->record(devices::current_stream(device_));
    mark.device = std::move(event);
  }
  mark.host = std::chrono::steady_clock::now();
  return mark;
}

void TraceClock::align() {
  constexpr std::chrono::seconds kHoldsFor(10);
  if (!has_queue()) return;
  if (base_.device != nullptr && std::chrono::steady_clock::now() - base_.host < kHoldsFor) return;
  devices::current_stream(device_).synchronize();
  base_ = now();
  base_.device->synchronize();
  base_.host = std::chrono::steady_clock::now();
}

TraceClock::Time TraceClock::time_of(const TraceMark& mark) const {
  if (mark.device == nullptr || base_.device == nullptr) return mark.host;
  mark.device->synchronize();
  const std::chrono::duration<double, std::milli> since_base(base_.device->elapsedTime(*mark.device));
  return base_.host + std::chrono::duration_cast<std::chrono::steady_clock::duration>(since_base);
}

}  // namespace autopar::steps
