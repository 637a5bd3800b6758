#include <autopar/training/training.hpp>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <torch/nn/modules/linear.h>
#include <torch/optim/schedulers/step_lr.h>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/runtime/loopback.hpp>

#include "catch_shim.hpp"
#include "temp_folder.hpp"

namespace run_test {

namespace ap = autopar;
namespace training = ap::training;

struct NetImpl : torch::nn::Module {
  NetImpl() { register_module("layer", layer); }
  torch::Tensor forward(const torch::Tensor& x) { return layer(x).pow(2).mean(); }
  torch::nn::Linear layer{3, 2};
};
TORCH_MODULE(Net);

/// What a training of one process ends with.
struct Ended {
  std::vector<double> losses;
  int status = 0;
  std::int64_t step = 0;
};

struct Told {
  std::int64_t steps = 12;
  std::int64_t signal_at = -1, stop_at = -1;
};

/// A loop as users write it: accumulation, clipping, a schedule of libtorch, a place in the data.
Ended train(const std::filesystem::path& folder, const Told& told) {
  Ended ended;
  ap::loopback::run(1, [&](ap::World& world) {
    torch::manual_seed(1);
    ap::AutoParallel<Net> model(world, [] { return Net(); }, {.gradient_accumulation = true});
    ap::optim::AdamW optimizer(
        training::decayed_and_not(model->parameters(), ap::optim::AdamWOptions(0.1).weight_decay(0.1)));
    model->attach(optimizer);
    training::Epochs order(world, 10);
    model->keep("order", order);
    const auto data = torch::arange(30).reshape({10, 3}).to(torch::kFloat) / 10;
    training::Run run(world, {.folder = folder, .steps = told.steps, .save_every = 5, .log_every = 100}, model,
                      optimizer);
    training::set_learning_rate(optimizer, 0.1);  // as at the start: what the checkpoint has is of its step
    torch::optim::StepLR scheduler(optimizer, 3, 0.5);
    for (std::int64_t step = 0; step < run.step(); ++step) scheduler.step();
    while (run.next()) {
      optimizer.zero_grad();
      const auto loss = training::accumulate(model, 2, [&](std::int64_t) {
        const auto picked = order.next(2);
        return model(data.index_select(0, torch::tensor(std::vector<std::int64_t>(picked.begin(), picked.end()))));
      });
      model->clip_grad_norm_(1.0);
      optimizer.step();
      scheduler.step();
      ended.losses.push_back(loss.item<double>());
      if (run.is_due()) run.log({{"loss", ended.losses.back()}});
      if (run.step() == told.signal_at) std::raise(SIGTERM);
      if (run.step() == told.stop_at) run.stop();
    }
    ended.status = run.exit_status();
    ended.step = run.step();
  });
  return ended;
}

TEST_CASE("Run: interrupted and started again, it ends bit-equal") {
  const TempFolder temp;
  const auto whole = train({}, {});
  CHECK(whole.status == 0);
  CHECK(whole.step == 12);
  REQUIRE(whole.losses.size() == 12);
  const auto first = train(temp / "run", {.signal_at = 6});
  CHECK(first.status == 128 + SIGTERM);
  CHECK(first.step == 7);
  const auto second = train(temp / "run", {.signal_at = 7});  // at once after a start
  CHECK(second.step == 8);
  const auto third = train(temp / "run", {});
  CHECK(third.status == 0);
  auto losses = first.losses;
  losses.insert(losses.end(), second.losses.begin(), second.losses.end());
  losses.insert(losses.end(), third.losses.begin(), third.losses.end());
  CHECK(losses == whole.losses);
  CHECK(std::filesystem::exists(temp / "run/step-00000012/place.json"));
  CHECK(std::filesystem::exists(temp / "run/step-00000008"));
  CHECK_FALSE(std::filesystem::exists(temp / "run/step-00000005"));  // three stay: 7, 8, 10 without 12
  const auto after = train(temp / "run", {});
  CHECK(after.losses.empty());
  CHECK(after.step == 12);
}

TEST_CASE("Run: what is lost is the steps since the last checkpoint") {
  const TempFolder temp;
  train(temp / "run", {.steps = 9});
  std::filesystem::remove_all(temp / "run/step-00000009");
  const auto again = train(temp / "run", {.steps = 9});
  CHECK(again.losses.size() == 4);
}

TEST_CASE("Run: stop ends after the step, with a checkpoint and status 0") {
  const TempFolder temp;
  const auto ended = train(temp / "run", {.stop_at = 2});
  CHECK(ended.status == 0);
  CHECK(ended.step == 3);
  CHECK(std::filesystem::exists(temp / "run/step-00000003/place.json"));
}

TEST_CASE("Run: counts that are not positive are refused") {
  CHECK_THROWS_WITH(train({}, {.steps = 0}), Catch::Matchers::Contains("steps = 0"));
}

TEST_CASE("accumulate: gradients and loss of the whole batch") {
  ap::loopback::run(2, [](ap::World& world) {
    torch::manual_seed(1);
    ap::AutoParallel<Net> model(world, [] { return Net(); }, {.gradient_accumulation = true});
    torch::manual_seed(2 + world.rank());
    const auto x = torch::randn({6, 3});
    const auto whole = model(x);
    whole.backward();
    std::vector<torch::Tensor> expected;
    for (const auto& parameter : model->owned_parameters()) expected.push_back(parameter.grad().clone());
    model->zero_grad();
    const auto loss =
        training::accumulate(model, 3, [&](std::int64_t part) { return model(x.slice(0, 2 * part, 2 * part + 2)); });
    CHECK(loss.item<double>() == Approx(whole.item<double>()));
    CHECK_FALSE(loss.requires_grad());
    const auto owned = model->owned_parameters();
    for (std::size_t i = 0; i < owned.size(); ++i) CHECK(torch::allclose(owned[i].grad(), expected[i]));
    CHECK_THROWS_WITH(training::accumulate(model, 0, [&](std::int64_t) { return model(x); }),
                      Catch::Matchers::Contains("parts = 0"));
  });
}

}  // namespace run_test
