#include <cstdint>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "kernels/gelu_source.hpp"
#include "torch/device/device_context.hpp"
#include "torch/fused/gelu.hpp"

// GELU in a kernel of the library's own has libtorch's bits.
namespace gpu_gelu_test {

using torch::Tensor;

Tensor bits_of(const Tensor& numbers) {
  const auto size = numbers.element_size();
  return numbers.contiguous().view(size == 2 ? at::kShort : size == 4 ? at::kInt : at::kLong);
}

void check(const Tensor& x) {
  for (const std::string approximate : {"none", "tanh"}) {
    INFO(x.sizes() << " of strides " << x.strides() << ", " << c10::toString(x.scalar_type()) << ", " << approximate);
    const auto ours = autopar::fused::gelu_of(x, approximate), theirs = at::gelu(x, approximate);
    REQUIRE(ours.scalar_type() == x.scalar_type());
    CHECK(ours.strides() == theirs.strides());
    CHECK(bits_of(ours).equal(bits_of(theirs)));
  }
}

TEST_CASE("GELU: bitwise libtorch on all 16-bit and many fp32 values", "[gpu]") {
  const at::NoGradGuard no_grad;
  REQUIRE(autopar::devices::context_of(at::kCUDA).has_kernels(autopar::kernels::kGeluKernels, 0));
  const auto every = at::arange(1 << 16, at::TensorOptions(at::kCUDA).dtype(at::kLong));
  for (const auto type : {at::kBFloat16, at::kHalf}) check(every.to(at::kShort).view(type));
  const auto of_bits = [](const Tensor& bits) { return bits.to(at::kInt).view(at::kFloat); };
  constexpr std::int64_t kMinus = 1ll << 31;
  check(of_bits(every * 65536));                      // all exponents
  check(of_bits(every * 257 + 0x3b000000));           // 0.002 to 0.008
  check(of_bits(every * 577 + 0x3f000000));           // 0.5 to 12
  check(of_bits(every * 577 + 0x3f000000 + kMinus));  // -0.5 to -12, where 1 + erf cancels
}

TEST_CASE("GELU: bitwise libtorch at any size, with or without a kernel", "[gpu]") {
  torch::manual_seed(13);
  const at::NoGradGuard no_grad;
  const std::vector<std::vector<std::int64_t>> sizes{{8192, 8192}, {4, 128, 3072}, {8},     {1000, 1000},
                                                     {517, 8},     {3, 50304},     {1, 24}, {2112, 128, 9}};
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto drawn = [&](at::IntArrayRef of) { return (torch::randn(of, at::kCUDA) * 2).to(type); };
    for (const auto& size : sizes) check(drawn(size));
    check(drawn({33, 129}));                  // no whole packs
    check(drawn({64, 32}).t());               // gaps between rows
    check(drawn({64, 64}).narrow(1, 8, 16));  // likewise
    check(drawn({1025}).narrow(0, 1, 1024));  // not where packs begin
    check(drawn({0, 16}));
  }
  check(torch::randn({64, 64}, at::kCUDA).to(at::kDouble));
}

}  // namespace gpu_gelu_test
