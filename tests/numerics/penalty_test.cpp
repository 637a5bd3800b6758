#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <memory>
#include <string>
#include <tuple>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Gradient penalties: refused where they take a gradient inside forward, and the way out that the refusal names.
namespace penalty_test {

namespace ap = autopar;
namespace nn = torch::nn;
using numerics::check_close;
using torch::Tensor;

constexpr double kTolerance = 1e-12;

/// A critic, and the derivative of its score by its input as operators.
struct Critic : nn::Module {
  Critic() { nets::register_all(*this, "first", first, "head", head); }
  std::tuple<Tensor, Tensor> forward(const Tensor& x) {
    const auto t = torch::tanh(first(x));
    return {head(t), ((1 - t * t) * head->weight).matmul(first->weight)};
  }
  nn::Linear first{4, 6}, head{6, 1};
};

/// The same score alone.
struct Plain : Critic {
  Tensor forward(const Tensor& x) { return std::get<0>(Critic::forward(x)); }
};

template <class Net>
std::shared_ptr<Net> made() {
  return nets::made<Net>(8);
}

Tensor penalty_of(const Tensor& gradient) { return 10 * (gradient.norm(2, 1) - 1).pow(2).mean(); }
Tensor samples() { return torch::linspace(-1, 2, 32).sin().view({8, 4}); }
Tensor mine(const Tensor& whole, int rank) { return numerics::share_of(whole, 0, {5, 3}, rank).clone(); }

TEST_CASE("gradient penalty by operators: trains as create_graph") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const auto reference = made<Plain>();
  {
    const auto x = samples().requires_grad_(true);
    const auto score = reference->forward(x);
    const auto gradient = torch::autograd::grad({score.sum()}, {x}, {}, true, true)[0];
    (score.mean() + penalty_of(gradient)).backward();
  }
  for (const auto& plan : {ap::Options{.stages = 1, .microbatches = 2, .replicas = {2}},
                           ap::Options{.stages = 1, .microbatches = 1, .replicas = {2}}}) {
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<Critic> model(world, made<Critic>(), plan);
      const auto loss = [](const std::tuple<Tensor, Tensor>& results, const Tensor&) {
        return std::get<0>(results).mean() + penalty_of(std::get<1>(results));
      };
      const auto x = mine(samples(), world.rank());
      model->train_step(loss, x, x).backward();
      const auto expected = reference->named_parameters();
      for (const auto& item : model->named_parameters()) {
        check_close(item.value().grad(), expected[item.key()].grad(), kTolerance, item.key());
      }
    });
  }
}

TEST_CASE("gradient taken inside a loss: refused with a remedy") {
  ap::loopback::run(1, [&](ap::World& world) {
    ap::AutoParallel<Plain> model(world, made<Plain>(), ap::Options{});
    const auto loss = [](const Tensor& score, const Tensor& x) {
      return penalty_of(torch::autograd::grad({score.sum()}, {x}, {}, true, true)[0]);
    };
    const auto x = samples();
    std::string message;
    try {
      static_cast<void>(model->train_step(loss, x, x));
    } catch (const ap::CaptureError& error) {
      message = error.what();
    }
    if (message.find("write the derivative with operators") == std::string::npos) throw numerics::Failure(message);
  });
}

}  // namespace penalty_test
