#include "torch/gradients/result_history.hpp"

#include <vector>

#include <torch/nn.h>

#include <autopar/core/error.hpp>
#include <catch_shim.hpp>
#include <one_rank_model.hpp>

namespace result_history_test {

using namespace autopar;

struct Fixture : test::OneRankModel {
  explicit Fixture(bool with_loss, torch::nn::Linear net = torch::nn::Linear(3, 2))
      : OneRankModel(net.ptr(),
                     [net, with_loss](const std::vector<at::Tensor>& tensors) mutable {
                       auto out = net(tensors.at(0));
                       return std::vector<at::Tensor>{with_loss ? out.square().mean() : out};
                     }),
        layer(net) {}

  /// Runs a call. @return its result, with a history
  at::Tensor run() {
    if (program == nullptr) program = deployed({x});
    const auto made = call(program, {x});
    graphed.run(made, true);
    auto results = runner.results(*made);
    history.attach(owner, made, results);
    return results.at(0);
  }

  torch::nn::Linear layer;
  const at::Tensor x = torch::rand({6, 3});
  std::shared_ptr<int> owner = std::make_shared<int>();
  std::shared_ptr<programs::CapturedProgram> program;
  gradients::ResultHistory history{{ranks, options, parameters, deployment, validator, runner, graphed, applier}};
};

TEST_CASE("ResultHistory: backward of a result fills .grad as libtorch does") {
  for (const bool with_loss : {true, false}) {
    Fixture fixture(with_loss);
    const auto result = fixture.run();
    const auto loss = with_loss ? result : result.square().mean();
    loss.backward();
    const auto expected = fixture.layer(fixture.x).square().mean();
    const auto of_libtorch = torch::autograd::grad({expected}, fixture.layer->parameters());
    CHECK(torch::allclose(fixture.layer->weight.grad(), of_libtorch[0], 1e-5, 1e-7));
    CHECK(torch::allclose(fixture.layer->bias.grad(), of_libtorch[1], 1e-5, 1e-7));
  }
}

TEST_CASE("ResultHistory: its owner lives as long as results do") {
  Fixture fixture(true);
  {
    const auto loss = fixture.run();
    CHECK(fixture.owner.use_count() > 1);
  }
  CHECK(fixture.owner.use_count() == 1);
}

TEST_CASE("ResultHistory: a second backward of a kept graph adds again") {
  Fixture fixture(true);
  const auto loss = fixture.run();
  loss.backward({}, /*retain_graph=*/true);
  const auto once = fixture.layer->weight.grad().clone();
  loss.backward();
  CHECK(torch::allclose(fixture.layer->weight.grad(), 2 * once));
}

TEST_CASE("ResultHistory: outputs cannot keep the graph") {
  Fixture fixture(false);
  const auto loss = fixture.run().sum();
  CHECK_THROWS_AS(loss.backward({}, /*retain_graph=*/true), InvalidArgument);
}

}  // namespace result_history_test
