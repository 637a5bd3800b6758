#include <cmath>
#include <cstddef>
#include <numbers>
#include <string>

#include <catch_shim.hpp>

#include "cuda_on_cpu/cuda_on_cpu.hpp"
#include "cuda_on_cpu/sources.hpp"
#include "kernels/gelu_source.hpp"
#include "unit/kernels/numbers.hpp"

namespace kernels_gelu_test {

using namespace cuda_on_cpu;
using kernels_test::Numbers;
using Shape = autopar::kernels::GeluShape;

double gelu(double x) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }
double tanh_gelu(double x) {
  const double slope = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  return 0.5 * x * (1 + std::tanh(slope * (x + 0.044715 * x * x * x)));
}

template <class T>
Numbers made_by_kernel(CudaOnCpu& gpu, const std::string& kernel, std::size_t packs, std::size_t of_block,
                       const Numbers& x) {
  const auto* taken = gpu.reads<T>("x", x);
  auto* const made = gpu.room<T>("y", x.size());
  gpu.launch(kernel + kName<T>, {kernels_test::blocks_for(packs, of_block), 1, Shape::kThreads, 1}, taken, made,
             static_cast<long long>(packs), static_cast<int>(of_block));
  return gpu.numbers(made);
}

template <class T>
void check(std::size_t packs, std::size_t of_block, const std::string& kernel, double (*formula)(double)) {
  auto x = kernels_test::drawn(packs * 16 / sizeof(T), 3);
  for (auto& number : x) number *= 2;
  x[0] = -30;  // beyond what either function still changes at
  x[1] = 30;
  Numbers exact;
  for (const double number : x) exact.push_back(formula(number));
  INFO(kernel << kName<T> << " of " << packs << " packs, " << of_block << " a block");
  const auto made = in_every_order(cuda_on_cpu::gelu,
                                   [&](CudaOnCpu& gpu) { return made_by_kernel<T>(gpu, kernel, packs, of_block, x); });
  CHECK(kernels_test::worst_error(made, exact) <= kEpsilon<T> + 1e-6);
}

TEST_CASE("gelu: full blocks and the last one") {
  struct Case {
    std::size_t packs, of_block;
  };
  constexpr std::size_t kWhole = Shape::kThreads * Shape::kFlight;
  for (const auto& [packs, of_block] : {Case{1, Shape::kThreads}, Case{300, Shape::kThreads},
                                        Case{700, 3 * Shape::kThreads}, Case{kWhole, kWhole}, Case{1500, kWhole}}) {
    kernels_test::for_each_type([&, packs = packs, of_block = of_block]<class T>() {
      check<T>(packs, of_block, "gelu_", gelu);
      check<T>(packs, of_block, "tanh_gelu_", tanh_gelu);
    });
  }
  CHECK(cuda_on_cpu::gelu.never_launched().empty());
}

/// The functions that kernels call are the host's here, which round otherwise than CUDA's now and then: what is held
/// are the formula, and the order in which it rounds.
TEST_CASE("gelu: libtorch's fp32 formula at all 16-bit values, bitwise") {
  Numbers all;
  for (unsigned bits = 0; bits < 1u << 16; ++bits) all.push_back(number_of(Bf16{static_cast<std::uint16_t>(bits)}));
  const auto libtorch = [](float x) { return x * 0.5f * (1.0f + std::erf(x * static_cast<float>(M_SQRT1_2))); };
  const auto libtorch_of_tanh = [](float x) {
    constexpr auto kBeta = static_cast<float>(M_SQRT2 * M_2_SQRTPI * 0.5);
    return 0.5f * x * (1.0f + std::tanh(kBeta * (x + 0.044715f * (x * x * x))));
  };
  const auto differing = [&](const std::string& kernel, const auto& formula) {
    CudaOnCpu gpu(cuda_on_cpu::gelu, {});
    const auto made = made_by_kernel<Bf16>(gpu, kernel, all.size() / 8, Shape::kThreads, all);
    std::size_t count = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double wanted = number_of(rounded<Bf16>(formula(static_cast<float>(all[i]))));
      count += made[i] != wanted && !(std::isnan(made[i]) && std::isnan(wanted)) ? 1 : 0;
    }
    return count;
  };
  CHECK(differing("gelu_", libtorch) == 0);
  CHECK(differing("tanh_gelu_", libtorch_of_tanh) == 0);
}

}  // namespace kernels_gelu_test
