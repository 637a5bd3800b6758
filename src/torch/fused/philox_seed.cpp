#include "torch/fused/philox_seed.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/full.h>

#include "torch/device/device_context.hpp"

namespace autopar::fused {

at::Tensor to_tensor(const PhiloxSeed& seed) {
  return seed.place.defined() ? seed.place : at::full({1}, static_cast<std::int64_t>(seed.number), at::kLong);
}

PhiloxSeed to_seed(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return {0, tensor};
  return {static_cast<std::uint64_t>(*tensor.const_data_ptr<std::int64_t>())};
}

at::Generator make_generator(c10::Device device, const PhiloxSeed& seed) {
  if (seed.place.defined()) return devices::context_of(device.type()).recorded_generator(seed.place);
  if (device.is_cpu()) return at::detail::createCPUGenerator(seed.number);
  auto generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed.number);
  return generator;
}

}  // namespace autopar::fused
