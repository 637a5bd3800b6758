#include "torch/steps/step_runner.hpp"

#include <vector>

#include <torch/nn.h>

#include <catch_shim.hpp>
#include <one_rank_model.hpp>

namespace step_runner_test {

using namespace autopar;

/// A layer in double precision; with a target its squared error, else what it makes.
struct Fixture : test::OneRankModel {
  explicit Fixture(bool with_loss, torch::nn::Linear net = torch::nn::Linear(3, 2))
      : OneRankModel(double_precision(net).ptr(),
                     [net, with_loss](const std::vector<at::Tensor>& tensors) mutable {
                       auto out = net(tensors.at(0));
                       return std::vector<at::Tensor>{with_loss ? torch::mse_loss(out, tensors.at(1)) : out};
                     }),
        layer(net) {}

  static torch::nn::Linear& double_precision(torch::nn::Linear& net) {
    net->to(torch::kDouble);
    return net;
  }

  torch::nn::Linear layer;
  const at::Tensor x = torch::rand({6, 3}, torch::kDouble), y = torch::rand({6, 2}, torch::kDouble);
};

TEST_CASE("StepRunner: a loss and its gradients are those of libtorch") {
  Fixture fixture(true);
  const auto program = fixture.deployed({fixture.x, fixture.y});
  const auto call = fixture.call(program, {fixture.x, fixture.y});
  REQUIRE(call->loss_mode);
  fixture.runner.forward(*call);
  const auto loss = fixture.runner.results(*call).at(0);
  const auto gradients = fixture.runner.gradients(*call, {program->plan.outputs[0].value});
  const auto expected = torch::mse_loss(fixture.layer(fixture.x), fixture.y);
  const auto of_libtorch = torch::autograd::grad({expected}, fixture.layer->parameters());
  CHECK(torch::allclose(loss, expected, 1e-12, 1e-12));
  REQUIRE(gradients.reached->handles.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(gradients.reached->handles[i].is_same(fixture.layer->parameters()[i]));
    CHECK(torch::allclose(gradients.by_position[gradients.reached->positions[i]], of_libtorch[i], 1e-12, 1e-12));
  }
}

TEST_CASE("StepRunner: results' gradients are carried back") {
  Fixture fixture(false);
  const auto program = fixture.deployed({fixture.x});
  const auto call = fixture.call(program, {fixture.x});
  REQUIRE_FALSE(call->loss_mode);
  fixture.runner.forward(*call);
  CHECK(torch::allclose(fixture.runner.results(*call).at(0), fixture.layer(fixture.x), 1e-12, 1e-12));
  const auto gradients = fixture.runner.backward(*call, {0}, {fixture.y}, {program->plan.outputs[0].value});
  const auto of_libtorch = torch::autograd::grad({fixture.layer(fixture.x)}, fixture.layer->parameters(), {fixture.y});
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(torch::allclose(gradients.by_position[gradients.reached->positions[i]], of_libtorch[i], 1e-12, 1e-12));
}

TEST_CASE("StepRunner: a failing step tells the other ranks, unless it may fail") {
  for (const bool may_fail : {false, true}) {
    Fixture fixture(false);
    const auto program = fixture.deployed({fixture.x});
    const auto call = fixture.call(program, {fixture.x});
    call->state.may_fail = may_fail;
    call->state.inputs = {torch::rand({6, 4}, torch::kDouble)};  // a batch that the layer cannot take
    CHECK_THROWS(fixture.runner.forward(*call));
    CHECK(fixture.ranks->failures.size() == (may_fail ? 0 : 1));
  }
}

}  // namespace step_runner_test
