#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

// A program that steps an optimizer which it never attached.
namespace unattached_test {

namespace ap = autopar;
using Catch::Matchers::Contains;
using torch::Tensor;

struct Net : nets::MeanSquare<nets::Linears> {
  Net() : MeanSquare(4, {{"first", 8}, {"second", 4}}) {}
};

using Model = ap::AutoParallel<Net>;

/// What ranks say of optimizers that are not attached in five calls.
template <class Optimizer, class Step>
std::vector<std::string> said(int ranks, ap::Options options, bool attaches, const Step& step) {
  std::vector<std::string> lines;
  std::mutex mutex;
  ap::loopback::run(ranks, [&](ap::World& world) {
    world.log().set_writer([&](const std::string& line) {
      const std::lock_guard lock(mutex);
      if (line.find("attached optimizer") != std::string::npos) lines.push_back(line);
    });
    const auto net = [&] {
      static std::mutex making;  // the default generator is one for all threads
      const std::lock_guard lock(making);
      torch::manual_seed(1);
      return std::make_shared<Net>();
    }();
    Model model(world, net, options);
    Optimizer optimizer(model->parameters(), 0.01);
    if (attaches) model->attach(optimizer);
    for (int call = 0; call < 5; ++call) {
      optimizer.zero_grad();
      model(torch::linspace(-1, 1, 16).view({4, 4})).backward();
      step(model, optimizer);
    }
  });
  return lines;
}

TEST_CASE("unattached stepped optimizer: one warning under every plan") {
  torch::set_num_threads(1);
  const std::vector<std::pair<int, ap::Options>> plans{
      {1, {}}, {2, {.stages = 1, .replicas = {2}}}, {2, {.stages = 2, .microbatches = 2}}};
  const auto steps = [](auto&, auto& optimizer) { optimizer.step(); };
  for (const auto& [ranks, options] : plans) {
    CAPTURE(ranks, options.stages);
    for (const auto& lines : {said<torch::optim::SGD>(ranks, options, false, steps),
                              said<torch::optim::AdamW>(ranks, options, false, steps)}) {
      REQUIRE(lines.size() == 1);
      CHECK_THAT(lines[0], Contains("parameter 'first.") && Contains("was changed after it got a gradient") &&
                               Contains("model->attach(optimizer)") && Contains("rank 0"));
    }
    // The way out.
    CHECK(said<torch::optim::SGD>(ranks, options, true, steps).empty());
    CHECK(said<torch::optim::AdamW>(ranks, options, true, steps).empty());
  }
}

TEST_CASE("unattached optimizer: no warning if it never steps") {
  torch::set_num_threads(1);
  CHECK(said<torch::optim::SGD>(2, {}, false, [](auto&, auto&) {}).empty());
  const auto decays = [](Model& model, auto&) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->owned_parameters()) parameter.mul_(0.99);
  };
  const auto lines = said<torch::optim::SGD>(2, {}, false, decays);
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], Contains("; if an optimizer steps it"));
}

TEST_CASE("unattached optimizer: warned of after accumulated calls") {
  torch::set_num_threads(1);
  int calls = 0;
  const auto lines = said<torch::optim::SGD>(1, {}, false, [&](auto&, auto& optimizer) {
    if (++calls == 3) optimizer.step();
  });
  CHECK(lines.size() == 1);
}

}  // namespace unattached_test
