#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include "torch/checkpoint/checkpoint.hpp"
#include "torch/parameters/hyper_parameters.hpp"

// Models that save and load: what a load that fails leaves behind, and what a good one brings.
namespace session_checkpoint_test {

namespace ap = autopar;
namespace fs = std::filesystem;

/// With a buffer that each call changes, and draws.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(4, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    dropout = register_module("dropout", torch::nn::Dropout(0.5));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return second(dropout(norm(torch::relu(first(x))))).pow(2).mean(); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Net);

using Model = ap::AutoParallel<Net>;
using Between = std::function<void(Model&, torch::optim::AdamW&, ap::World&)>;

/// All that a training has to show, on all ranks.
struct Course {
  std::vector<double> losses, scales;
  std::vector<std::string> state;  ///< bytes of parameters and buffers
  std::vector<std::int64_t> calls, skipped;
  std::vector<std::vector<ap::HyperParameters>> options;
  friend bool operator==(const Course&, const Course&) = default;
};

std::mutex mutex;

/// Two steps on two ranks, what comes between, two more.
Course train(const ap::Options& options, const Between& between) {
  Course course;
  torch::manual_seed(1);
  const std::vector<Net> nets{Net(), Net()};
  ap::loopback::run(2, [&](ap::World& world) {
    Model model(world, nets[static_cast<std::size_t>(world.rank())], options);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01).betas({0.8, 0.9}));
    model->attach(optimizer);
    std::vector<double> losses;
    const auto x = torch::arange(16, torch::kFloat).reshape({4, 4}).add(world.rank()).div(10);
    const auto step = [&] {
      optimizer.zero_grad();
      auto loss = model(x);
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<double>());
    };
    step();
    step();
    between(model, optimizer, world);
    step();
    step();
    const auto state = model->gather_state();
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) course.losses = losses;
    course.scales.push_back(model->stats().loss_scale);
    course.calls.push_back(model->stats().calls);
    course.skipped.push_back(model->stats().skipped_steps);
    course.options.push_back(ap::hyper_parameters(optimizer));
    for (const auto& item : state) {
      course.state.emplace_back(static_cast<const char*>(item.value().data_ptr()), item.value().nbytes());
    }
  });
  return course;
}

template <class Error>
std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

fs::path checkpoint_in(const fs::path& folder) { return folder / ap::kCheckpointFile; }

/// The file of `good` with its last byte changed, which is data of what is read last.
void write_damaged(const fs::path& good, const fs::path& bad) {
  auto text = ap::read_text_file(checkpoint_in(good));
  text.back() = static_cast<char>(text.back() ^ 4);
  ap::write_text_file(checkpoint_in(bad), text);
}

TEST_CASE("a training that met failing loads is the one that met none, to the bit", "[files]") {
  const TempFolder folder;
  const std::vector<ap::Options> plans{{.stages = 2, .microbatches = 2, .replicas = {1, 1}},
                                       {.stages = 1, .zero = 3, .replicas = {2}},
                                       {.stages = 1, .zero = 0, .replicas = {2}, .precision = "fp16"}};
  for (const auto& options : plans) {
    CAPTURE(options.stages, options.zero, options.precision);
    const auto saves = [&](Model& model, torch::optim::AdamW& optimizer, ap::World& world) {
      model->save(folder / "good", optimizer);
      model->save(folder / "weights");
      if (world.rank() == 0) write_damaged(folder / "good", folder / "damaged");
    };
    const auto undisturbed = train(options, saves);
    const auto disturbed = train(options, [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
      for (const char* name : {"damaged", "weights", "nowhere"}) {
        const auto message = message_of<ap::CheckpointError>([&] { model->load(folder / name, optimizer); });
        const std::lock_guard lock(mutex);
        CAPTURE(name, message);
        CHECK(message.find("cannot load") != std::string::npos);
      }
    });
    CHECK(disturbed.losses == undisturbed.losses);
    CHECK(disturbed == undisturbed);
  }
}

TEST_CASE("a checkpoint brings hyper-parameters, and weights alone where that is asked for", "[files]") {
  const TempFolder folder;
  const ap::Options options{.stages = 2, .replicas = {1, 1}};
  static_cast<void>(train(options, [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
    model->save(folder / "all", optimizer);
    model->save(folder / "weights");
  }));
  const ap::Options replicated{.stages = 1, .replicas = {2}};
  static_cast<void>(train(replicated, [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
    auto& group = static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options());
    group.betas({0.1, 0.2}).weight_decay(0.5).lr(3);
    model->load(folder / "weights", optimizer, {.optimizer = ap::Missing::kAllowed});
    const bool kept = group.lr() == 3;
    model->load(folder / "weights", {&optimizer}, {.optimizer = ap::Missing::kAllowed});
    model->load(folder / "weights");
    model->load(folder / "all", optimizer);
    const std::lock_guard lock(mutex);
    CHECK(kept);
    CHECK(group == torch::optim::AdamWOptions(0.01).betas({0.8, 0.9}));
  }));
}

TEST_CASE(
    "a checkpoint that is damaged when a model is deployed is an error of the first call, and the next one goes on",
    "[files]") {
  const TempFolder folder;
  const ap::Options options{.stages = 2, .replicas = {1, 1}};
  static_cast<void>(train(options, [&](Model& model, torch::optim::AdamW& optimizer, ap::World& world) {
    model->save(folder / "good", optimizer);
    if (world.rank() == 0) write_damaged(folder / "good", folder / "damaged");
  }));
  ap::loopback::run(2, [&](ap::World& world) {
    Model model(world, Net(), options);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3));
    model->load(folder / "damaged", optimizer);
    const auto message = message_of<ap::CheckpointError>([&] { model(torch::ones({4, 4})).backward(); });
    model(torch::ones({4, 4})).backward();
    model->load(folder / "good", optimizer);
    const std::lock_guard lock(mutex);
    CAPTURE(message);
    CHECK(message.find("are damaged") != std::string::npos);
    CHECK(model->stats().calls == 2);
    CHECK(optimizer.param_groups()[0].options().get_lr() == 0.01);
  });
}

TEST_CASE("optimizers whose state is not known are refused on every rank, also where only one has such", "[files]") {
  const TempFolder folder;
  ap::loopback::run(2, [&](ap::World& world) {
    Model model(world, Net(), ap::Options{.stages = 2, .replicas = {1, 1}});
    model(torch::ones({4, 4})).backward();
    torch::optim::LBFGS unknown(model->parameters());
    torch::optim::SGD known(model->parameters(), 0.1);
    auto& mine = world.rank() == 1 ? static_cast<torch::optim::Optimizer&>(unknown) : known;
    const auto saved = message_of<ap::InvalidArgument>([&] { model->save(folder / "state", mine); });
    model->save(folder / "state", known);
    const auto loaded = message_of<ap::InvalidArgument>([&] { model->load(folder / "state", mine); });
    model->load(folder / "state", known);
    const std::lock_guard lock(mutex);
    CAPTURE(saved, loaded);
    CHECK(saved.find("LBFGS") != std::string::npos);
    CHECK(loaded.find("LBFGS") != std::string::npos);
  });
}

}  // namespace session_checkpoint_test
