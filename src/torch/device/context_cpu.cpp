#include <algorithm>
#include <thread>

#include <unistd.h>

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <autopar/core/error.hpp>

#include "torch/device/device_context.hpp"

namespace autopar::devices {

namespace {

class CpuContext final : public DeviceContext {
 public:
  [[nodiscard]] int count() const override { return 1; }
  [[nodiscard]] bool has_fp8(c10::DeviceIndex) const override { return true; }

  // Rates of one core of a current server. Plans compare ranks of one kind, so only ratios matter.
  [[nodiscard]] Device describe(c10::DeviceIndex, int ranks_here) const override {
    Device host;
    host.name = "cpu";
    const auto pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    host.memory = Bytes(pages * page / std::max(1, ranks_here));
    const auto cores = std::max(1.0, static_cast<double>(std::thread::hardware_concurrency()));
    const auto share = std::max(1.0, cores / std::max(1, ranks_here));
    host.memory_bandwidth = BytesPerSecond(1e10);
    host.f64 = FlopsPerSecond(2e10 * share);
    host.f32 = host.tf32 = FlopsPerSecond(4e10 * share);
    host.f16 = host.bf16 = FlopsPerSecond(1e10 * share);
    host.efficiency = 0.7;
    host.launch = Seconds(2e-6);
    return host;
  }

  [[nodiscard]] Link link_within_host() const override { return {Seconds(2e-6), BytesPerSecond(5e9)}; }

  [[nodiscard]] void* current_stream(c10::DeviceIndex) const override { return nullptr; }

  [[nodiscard]] at::Tensor host_memory(std::int64_t elements, c10::ScalarType dtype, c10::DeviceIndex) const override {
    return at::empty({elements}, at::TensorOptions().dtype(dtype));
  }

  void multiply_unless_one(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) const override {
    if (factor.item<double>() != 1) multiply_each(tensors, factor);
  }
};

}  // namespace

const DeviceContext& context_of(c10::DeviceType type) {
  static const CpuContext cpu;
  if (type == c10::DeviceType::CPU) return cpu;
  const auto* const cuda = cuda_context();
  if (type == c10::DeviceType::CUDA && cuda != nullptr) return *cuda;
  throw InvalidArgument("this build of autopar does not run on devices of the kind '" + c10::DeviceTypeName(type) +
                        "'; use the CPU, or configure with -DAUTOPAR_CUDA=ON for CUDA devices");
}

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

void multiply_each(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) {
  for (auto tensor : tensors) {
    const bool is_small = c10::isReducedFloatingType(tensor.scalar_type());
    const auto options = is_small ? tensor.options().dtype(at::kFloat) : tensor.options();
    const auto by = factor.reshape({}).to(options);
    if (is_small)
      tensor.copy_(tensor.to(at::kFloat).mul_(by));
    else
      tensor.mul_(by);
  }
}

}  // namespace autopar::devices
