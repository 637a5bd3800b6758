#include <autopar/training/training.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <nlohmann/json.hpp>

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/runtime/loopback.hpp>

#include "catch_shim.hpp"
#include "nets.hpp"
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

TEST_CASE("Run: the best weights of a model, with their step") {
  const TempFolder temp;
  ap::loopback::run(1, [&](ap::World& world) {
    torch::manual_seed(1);
    ap::AutoParallel<Net> model(world, [] { return Net(); });
    ap::optim::SGD optimizer(model->parameters(), ap::optim::SGDOptions(0.1));
    model->attach(optimizer);
    training::Run run(world, {.folder = temp / "run", .steps = 3}, model, optimizer);
    torch::Tensor best;
    while (run.next()) {
      model(torch::ones({2, 3})).backward();
      optimizer.step();
      const std::array<double, 3> losses{2, 1, 3};
      const bool is_best =
          run.save_best("loss", losses.at(static_cast<std::size_t>(run.step())), training::Better::kLower);
      CHECK(is_best == (run.step() < 2));
      if (is_best) best = model->gather(model->parameters()[0]);
    }
    CHECK(ap::read_text_file(temp / "run/best/best.json") == "{\"metric\":\"loss\",\"step\":2,\"value\":1.0}\n");
    model->load((temp / "run/best").string());
    CHECK(torch::equal(model->gather(model->parameters()[0]), best));
  });
}

TEST_CASE("Run: stopped before its first step it ends at once") {
  const TempFolder temp;
  train(temp / "run", {.stop_at = 2});
  ap::loopback::run(1, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, [] { return Net(); });
    training::Epochs order(world, 10);
    model->keep("order", order);
    training::Run run(world, {.folder = temp / "run"}, model);
    run.stop();
    CHECK_FALSE(run.next());
    CHECK(run.step() == 3);
    CHECK(run.exit_status() == 0);
  });
}

TEST_CASE("parameter groups: what has one dimension does not decay, and the rate is of all") {
  const std::vector<torch::Tensor> parameters{torch::zeros({2, 3}), torch::zeros({2}), torch::zeros({1, 2, 3})};
  torch::optim::AdamW optimizer(
      training::decayed_and_not(parameters, torch::optim::AdamWOptions(1).betas({0.8, 0.9}).weight_decay(0.5)));
  REQUIRE(optimizer.param_groups().size() == 2);
  const auto options = [&](std::size_t group) {
    return static_cast<const torch::optim::AdamWOptions&>(optimizer.param_groups()[group].options());
  };
  CHECK(optimizer.param_groups()[0].params().size() == 2);
  CHECK(options(0).weight_decay() == 0.5);
  CHECK(options(1).weight_decay() == 0);
  CHECK(options(1).betas() == std::tuple(0.8, 0.9));
  training::set_learning_rate(optimizer, 0.25);
  CHECK(options(0).lr() == 0.25);
  CHECK(options(1).lr() == 0.25);
}

/// Two layers in fp64, without dropout, which draws for each call.
struct WideImpl : torch::nn::Module {
  WideImpl() { to(torch::kDouble); }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(in(x))).pow(2).mean(); }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(3, 8));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(8, 1));
};
TORCH_MODULE(Wide);

/// How a loop takes its samples.
enum class Taken { kShares, kPerRank };

/// Goes on in the folder on so many ranks. @return the losses of rank 0
std::vector<double> go_on(const std::filesystem::path& folder, int ranks, std::int64_t steps, Taken taken,
                          bool allow_batch_change = false) {
  std::vector<double> losses;
  ap::loopback::run(ranks, [&](ap::World& world) {
    auto model = nets::seeded(
        1, [&] { return ap::AutoParallel<Wide>(world, [] { return Wide(); }, {.gradient_accumulation = true}); });
    ap::optim::AdamW optimizer(model->parameters(), ap::optim::AdamWOptions(0.01));
    model->attach(optimizer);
    training::Epochs order(world, 50);
    model->keep("order", order);
    training::Run run(world,
                      {.folder = folder, .steps = steps, .save_every = 3, .allow_batch_change = allow_batch_change},
                      model, optimizer);
    const auto data = torch::sin(torch::arange(150, torch::kDouble)).reshape({50, 3});
    while (run.next()) {
      optimizer.zero_grad();
      const auto parts = taken == Taken::kShares ? training::parts_of(world, 12, 4) : 1;
      const auto loss = training::accumulate(model, parts, [&](std::int64_t) {
        const auto picked = taken == Taken::kShares ? order.share(static_cast<std::size_t>(12 / parts)) : order.next(4);
        return model(data.index_select(0, torch::tensor(std::vector<std::int64_t>(picked.begin(), picked.end()))));
      });
      optimizer.step();
      if (world.rank() == 0) losses.push_back(loss.item<double>());
    }
  });
  return losses;
}

