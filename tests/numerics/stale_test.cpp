#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// What forward reads beside its arguments and a loop changes: no call may silently use what it was at the capture.
namespace stale_test {

namespace ap = autopar;
namespace nn = torch::nn;
using numerics::check_close;
using torch::Tensor;

constexpr double kTolerance = 1e-12;
constexpr int kSteps = 11;

/// A class of the user's own inside the model: its members have no size that anyone but its user knows.
struct SharpenImpl : nn::Module {
  Tensor forward(const Tensor& x) { return torch::tanh(x * sharpness); }
  double sharpness = 1;
};
TORCH_MODULE(Sharpen);

struct Net : nn::Module {
  Net() {
    nets::register_all(*this, "first", first, "leaky", leaky, "dropout", dropout, "sharpen", sharpen, "second", second);
  }
  Tensor forward(const Tensor& x) {
    const auto hidden = sharpen(leaky(first(x) / temperature));
    return second(uses_dropout ? dropout(hidden) : hidden);
  }
  nn::Linear first{4, 6}, second{6, 2};
  nn::LeakyReLU leaky{nn::LeakyReLUOptions().negative_slope(0.1)};
  nn::Dropout dropout{0.0};
  Sharpen sharpen;
  double temperature = 1;
  float slack = 0;
  std::int64_t seen = 0;  // a statistic of the loop's
  bool uses_dropout = false;
};

std::shared_ptr<Net> made() { return nets::made<Net>(3); }

const std::vector<ap::Options> kPlans{
    {.stages = 2, .microbatches = 2, .replicas = {1, 1}, .verify_capture = true},
    {.stages = 1, .microbatches = 1, .replicas = {2}, .verify_capture = true},
    {.stages = 1, .microbatches = 2, .zero = 2, .replicas = {2}, .verify_capture = true}};

Tensor samples() { return torch::linspace(-1, 2, 32).sin().view({8, 4}); }
Tensor targets() { return torch::linspace(1, 2, 16).cos().view({8, 2}); }
Tensor mine(const Tensor& whole, int rank) { return numerics::share_of(whole, 0, {5, 3}, rank).clone(); }

torch::optim::SGD sgd(const std::vector<Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.2).momentum(0.9));
}

/// What a loop does to the net before a step.
using Change = std::function<void(Net&, int step)>;

std::vector<Tensor> in_one_process(const Change& change, std::vector<double>& losses) {
  const auto net = made();
  auto optimizer = sgd(net->parameters());
  for (int step = 0; step < kSteps; ++step) {
    change(*net, step);
    optimizer.zero_grad();
    const auto loss = nn::functional::mse_loss(net->forward(samples()), targets());
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return net->parameters();
}

void check_equals_one_process(const Change& change, std::int64_t most_captures) {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  std::vector<double> losses;
  const auto expected = in_one_process(change, losses);
  for (const auto& plan : kPlans) {
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(), plan);
      auto optimizer = sgd(model->parameters());
      model->attach(optimizer);
      const auto mse = [](const Tensor& y, const Tensor& t) { return nn::functional::mse_loss(y, t); };
      for (int step = 0; step < kSteps; ++step) {
        change(model->module(), step);
        optimizer.zero_grad();
        const auto loss = model->train_step(mse, mine(samples(), world.rank()), mine(targets(), world.rank()));
        loss.backward();
        optimizer.step();
        const auto when = "loss of step " + std::to_string(step);
        check_close(loss, torch::tensor(losses[static_cast<std::size_t>(step)], torch::kDouble), kTolerance, when);
        const torch::NoGradGuard no_grad;
        static_cast<void>(model(mine(samples(), world.rank())));  // another program of the same members
      }
      const auto handles = model->parameters();
      for (std::size_t i = 0; i < handles.size(); ++i) {
        check_close(model->gather(handles[i]), expected[i], kTolerance, "parameter " + std::to_string(i));
      }
      if (model->stats().captures > most_captures) {
        throw numerics::Failure(std::to_string(model->stats().captures) + " captures");
      }
    });
  }
}

TEST_CASE("module member changed by the loop: next call uses it") {
  SECTION("a temperature every 4 steps") {
    check_equals_one_process(
        [](Net& net, int step) {
          if (step % 4 == 3) net.temperature *= 0.8;
        },
        6);
  }
  SECTION("a temperature in each step") {
    check_equals_one_process([](Net& net, int step) { net.temperature = 1 - 0.05 * step; }, 2 * kSteps);
  }
  SECTION("beside a statistic that changes in each step and is read by nobody") {
    check_equals_one_process(
        [](Net& net, int step) {
          net.seen += 8;
          if (step == 7) net.temperature = 0.5;
        },
        4);
  }
  SECTION("the slope and the rate of libtorch's modules") {
    check_equals_one_process(
        [](Net& net, int step) {
          if (step == 5) net.leaky->options.negative_slope(0.4);
        },
        4);
    check_equals_one_process(
        [](Net& net, int step) {
          net.uses_dropout = true;
          net.dropout->options.p(step < 6 ? 0.0 : 1.0);
        },
        4);
  }
  SECTION("what changes the operators") {
    check_equals_one_process([](Net& net, int step) { net.uses_dropout = step % 5 == 4; }, 12);
  }
}

