#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <says.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Trainable tensors that forward reads and nobody registered: no optimizer of model->parameters() steps them, and no
// rank sums their gradients.
namespace unregistered_test {

namespace ap = autopar;
namespace nn = torch::nn;
using numerics::check_close;
using numerics::share_of;
using torch::Tensor;

constexpr double kTolerance = 1e-12;

/// Ways to hold what is not registered, and to register it.
enum class Held { kModule, kTensor, kVector, kComputed, kDetached, kConstant, kNoGrad, kRegistered };

struct Net : nn::Module {
  explicit Net(Held held_so) : held(held_so) {
    register_module("first", first);
    if (held == Held::kRegistered) {
      register_module("second", second);
      register_parameter("bias", bias);
      register_module("layers", list);
      for (auto& layer : layers) list->push_back(layer);
    }
    if (held == Held::kConstant) {
      for (auto& parameter : second->parameters()) parameter.requires_grad_(false);
    }
    table = first->weight.t() * 2;
  }
  Tensor forward(const Tensor& x) {
    auto h = torch::tanh(first(x));
    switch (held) {
      case Held::kModule:
      case Held::kConstant:
        return second(h).pow(2).mean();
      case Held::kTensor:
        return (h * bias).pow(2).mean();
      case Held::kVector:
        for (auto& layer : layers) h = layer(h);
        return h.pow(2).mean();
      case Held::kComputed:
        return h.mm(table.t()).pow(2).mean();
      case Held::kDetached:
        return (h + second(h).detach() + bias.detach()).pow(2).mean();
      case Held::kNoGrad: {
        const torch::NoGradGuard no_grad;
        const auto teacher = second(h);
        const at::AutoGradMode gradients(true);
        return (h - teacher).pow(2).mean();
      }
      case Held::kRegistered:
        for (auto& layer : layers) h = layer(h);
        return (second(h) * bias).pow(2).mean();
    }
    return h;
  }
  Held held;
  nn::Linear first{4, 4}, second{4, 4};
  std::vector<nn::Linear> layers{nn::Linear(4, 4), nn::Linear(4, 4)};
  nn::ModuleList list;
  Tensor bias = torch::linspace(0.5, 1.5, 4).requires_grad_(), table;
};

std::shared_ptr<Net> made(Held held) { return nets::made<Net>(3, held); }

const std::vector<std::int64_t> kLocal{3, 2};

Tensor samples() { return torch::linspace(-1, 1, 20).mul(3).sin().view({5, 4}); }

std::vector<ap::Options> plans() {
  return {{.stages = 1, .microbatches = 2, .zero = 0, .replicas = {2}}, {.stages = 2, .microbatches = 2, .zero = 0}};
}

TEST_CASE("unregistered trainable tensor: refused where it is read") {
  const DoublePrecision fp64;
  struct Case {
    Held held;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases{
      {Held::kModule, {"(near first", "[4", "register_module", "requires_grad_(false)"}},
      {Held::kTensor, {"aten::mul (near first", "sizes [4]", "register_parameter", "requires_grad_(false)"}},
      {Held::kVector, {"(near first", "torch::nn::ModuleList"}},
      {Held::kComputed, {"(near first", "sizes [4, 4]", "computed before the forward", "detach()"}}};
  for (const int ranks : {1, 2}) {
    for (const auto& each : cases) {
      CAPTURE(ranks, static_cast<int>(each.held));
      CHECK_NOTHROW(ap::loopback::run(ranks, [&](ap::World& world) {
        ap::AutoParallel<Net> model(world, made(each.held));
        const auto x = ranks == 1 ? samples() : share_of(samples(), 0, kLocal, world.rank());
        check_says(each.says, [&] { model(x); });
        const torch::NoGradGuard no_grad;  // to evaluate nothing is trained
        const auto evaluated = made(each.held)->forward(samples());
        check_close(model(x), evaluated, kTolerance, "evaluation");
      }));
    }
    CHECK_NOTHROW(ap::loopback::run(ranks, [&](ap::World& world) {
      ap::AutoParallel<nn::Linear> model(world, nn::Linear(4, 1));
      const auto weight = torch::ones({4, 1}).requires_grad_();
      const auto x = ranks == 1 ? samples() : share_of(samples(), 0, kLocal, world.rank());
      const auto loss = [&](const Tensor& out, const Tensor& target) { return (out * target.mm(weight)).mean(); };
      check_says({"sizes [4, 1]", "register_parameter"}, [&] { model->train_step(loss, x, x); });
    }));
  }
}

TEST_CASE("unregistered tensor: remedies equal one process") {
  const DoublePrecision fp64;
  for (const auto held : {Held::kRegistered, Held::kConstant, Held::kDetached, Held::kNoGrad}) {
    CAPTURE(static_cast<int>(held));
    const auto reference = made(held);
    torch::optim::SGD plain(reference->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      plain.zero_grad();
      reference->forward(samples()).backward();
      plain.step();
    }
    for (const auto& options : plans()) {
      CHECK_NOTHROW(ap::loopback::run(2, [&](ap::World& world) {
        ap::AutoParallel<Net> model(world, made(held), options);
        torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          model(share_of(samples(), 0, kLocal, world.rank())).backward();
          optimizer.step();
        }
        for (const auto& item : reference->named_parameters())
          check_close(model->gather(model->named_parameters()[item.key()]), item.value(), kTolerance, item.key());
      }));
    }
  }
}

}  // namespace unregistered_test
