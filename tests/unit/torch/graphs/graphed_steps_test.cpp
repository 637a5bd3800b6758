#include "torch/graphs/graphed_steps.hpp"

#include <vector>

#include <torch/nn.h>

#include <catch_shim.hpp>
#include <one_rank_model.hpp>

namespace graphed_steps_test {

using namespace autopar;

struct Fixture : test::OneRankModel {
  explicit Fixture(torch::nn::Linear net = torch::nn::Linear(3, 2))
      : OneRankModel(net.ptr(), [net](const std::vector<at::Tensor>& tensors) mutable {
          return std::vector<at::Tensor>{net(tensors.at(0)).square().mean()};
        }) {}
  const at::Tensor x = torch::rand({6, 3});
};

// tests/gpu has the steps that are replayed.
TEST_CASE("GraphedSteps: without a CUDA device every step runs eagerly") {
  Fixture fixture;
  const auto program = fixture.deployed({fixture.x});
  CHECK_FALSE(fixture.graphed.may_record(*program));
  std::vector<double> losses;
  for (int step = 0; step < 6; ++step) {
    const auto call = fixture.call(program, {fixture.x});
    fixture.graphed.run(call, fixture.graphed.obstacles(program.get(), false, 1));
    CHECK(call->phase == steps::CudaGraphPhase::kEager);
    losses.push_back(fixture.runner.results(*call).at(0).item<double>());
    fixture.graphed.require_same_parameters(*call);  // nothing was replayed
  }
  CHECK(losses == std::vector<double>(6, losses.front()));
  CHECK(fixture.graphed.replayed() == 0);
}

}  // namespace graphed_steps_test
