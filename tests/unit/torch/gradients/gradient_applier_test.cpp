#include "torch/gradients/gradient_applier.hpp"

#include <limits>
#include <vector>

#include <torch/nn.h>

#include <alone_transport.hpp>
#include <catch_shim.hpp>
#include <one_rank.hpp>

namespace gradient_applier_test {

using namespace autopar;

/// A layer with gradients that a test states.
struct Fixture {
  Fixture() {
    for (auto& tensor : parameters.tensors()) tensor.holders = {Rank(0)};
    deployment.adopt({});
    deployment.start();
    reached.handles = net->parameters();
    reached.positions = {0, 1};
  }

  steps::StageGradients gradients(double value) const {
    steps::StageGradients made{nullptr, &reached, &reached, {}, {}};
    for (const auto& handle : reached.handles) made.by_position.push_back(torch::full_like(handle, value));
    return made;
  }
  /// As a backward() of everything.
  void hand_over(double value, double factor, bool accumulate) {
    const auto made = gradients(value);
    applier.hand_over(made, {}, torch::full({}, factor, torch::kDouble), accumulate, outcome, out);
  }
  [[nodiscard]] double grad(const at::Tensor& parameter) const { return parameter.grad().flatten()[0].item<double>(); }

  test::OneRank ranks;
  torch::nn::Linear net{3, 2};
  parameters::ParameterStore parameters{*net, Rank(0)};
  deployment::Deployment deployment{ranks, [](const TransportOptions&) { return test::alone_transport(); }};
  calls::StepWatches watches{parameters, false};
  gradients::GradientApplier applier{ranks, parameters, deployment, watches};
  programs::ReachedParameters reached;
  gradients::StepOutcome outcome;
  std::vector<at::Tensor> out;
};

TEST_CASE("GradientApplier: gradients are multiplied and added up in .grad") {
  Fixture fixture;
  fixture.hand_over(2, 3, false);
  CHECK(fixture.grad(fixture.net->weight) == 6);
  fixture.hand_over(1, 1, false);
  CHECK(fixture.grad(fixture.net->weight) == 7);
  CHECK(fixture.grad(fixture.net->bias) == 7);
}

TEST_CASE("GradientApplier: inside no_sync .grad waits for the sum") {
  Fixture fixture;
  fixture.applier.set_accumulating(true);
  fixture.hand_over(2, 1, true);
  fixture.hand_over(3, 1, true);
  CHECK_FALSE(fixture.net->weight.grad().defined());
  CHECK(fixture.applier.has_accumulated());
  fixture.applier.sync(/*pending=*/true);
  CHECK(fixture.grad(fixture.net->weight) == 5);
  CHECK_FALSE(fixture.applier.has_accumulated());
}

TEST_CASE("GradientApplier: dropped gradients do not come back") {
  Fixture fixture;
  fixture.hand_over(2, 1, true);
  fixture.applier.drop();
  fixture.applier.sync(false);
  CHECK_FALSE(fixture.net->weight.grad().defined());
}

TEST_CASE("GradientApplier: named parameters are returned, others left") {
  Fixture fixture;
  results::GradientRequest request;
  request.plain = false;
  request.parameters = {true, false};
  request.returned = {true, false};
  fixture.out.resize(3);  // one argument before them
  fixture.applier.hand_over(fixture.gradients(2), request, torch::full({}, 4.0), false, fixture.outcome, fixture.out);
  CHECK(fixture.out[1].flatten()[0].item<double>() == 8);
  CHECK_FALSE(fixture.out[2].defined());
  CHECK_FALSE(fixture.net->weight.grad().defined());
}

TEST_CASE("GradientApplier: an overflow skips the step and halves the scale") {
  Fixture fixture;
  fixture.applier.start_scaling();
  const auto scale = fixture.applier.loss_scale();
  steps::Call call;
  call.loss_scale = scale;
  std::vector<at::Tensor> of_arguments;
  auto made = fixture.gradients(scale);
  fixture.outcome = fixture.applier.unscale(call, made, of_arguments);
  CHECK_FALSE(fixture.outcome.overflow);
  fixture.applier.hand_over(made, {}, torch::ones({}, torch::kDouble), false, fixture.outcome, fixture.out);
  CHECK(fixture.grad(fixture.net->weight) == 1);
  made = fixture.gradients(std::numeric_limits<double>::infinity());
  fixture.outcome = fixture.applier.unscale(call, made, of_arguments);
  CHECK(fixture.outcome.overflow);
  fixture.applier.hand_over(made, {}, torch::ones({}, torch::kDouble), false, fixture.outcome, fixture.out);
  CHECK_FALSE(fixture.net->weight.grad().defined());
  CHECK(fixture.applier.loss_scale() == scale / 2);
  CHECK(fixture.applier.scaler_state()->skipped == 1);
}

}  // namespace gradient_applier_test