TEST_CASE("Run: with shares of one batch other ranks go on with the same training") {
  const TempFolder temp;
  const auto whole = go_on({}, 3, 15, Taken::kShares);
  REQUIRE(whole.size() == 15);
  std::vector<double> losses;
  for (const auto& [ranks, steps] : std::vector<std::pair<int, int>>{{3, 5}, {2, 8}, {4, 11}, {1, 15}}) {
    const auto more = go_on(temp / "run", ranks, steps, Taken::kShares);  // 1, 2, 1 and 3 calls a step
    losses.insert(losses.end(), more.begin(), more.end());
  }
  REQUIRE(losses.size() == whole.size());
  for (std::size_t step = 0; step < whole.size(); ++step) CHECK(losses[step] == Approx(whole[step]).epsilon(1e-12));
}

TEST_CASE("Run: other ranks with a batch of their own are refused, or told") {
  const TempFolder temp;
  CHECK(go_on(temp / "run", 3, 5, Taken::kPerRank).size() == 5);
  CHECK_THROWS_WITH(go_on(temp / "run", 2, 8, Taken::kPerRank),
                    Catch::Matchers::Contains("8 samples on 2 ranks, and took 12 samples on 3 ranks"));
  CHECK(std::filesystem::exists(temp / "run/step-00000005/index.json"));
  CHECK(go_on(temp / "run", 2, 8, Taken::kPerRank, true).size() == 3);
  CHECK(go_on(temp / "run", 2, 9, Taken::kPerRank).size() == 1);  // what was allowed stays
}

/// The shares of time that a run's metrics have last.
nlohmann::json shares_of(const std::filesystem::path& run) {
  std::istringstream lines(ap::read_text_file(run / "metrics.jsonl"));
  nlohmann::json newest;
  for (std::string line; std::getline(lines, line);) {
    auto read = nlohmann::json::parse(line);
    if (read.contains("goodput")) newest = std::move(read);
  }
  return newest;
}

/// A training of `ranks` with dropout, in fp64, that makes snapshots, and may be left in the middle as a killed one.
struct Snapshotted {
  std::vector<double> losses;  ///< of rank 0, from the step where it went on
  std::int64_t first = 0;
  int status = 0;
};

struct DropNetImpl : torch::nn::Module {
  DropNetImpl() { to(torch::kDouble); }
  torch::Tensor forward(const torch::Tensor& x) { return out(drop(torch::tanh(in(x)))).pow(2).mean(); }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(3, 8));
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(0.3));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(8, 2));
};
TORCH_MODULE(DropNet);

struct Killed : std::runtime_error {
  Killed() : std::runtime_error("killed") {}
};

struct Course {
  int ranks = 2;
  std::int64_t killed_at = -1, signal_at = -1;
  int snapshot_every = 2;
  training::Start start = training::Start::kNewOrResume;
};

Snapshotted train_with_snapshots(const std::filesystem::path& folder, const Course& course) {
  Snapshotted out;
  try {
    ap::loopback::run(course.ranks, [&](ap::World& world) {
      auto model = nets::seeded(1, [&] {
        return ap::AutoParallel<DropNet>(world, [] { return DropNet(); }, {.snapshot_every = course.snapshot_every});
      });
      ap::optim::AdamW optimizer(model->parameters(), ap::optim::AdamWOptions(1e-2));
      model->attach(optimizer);
      training::Epochs order(world, 12);
      model->keep("order", order);
      const auto data = torch::sin(torch::arange(36, torch::kDouble)).reshape({12, 3});
      training::Run run(world, {.folder = folder, .start = course.start, .steps = 12, .save_every = 9}, model,
                        optimizer);
      if (world.rank() == 0) out.first = run.step();
      if (course.signal_at == -2 && world.rank() == 0) std::raise(SIGTERM);  // before any step
      while (run.next()) {
        if (run.step() == course.killed_at) {
          world.barrier();  // no rank is in `next` still
          throw Killed();
        }
        if (run.step() == course.signal_at && world.rank() == 0) std::raise(SIGTERM);
        optimizer.zero_grad();
        const auto picked = order.share(4);
        const auto loss = model(
            data.index_select(0, torch::tensor(std::vector<std::int64_t>(picked.begin(), picked.end()), torch::kLong)));
        loss.backward();
        optimizer.step();
        if (world.rank() == 0) out.losses.push_back(loss.item<double>());
      }
      if (world.rank() == 0) out.status = run.exit_status();
    });
  } catch (const Killed&) {
  }
  return out;
}

std::filesystem::path memory_of(const std::filesystem::path& folder) {
  std::optional<training::SnapshotPlace> place;
  ap::loopback::run(1, [&](ap::World& world) { place = training::snapshot_place(world, 1, folder); });
  return place->job;
}

