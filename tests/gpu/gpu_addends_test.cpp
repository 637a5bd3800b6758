#include "torch/fused/addends.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "kernels/addends_source.hpp"
#include "torch/device/device_context.hpp"

namespace gpu_addends_test {

using autopar::fused::Destination;

TEST_CASE("addends: the bits of a CPU", "[gpu]") {
  REQUIRE(autopar::devices::context_of(at::kCUDA).has_kernels(autopar::kernels::kAddendsKernels, 0));
  torch::manual_seed(3);
  for (const int64_t members : {1, 2, 4}) {
    for (const int64_t elements : {8, 4096, 1'000'008, 77}) {  // the last without kernels
      const auto addends =
          (torch::randn({members, elements}) * torch::randn({members, elements}).exp()).to(at::kBFloat16);
      const auto before = torch::randn({elements});
      for (const auto destination : {Destination::kAdds, Destination::kIsWritten}) {
        const auto on_cpu = before.clone(), on_gpu = before.cuda();
        autopar::fused::add_up(addends, on_cpu, destination);
        autopar::fused::add_up(addends.cuda(), on_gpu, destination);
        CHECK(torch::equal(on_gpu.cpu(), on_cpu));
      }
      const auto on_cpu = torch::empty({elements}, at::kBFloat16), on_gpu = on_cpu.cuda();
      autopar::fused::add_up(addends, on_cpu, Destination::kIsWritten);
      autopar::fused::add_up(addends.cuda(), on_gpu, Destination::kIsWritten);
      CHECK(torch::equal(on_gpu.cpu(), on_cpu));
    }
  }
}

}  // namespace gpu_addends_test
