#include "torch/device/tf32_scope.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "torch/device/device_context.hpp"
#include "torch/device/host_copies.hpp"

namespace device_scopes_test {

using namespace autopar;

constexpr auto kCuda = at::Float32Backend::CUDA;

at::Float32Precision of_products() { return at::globalContext().float32Precision(kCuda, at::Float32Op::MATMUL); }

TEST_CASE("Tf32Scope: settings of CUDA products are set, then restored") {
  const auto before = of_products();
  {
    const devices::Tf32Scope scope(true, c10::Device(c10::kCUDA, 0));
    CHECK(of_products() == at::Float32Precision::TF32);
  }
  CHECK(of_products() == before);
}

TEST_CASE("Tf32Scope: nothing changes where it is not wanted") {
  const auto before = of_products();
  const devices::Tf32Scope not_wanted(false, c10::Device(c10::kCUDA, 0)), on_cpu(true, c10::kCPU);
  CHECK(of_products() == before);
}

TEST_CASE("host_memory: has exactly the elements asked for") {
  const auto memory = devices::host_memory(1000, at::kDouble, c10::kCPU);
  CHECK(memory.numel() == 1000);
  CHECK(memory.scalar_type() == at::kDouble);
  CHECK(memory.storage().nbytes() == 8000);
  devices::DeviceEvent event;
  event.wait();  // nothing was queued
  event.set(c10::kCPU);
  event.wait();
}

TEST_CASE("DeviceContext: the CPU records no work, so steps run eagerly") {
  auto& context = devices::context_of(c10::kCPU);
  CHECK_FALSE(context.compiles_kernels(0));
  CHECK(&context == &devices::context_of(c10::kCPU));
}

}  // namespace device_scopes_test