TEST_CASE("Run: killed between checkpoints, it goes on from a snapshot and ends bit-equal") {
  const TempFolder temp;
  const auto whole = train_with_snapshots(temp / "whole", {.snapshot_every = 0});
  REQUIRE(whole.losses.size() == 12);
  CHECK_FALSE(std::filesystem::exists(temp / "whole/snapshots.id"));
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const auto folder = temp / std::to_string(ranks);
    const auto reference =
        ranks == 2 ? whole.losses : train_with_snapshots({}, {.ranks = 1, .snapshot_every = 0}).losses;
    static_cast<void>(train_with_snapshots(folder, {.ranks = ranks, .killed_at = 5}));
    const auto second = train_with_snapshots(folder, {.ranks = ranks, .killed_at = 8});
    CHECK(second.first == 4);
    CHECK(second.losses == std::vector<double>(reference.begin() + 4, reference.begin() + 8));
    const auto third = train_with_snapshots(folder, {.ranks = ranks, .killed_at = 11});
    CHECK(third.first == 8);
    CHECK(std::filesystem::exists(memory_of(folder)));
    const auto last = train_with_snapshots(folder, {.ranks = ranks, .start = training::Start::kResume});
    CHECK(last.first == 10);
    CHECK(last.losses == std::vector<double>(reference.begin() + 10, reference.end()));
    CHECK_FALSE(std::filesystem::exists(memory_of(folder)));
    CHECK(std::filesystem::exists(folder / "step-00000012/index.json"));
  }
}

TEST_CASE("Run: a snapshot counts as something to go on from, and the newer of it and a checkpoint is taken") {
  const TempFolder temp;
  const auto folder = temp / "run";
  CHECK_THROWS_WITH(train_with_snapshots(folder, {.start = training::Start::kResume}),
                    Catch::Matchers::Contains("no complete checkpoint"));
  static_cast<void>(train_with_snapshots(folder, {.killed_at = 3}));
  CHECK_THROWS_WITH(train_with_snapshots(folder, {.start = training::Start::kNew}),
                    Catch::Matchers::Contains("has an earlier run"));
  CHECK(train_with_snapshots(folder, {.killed_at = 6, .start = training::Start::kResume}).first == 2);
  // In 9 a checkpoint is written; those of the memory are left.
  CHECK(train_with_snapshots(folder, {.killed_at = 10, .snapshot_every = 4}).first == 6);
  CHECK(std::filesystem::exists(folder / "step-00000009/index.json"));
  CHECK(train_with_snapshots(folder, {.killed_at = 9, .snapshot_every = 4}).first == 9);
  const auto memory = memory_of(folder);
  std::filesystem::remove_all(folder);  // another run
  CHECK(train_with_snapshots(folder, {}).first == 0);
  CHECK(std::filesystem::exists(memory));  // its process is there
  std::filesystem::remove_all(memory);
}

TEST_CASE("Run: asked to end before its first step, it saves the snapshot that it was to go on from") {
  const TempFolder temp;
  const auto folder = temp / "run";
  const auto whole = train_with_snapshots({}, {.snapshot_every = 0});
  static_cast<void>(train_with_snapshots(folder, {.killed_at = 5}));
  const auto asked = train_with_snapshots(folder, {.signal_at = -2});
  CHECK(asked.first == 4);
  CHECK(asked.losses.empty());
  CHECK(asked.status == 128 + SIGTERM);
  CHECK_FALSE(std::filesystem::exists(memory_of(folder)));
  CHECK(std::filesystem::exists(folder / "step-00000004/index.json"));
  const auto last = train_with_snapshots(folder, {});
  CHECK(last.first == 4);
  CHECK(last.losses == std::vector<double>(whole.losses.begin() + 4, whole.losses.end()));
}

TEST_CASE("Run: what waits for data is not goodput, and the slow rank is known") {
  const TempFolder temp;
  const auto train_slowly = [&](const std::filesystem::path& folder, const std::vector<int>& slow_ranks) {
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<Wide> model(world, [] { return Wide(); }, {.gradient_accumulation = true});
      ap::optim::SGD optimizer(model->parameters(), ap::optim::SGDOptions(0.01));
      model->attach(optimizer);
      training::Run run(world, {.folder = folder, .steps = 8}, model, optimizer);
      while (run.next()) {
        optimizer.zero_grad();
        static_cast<void>(training::accumulate(model, 2, [&](std::int64_t) {
          if (std::ranges::count(slow_ranks, world.rank()) > 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
          return model(torch::ones({2, 3}, torch::kDouble));
        }));
        optimizer.step();
      }
    });
    return shares_of(folder);
  };
  const auto both = train_slowly(temp / "both", {0, 1});
  CHECK(both["time_data"] > 0.4);
  const auto one = train_slowly(temp / "one", {1});
  CHECK(one["time_waiting"] > 0.2);  // one of two ranks
  CHECK(one["time_data"] > 0.2);
  CHECK(one["slowest_rank"] == 1);
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
