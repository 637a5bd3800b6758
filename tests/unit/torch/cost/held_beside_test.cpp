#include "torch/cost/held_beside.hpp"

#include <torch/torch.h>

#include <catch_shim.hpp>

#include "profiled.hpp"

namespace autopar::test {
namespace held_beside_test {

constexpr double kWorkSpaces = 64 << 20;  // cuBLAS's of one stream, for forwards and backwards

}  // namespace held_beside_test

TEST_CASE("held_beside: cuBLAS workspaces and copies for CUDA graphs", "[cost]") {
  using namespace held_beside_test;
  torch::nn::Linear linear(6, 4);
  torch::nn::BatchNorm1d norm(6);
  const auto of = [](auto net) {
    return profile(*net, {torch::randn({5, 6})}, [&](const auto& in) { return net->forward(in[0]).sum(); })
        .profile.model;
  };
  const auto multiplies = of(linear), without = of(norm);
  const Affine copies{6 * sizeof(float), 0};
  CHECK(cost::held_beside(multiplies, c10::DeviceType::CUDA, false) == Affine{0, kWorkSpaces});
  CHECK(cost::held_beside(multiplies, c10::DeviceType::CUDA, true) == copies + Affine{0, 2 * kWorkSpaces});
  CHECK(cost::held_beside(without, c10::DeviceType::CUDA, false) == Affine{});
  CHECK(cost::held_beside(without, c10::DeviceType::CUDA, true) == copies);
  CHECK(cost::held_beside(multiplies, c10::DeviceType::CPU, false) == Affine{});
}

}  // namespace autopar::test
