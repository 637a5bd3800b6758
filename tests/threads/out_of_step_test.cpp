#include <torch/torch.h>

#include <catch_shim.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

// Ranks whose trainings would drift apart silently.
namespace out_of_step_test {

namespace ap = autopar;
using torch::Tensor;

/// Any even cut leaves parameters on both sides.
struct Net : torch::nn::Module {
  Net() {
    register_module("first", first);
    register_module("second", second);
    register_module("third", third);
    register_module("fourth", fourth);
  }
  Tensor forward(const Tensor& x) {
    return fourth(torch::tanh(third(torch::tanh(second(torch::tanh(first(x))))))).pow(2).mean();
  }
  torch::nn::Linear first{4, 4}, second{4, 4}, third{4, 4}, fourth{4, 4};
};

std::shared_ptr<Net> zeros() {
  auto net = std::make_shared<Net>();
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) parameter.fill_(0.1);
  return net;
}

/// What each rank is told; empty = nothing.
std::vector<std::string> told(int ranks, const std::function<void(ap::World&)>& body) {
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  ap::loopback::run(ranks, [&](ap::World& world) {
    try {
      body(world);
    } catch (const ap::InvalidArgument& error) {
      messages[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  return messages;
}

void check_told(const std::vector<std::string>& messages, const std::vector<std::string>& parts) {
  for (const auto& message : messages) {
    for (const auto& part : parts) {
      CAPTURE(message, part);
      CHECK(message.find(part) != std::string::npos);
    }
  }
}

const Tensor& samples() {
  static const auto x = torch::linspace(-1, 1, 16).view({4, 4});
  return x;
}

ap::Options replicas() { return {.stages = 1, .microbatches = 1, .zero = 0, .replicas = {2}}; }

template <class Optimizer>
void step(ap::AutoParallel<Net>& model, Optimizer& optimizer) {
  optimizer.zero_grad();
  model(samples()).backward();
  optimizer.step();
}

TEST_CASE("models that are called in another order on some rank are told apart, though their shapes are the same") {
  const auto messages = told(2, [](ap::World& world) {
    ap::AutoParallel<Net> a(world, zeros(), replicas()), b(world, zeros(), replicas());
    a(samples());
    b(samples());
    auto& first = world.rank() == 0 ? a : b;
    first(samples()).backward();
  });
  check_told(messages, {"rank 0", "rank 1", "model 1", "model 2", "Net"});
}

TEST_CASE("replicas whose parameters differ are found where verify_replicas asks for it") {
  for (const bool asked : {false, true}) {
    CAPTURE(asked);
    const auto messages = told(2, [&](ap::World& world) {
      auto options = replicas();
      options.verify_replicas = asked ? 2 : 0;
      ap::AutoParallel<Net> model(world, zeros(), options);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      for (int i = 0; i < 4; ++i) {
        step(model, optimizer);
        if (i == 2 && world.rank() == 1) {
          const torch::NoGradGuard no_grad;
          model->module().second->weight.view(-1)[3] += 1;
        }
      }
      step(model, optimizer);
    });
    if (asked) check_told(messages, {"verify_replicas", "second.weight", "rank 1", "rank 0"});
    else for (const auto& message : messages) CHECK(message.empty());
  }
}

}  // namespace out_of_step_test
