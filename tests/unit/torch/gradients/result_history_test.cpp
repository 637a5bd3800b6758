#include "torch/gradients/result_history.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>
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

/// That `.grad` has the gradients of this loss.
void check_as_of_libtorch(const Fixture& fixture, const at::Tensor& loss) {
  const auto of_libtorch = torch::autograd::grad({loss}, fixture.layer->parameters());
  CHECK(torch::allclose(fixture.layer->weight.grad(), of_libtorch[0], 1e-5, 1e-7));
  CHECK(torch::allclose(fixture.layer->bias.grad(), of_libtorch[1], 1e-5, 1e-7));
}

TEST_CASE("ResultHistory: backward of a result fills .grad as libtorch does") {
  for (const bool with_loss : {true, false}) {
    Fixture fixture(with_loss);
    const auto result = fixture.run();
    const auto loss = with_loss ? result : result.square().mean();
    loss.backward();
    const auto expected = fixture.layer(fixture.x).square().mean();
    check_as_of_libtorch(fixture, expected);
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

/// How many parameters autograd's engine adds up gradients of.
int accumulated_by(const std::function<void()>& backward) {
  static std::atomic<int> count;
  count = 0;
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        if (std::string_view(function.name()) == "torch::autograd::AccumulateGrad") ++count;
        return nullptr;
      }).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  backward();
  at::removeCallback(handle);
  return count;
}

// Each would cost the host microseconds, to add nothing.
TEST_CASE("ResultHistory: a plain backward leaves autograd nothing to add up") {
  Fixture fixture(true);
  auto loss = fixture.run();
  CHECK(accumulated_by([&] { loss.backward(); }) == 0);
  const auto expected = fixture.layer(fixture.x).square().mean();
  check_as_of_libtorch(fixture, expected);
}

TEST_CASE("ResultHistory: what the program adds to a loss reaches parameters as in libtorch") {
  Fixture fixture(true);
  const auto& weight = fixture.layer->weight;
  const auto penalty = [&] { return 0.5 * weight.square().sum(); };
  SECTION("a penalty of one of them") {
    auto loss = fixture.run() + penalty();
    CHECK(accumulated_by([&] { loss.backward(); }) == 1);
    const auto expected = fixture.layer(fixture.x).square().mean() + penalty();
    check_as_of_libtorch(fixture, expected);
  }
  SECTION("another call's loss") {
    const auto first = fixture.run(), second = fixture.run();
    (first + second).backward();
    const auto expected = 2 * fixture.layer(fixture.x).square().mean();
    check_as_of_libtorch(fixture, expected);
  }
  SECTION("a penalty that goes backward by itself, later") {
    auto of_weight = penalty();
    fixture.run().backward();
    const auto without = weight.grad().clone();
    of_weight.backward();
    CHECK(torch::allclose(weight.grad(), without + weight.detach()));
  }
}

TEST_CASE("ResultHistory: a hook that was set after the capture is refused, and not run on nothing") {
  for (const bool with_loss : {true, false}) {
    Fixture fixture(with_loss);
    const auto result = fixture.run();
    const auto loss = with_loss ? result : result.square().mean();
    int runs = 0;
    const auto hook = fixture.layer->weight.register_hook([&](const at::Tensor&) { ++runs; });
    CHECK_THROWS_WITH(loss.backward({}, /*retain_graph=*/with_loss),
                      Catch::Matchers::Contains("a hook was set on parameter 'weight'"));
    CHECK(runs == 0);
    CHECK_FALSE(fixture.layer->weight.grad().defined());
    if (!with_loss) continue;
    fixture.layer->weight.remove_hook(hook);
    loss.backward();
    CHECK(fixture.layer->weight.grad().defined());
  }
}

}  // namespace result_history_test
