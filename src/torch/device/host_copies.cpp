#include "torch/device/host_copies.hpp"

#include "torch/device/device_context.hpp"

namespace autopar::devices {

at::Tensor host_memory(std::int64_t elements, c10::ScalarType dtype, c10::Device device) {
  const auto type = elements == 0 ? c10::DeviceType::CPU : device.type();
  return context_of(type).host_memory(elements, dtype, device.index());
}

void DeviceEvent::set(c10::Device device) {
  if (device.is_cpu()) return;
  if (!event_) event_.emplace(device.type());
  event_->record(current_stream(device));
}

void DeviceEvent::wait() {
  if (event_) event_->synchronize();
}

}  // namespace autopar::devices