TEST_CASE("number held by the loss: next step uses it") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const auto factor_of = [](int step) { return 1 + step / 3; };
  const auto net = made();
  auto plain = sgd(net->parameters());
  for (int step = 0; step < kSteps; ++step) {
    plain.zero_grad();
    (nn::functional::mse_loss(net->forward(samples()), targets()) * factor_of(step)).backward();
    plain.step();
  }
  ap::loopback::run(2, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made(), kPlans[1]);
    auto optimizer = sgd(model->parameters());
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const auto loss = [factor = factor_of(step)](const Tensor& y, const Tensor& t) {
        return nn::functional::mse_loss(y, t) * factor;
      };
      model->train_step(loss, mine(samples(), world.rank()), mine(targets(), world.rank())).backward();
      optimizer.step();
    }
    const auto handles = model->parameters();
    for (std::size_t i = 0; i < handles.size(); ++i)
      check_close(handles[i], net->parameters()[i], kTolerance, "parameter");
  });
}

/// The step at which a call throws, and what it says.
struct Refused {
  int step = -1;
  std::string message;
};

template <class Loop>
Refused first_refusal(int steps, const Loop& call) {
  for (int step = 0; step < steps; ++step) {
    try {
      call(step);
    } catch (const ap::CaptureError& error) {
      return {step, error.what()};
    }
  }
  return {};
}

TEST_CASE("unseen change: found at growing intervals, named, corrected") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  for (const auto& plan : kPlans) {
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(), plan);
      auto optimizer = sgd(model->parameters());
      model->attach(optimizer);
      const auto call = [&](int step) {
        if (step == 5) model->module().sharpen->sharpness = 0.5;
        return model(mine(samples(), world.rank()));
      };
      const auto refused = first_refusal(20, call);
      if (refused.step != 7) throw numerics::Failure("found at step " + std::to_string(refused.step));  // the 8th call
      for (const char* part : {"aten::mul (near ", "was 1 and is 0.5", "calls 5 to 7", "recapture()", "argument"}) {
        if (refused.message.find(part) == std::string::npos)
          throw numerics::Failure(refused.message + " lacks " + part);
      }
      const auto reference = made();
      reference->sharpen->sharpness = 0.5;
      const auto results = model(mine(samples(), world.rank()));
      check_close(results, reference->forward(mine(samples(), world.rank())), kTolerance, "after the refusal");
      // The way out.
      model->module().sharpen->sharpness = reference->sharpen->sharpness = 0.25;
      model->recapture();
      check_close(model(mine(samples(), world.rank())), reference->forward(mine(samples(), world.rank())), kTolerance,
                  "after recapture()");
    });
  }
}

/// A forward that changes what it reads, every fourth time.
struct Cooling : nets::Linears {
  Cooling() : Linears(4, {{"layer", 2}}) {}
  Tensor forward(const Tensor& x) {
    if (++calls % period == 0) temperature *= 0.5;
    return Linears::forward(x) / temperature;
  }
  int calls = 0, period = 4;
  double temperature = 1;
};

TEST_CASE("forward mutating what it reads: refused at any period") {
  const DoublePrecision guard;
  for (const int period : {1, 2, 3, 4, 5, 7, 9}) {
    ap::loopback::run(1, [&](ap::World& world) {
      const auto net = std::make_shared<Cooling>();
      net->period = period;
      ap::AutoParallel<Cooling> model(world, net, ap::Options{});
      const auto refused = first_refusal(100, [&](int) { return model(samples()); });
      if (refused.step < 0) throw numerics::Failure("period " + std::to_string(period) + " goes unnoticed");
      const bool before_any_result =
          refused.step == 0;  // and no batch size of the capture's own runs is in the message
      const auto says = [&](const char* part) { return refused.message.find(part) != std::string::npos; };
      if (before_any_result && (!says("call counter") || says("batch 7") || says("batch 12"))) {
        throw numerics::Failure(refused.message);
      }
    });
  }
}

TEST_CASE("verify_capture: changes no RNG, statistic, member or result") {
  const auto train = [](bool verify) {
    std::vector<Tensor> out;
    ap::loopback::run(1, [&](ap::World& world) {
      const std::lock_guard lock(numerics::generator_mutex());
      torch::manual_seed(9);
      nn::Sequential net(nn::Linear(4, 6), nn::BatchNorm1d(6), nn::Dropout(0.3), nn::Linear(6, 2));
      ap::AutoParallel<nn::Sequential> model(world, net, ap::Options{.verify_capture = verify});
      auto optimizer = sgd(model->parameters());
      for (int step = 0; step < 40; ++step) {
        optimizer.zero_grad();
        const auto loss = model(samples()).pow(2).mean();
        loss.backward();
        optimizer.step();
        out.push_back(loss.detach().clone());
      }
      for (const auto& buffer : net->buffers()) out.push_back(buffer.clone());
      out.push_back(torch::rand({3}));  // where the default generator stands
      if (model->stats().captures != 1) throw numerics::Failure(std::to_string(model->stats().captures) + " captures");
    });
    return out;
  };
  const auto with = train(true), without = train(false);
  REQUIRE(with.size() == without.size());
  for (std::size_t i = 0; i < with.size(); ++i) CHECK(torch::equal(with[i], without[i]));
}

}  // namespace stale_test
