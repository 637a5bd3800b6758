#include "torch/placement/deployer.hpp"

#include <vector>

#include <torch/nn.h>

#include <autopar/core/error.hpp>
#include <catch_shim.hpp>
#include <one_rank_model.hpp>

namespace deployer_test {

using namespace autopar;

/// Two layers, of which evaluation uses the first alone.
struct TwoLayersImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return is_training() ? second(first(x)) : first(x); }

  torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 4));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(4, 2));
};

struct Fixture : test::OneRankModel {
  explicit Fixture(std::shared_ptr<TwoLayersImpl> model = std::make_shared<TwoLayersImpl>())
      : OneRankModel(model,
                     [model](const std::vector<at::Tensor>& tensors) {
                       return std::vector<at::Tensor>{model->forward(tensors.at(0))};
                     }),
        net(std::move(model)) {}

  std::shared_ptr<TwoLayersImpl> net;
  const at::Tensor x = torch::rand({6, 3});
};

TEST_CASE("Deployer: every tensor gets a stage and holders") {
  Fixture fixture;
  CHECK_FALSE(fixture.deployer.deployed());
  const auto program = fixture.deployed({fixture.x});
  CHECK(fixture.deployer.deployed());
  for (const auto& tensor : fixture.parameters.tensors()) {
    CHECK((tensor.stages == std::vector{StageId(0)}));
    CHECK((tensor.holders == std::vector{Rank(0)}));
  }
  CHECK(program->partition.staged.stage_ops.size() == 1);
  CHECK(program->runtime.stages->parameters().size() == 4);
}

TEST_CASE("Deployer: values and draws stay those of the module") {
  Fixture fixture;
  torch::manual_seed(11);
  const auto before = fixture.net->first->weight.clone();
  static_cast<void>(fixture.deployed({fixture.x}));
  CHECK(torch::equal(fixture.net->first->weight, before));
  CHECK(fixture.progress.seed == 11);
}

TEST_CASE("Deployer: programs of other modes follow their parameters") {
  Fixture fixture;
  static_cast<void>(fixture.deployed({fixture.x}));
  fixture.net->eval();
  const auto evaluation = fixture.captured({fixture.x});
  fixture.deployer.prepare(*evaluation);
  CHECK(evaluation->runtime.stages->parameters().size() == 2);
  const auto call = fixture.call(evaluation, {fixture.x});
  fixture.runner.forward(*call);
  CHECK(torch::allclose(fixture.runner.results(*call).at(0), fixture.net->first(fixture.x)));
}

TEST_CASE("AttachedOptimizers: a plan that shards needs an optimizer") {
  Fixture fixture;
  Plan plan;
  CHECK_NOTHROW(fixture.optimizers.require_for(plan, false));
  plan.offload = Offload::kOptimizer;
  CHECK_THROWS_AS(fixture.optimizers.require_for(plan, false), InvalidArgument);
  torch::optim::Adam adam(fixture.net->parameters(), 0.1);
  fixture.optimizers.add(adam);
  CHECK_NOTHROW(fixture.optimizers.require_for(plan, false));
  CHECK(fixture.optimizers.state_factor(1) == 2.0);
  CHECK_FALSE(fixture.optimizers.are_multi_tensor());
}

}  // namespace deployer_test
