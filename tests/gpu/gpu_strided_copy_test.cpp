#include "torch/fused/strided_copy.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "torch/device/device_context.hpp"

namespace gpu_strided_copy_test {

TEST_CASE("strided copy: copies every element and no other", "[gpu]") {
  REQUIRE(autopar::devices::context_of(at::kCUDA).has_kernels(autopar::kernels::kStridedCopyKernels, 0));
  for (const auto type : {at::kFloat, at::kBFloat16, at::kLong}) {
    const auto options = at::TensorOptions(type).device(at::kCUDA);
    for (const int64_t width : {8, 64, 7}) {
      const auto whole = torch::zeros({2, 130, 3, 5, width}, options);
      const auto parts = whole.permute({2, 0, 3, 1, 4});
      const auto from = torch::arange(2 * 5 * 130 * width, at::kCUDA).remainder(101).to(type).view({2, 5, 130, width});
      for (const auto& source : {from, from.transpose(1, 2).contiguous().transpose(1, 2)}) {
        whole.zero_();
        autopar::fused::copy_strided(parts[1], source);
        CHECK(torch::equal(parts[1], source));
        CHECK(parts[0].eq(0).all().item<bool>());
        CHECK(parts[2].eq(0).all().item<bool>());
      }
    }
  }
}

}  // namespace gpu_strided_copy_test
