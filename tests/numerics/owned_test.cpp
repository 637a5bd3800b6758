#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

#include "torch/parameters/optimizer_state.hpp"

// What a loop does with the handles and the optimizer's state that a rank holds: averages of parameters, files.
namespace owned_test {

namespace ap = autopar;
namespace nn = torch::nn;
using numerics::check_close;
using numerics::Failure;
using torch::Tensor;

constexpr double kTolerance = 1e-12;
constexpr int kSteps = 4;
constexpr double kDecay = 0.9;

struct Net : nets::Linears {
  Net() : Linears(4, {{"first", 6}, {"second", 6}, {"head", 1}}) {}
};

std::shared_ptr<Net> made() { return nets::made<Net>(4); }

Tensor samples() { return torch::linspace(-1, 2, 32).sin().view({8, 4}); }
Tensor mine(const Tensor& whole, int rank) { return numerics::share_of(whole, 0, {5, 3}, rank).clone(); }
Tensor loss_of(const Tensor& results) { return (results - 1).pow(2).mean(); }

std::vector<ap::Options> plans() {
  std::vector<ap::Options> all;
  for (const int zero : {0, 1, 2, 3}) all.push_back({.stages = 1, .microbatches = 1, .zero = zero, .replicas = {2}});
  all.push_back({.stages = 2, .microbatches = 2, .zero = 0, .replicas = {1, 1}});
  all.push_back({.stages = 1, .microbatches = 1, .zero = 1, .offload = ap::Offload::kOptimizer, .replicas = {2}});
  return all;
}

/// The plain program: net, optimizer, and an average of its parameters.
struct Plain {
  std::shared_ptr<Net> net = made();
  torch::optim::AdamW optimizer{net->parameters(), torch::optim::AdamWOptions(0.05).eps(1e-3)};
  std::vector<Tensor> average;

  Plain() {
    for (const auto& parameter : net->parameters()) average.push_back(parameter.detach().clone());
  }
  void step() {
    optimizer.zero_grad();
    loss_of(net->forward(samples())).backward();
    optimizer.step();
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < average.size(); ++i) average[i].lerp_(net->parameters()[i], 1 - kDecay);
  }
};

using Model = ap::AutoParallel<Net>;

torch::optim::AdamW adamw(Model& model) {
  return torch::optim::AdamW(model->parameters(), torch::optim::AdamWOptions(0.05).eps(1e-3));
}

void step(Model& model, torch::optim::Optimizer& optimizer, int rank) {
  const auto loss = [](const Tensor& results, const Tensor&) { return loss_of(results); };
  optimizer.zero_grad();
  model->train_step(loss, mine(samples(), rank), mine(samples(), rank)).backward();
  optimizer.step();
}

template <class Work>
void on_two_ranks(const Work& work) {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  for (const auto& plan : plans()) ap::loopback::run(2, [&](ap::World& world) { work(world, plan); });
}

/// What `work` throws says all of `parts`.
template <class Error, class Work>
void check_throws(const Work& work, const std::vector<std::string>& parts, const std::string& when) {
  try {
    work();
  } catch (const Error& error) {
    for (const auto& part : parts) {
      if (std::string(error.what()).find(part) == std::string::npos)
        throw Failure(when + ": '" + part + "' is not in: " + error.what());
    }
    return;
  }
  throw Failure(when + ": nothing was thrown");
}

TEST_CASE("average of owned parameters: equals one process, evaluates") {
  Plain plain;
  {
    const DoublePrecision guard;
    plain = Plain();
    for (int k = 0; k < kSteps; ++k) plain.step();
  }
  on_two_ranks([&](ap::World& world, const ap::Options& plan) {
    Model model(world, made(), plan);
    auto optimizer = adamw(model);
    model->attach(optimizer);
    // The recipe of docs/guide.md.
    model->prepare(mine(samples(), world.rank()));
    const auto owned = model->owned_parameters();
    std::vector<Tensor> average;
    for (const auto& parameter : owned) average.push_back(parameter.detach().clone());
    for (int k = 0; k < kSteps; ++k) {
      step(model, optimizer, world.rank());
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < owned.size(); ++i) average[i].lerp_(owned[i], 1 - kDecay);
    }
    // Evaluation with the averages, and back.
    const auto expected = [&] {
      const auto reference = made();
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < plain.average.size(); ++i) reference->parameters()[i].copy_(plain.average[i]);
      return reference->forward(mine(samples(), world.rank()));
    }();
    const torch::NoGradGuard no_grad;
    const auto swap = [&] {
      for (std::size_t i = 0; i < owned.size(); ++i) {
        const auto kept = owned[i].clone();
        owned[i].copy_(average[i]);
        average[i].copy_(kept);
      }
    };
    swap();
    check_close(model(mine(samples(), world.rank())), expected, kTolerance, "with averages");
    const auto state = model->gather_state();
    if (world.rank() == 0) check_close(state["head.weight"], plain.average[4], kTolerance, "gathered average");
    swap();
    const auto handles = model->parameters();
    for (std::size_t i = 0; i < handles.size(); ++i) {
      check_close(model->gather(handles[i]), plain.net->parameters()[i], kTolerance, "parameter " + std::to_string(i));
    }
  });
}

TEST_CASE("copy from before sharding: does not broadcast with shards") {
  on_two_ranks([&](ap::World& world, const ap::Options& plan) {
    if (plan.zero == 0) return;
    Model model(world, made(), plan);
    auto optimizer = adamw(model);
    model->attach(optimizer);
    std::vector<Tensor> average;
    for (const auto& parameter : model->parameters()) average.push_back(parameter.detach().clone());
    step(model, optimizer, world.rank());
    const torch::NoGradGuard no_grad;
    const auto handles = model->parameters();
    int unequal = 0;
    for (std::size_t i = 0; i < handles.size(); ++i) {
      const auto share = handles[i];
      if (share.sizes() == average[i].sizes()) continue;
      ++unequal;
      const std::vector<std::string> parts{"held in shards", "prepare(", "owned_parameters()"};
      const auto throws = [&](const std::string& what, const auto& work) {
        check_throws<ap::InvalidArgument>(work, parts, what + " of parameter " + std::to_string(i));
      };
      throws("add_", [&] { average[i].mul_(kDecay).add_(share, 1 - kDecay); });
      throws("lerp_", [&] { average[i].lerp_(share.detach(), 1 - kDecay); });
      throws("copy_ from", [&] { average[i].copy_(share.data()); });
      throws("copy_ to", [&] { share.copy_(average[i]); });
      throws("+",
             [&] { static_cast<void>(average[i] * kDecay + share * (1 - kDecay) + share.view({-1}) * average[i]); });
      throws("foreach", [&] { at::_foreach_add_({average[i]}, {share}, 0.5); });
      // A row that is as long as the share would be stretched silently.
      if (share.numel() > 0) {
        throws("rows", [&] { static_cast<void>(torch::zeros({3, share.numel()}) + share); });
      }
    }
    if (unequal == 0) throw Failure("nothing is held in shards");
  });
}

TEST_CASE("torch::save of a shard: throws and names a working remedy") {
  Plain plain;
  {
    const DoublePrecision guard;
    plain = Plain();
    for (int k = 0; k < kSteps; ++k) plain.step();
  }
  on_two_ranks([&](ap::World& world, const ap::Options& plan) {
    const auto net = made();
    Model model(world, net, plan);
    auto optimizer = adamw(model);
    model->attach(optimizer);
    for (int k = 0; k < 2; ++k) step(model, optimizer, world.rank());
    const bool has_all = plan.zero == 0 && plan.stages == 1;
    const auto saved = [](const auto& value) {
      std::ostringstream file;
      torch::save(value, file);
    };
    if (has_all) {
      saved(net);
      saved(optimizer);
    } else {
      check_throws<ap::InvalidArgument>([&] { saved(optimizer); }, {"model->save(", "gather_optimizer("}, "optimizer");
      if (plan.zero > 0) {
        check_throws<ap::InvalidArgument>([&] { saved(net); }, {"held in shards", "model->save(", "gather_state()"},
                                          "net");
        check_throws<ap::InvalidArgument>([&] { saved(model->parameters()[0]); }, {"model->save("}, "a shard");
      } else {
        check_throws<std::exception>([&] { saved(net); }, {"gather"}, "net");
      }
    }
    check_throws<ap::InvalidArgument>([&] { saved(model); }, {"model->save("}, "model");
    saved(torch::ones({2}));

    // The way out: files that a plain program reads and goes on with.
    std::ostringstream net_file, optimizer_file;
    const auto state = model->gather_state();
    const auto whole = model->gather_optimizer(optimizer);
    if ((whole != nullptr) != (world.rank() == 0)) throw Failure("the gathered optimizer is on another rank than 0");
    for (int k = 2; k < kSteps; ++k) step(model, optimizer, world.rank());
    if (world.rank() != 0) return;
    torch::save(*whole, optimizer_file);
    Plain again;
    {
      const torch::NoGradGuard no_grad;
      for (auto& item : again.net->named_parameters()) item.value().copy_(state[item.key()]);
    }
    std::istringstream read(optimizer_file.str());
    torch::load(again.optimizer, read);
    for (int k = 2; k < kSteps; ++k) again.step();
    for (std::size_t i = 0; i < again.net->parameters().size(); ++i) {
      check_close(again.net->parameters()[i], plain.net->parameters()[i], kTolerance,
                  "continued, parameter " + std::to_string(i));
    }
  });
}

TEST_CASE("gather_optimizer: gives unsharded state of every optimizer") {
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<Tensor>&)>;
  const auto make = []<class Optimizer, class Options>(Options options) -> Make {
    return
        [options](const std::vector<Tensor>& parameters) { return std::make_unique<Optimizer>(parameters, options); };
  };
  const std::vector<Make> makes{
      make.operator()<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9)),
      make.operator()<torch::optim::Adam>(torch::optim::AdamOptions(0.05).eps(1e-3).amsgrad(true)),
      make.operator()<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.02).eps(1e-3).momentum(0.5).centered(true)),
      make.operator()<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.05).initial_accumulator_value(0.1)),
      make.operator()<ap::optim::LAMB>(ap::optim::LAMBOptions(0.02).eps(1e-3)),
      make.operator()<ap::optim::LARS>(ap::optim::LARSOptions(0.1)),
      make.operator()<ap::optim::AdamW>(torch::optim::AdamWOptions(0.05).eps(1e-3))};
  const DoublePrecision guard;
  torch::set_num_threads(1);
  for (const auto& made_of : makes) {
    const auto reference = made();
    const auto plain = made_of(reference->parameters());
    const auto plain_step = [&] {
      plain->zero_grad();
      loss_of(reference->forward(samples())).backward();
      plain->step();
    };
    plain_step();
    plain_step();
    ap::loopback::run(2, [&](ap::World& world) {
      Model model(world, made(), {.stages = 1, .microbatches = 1, .zero = 2, .replicas = {2}});
      const auto optimizer = made_of(model->parameters());
      model->attach(*optimizer);
      step(model, *optimizer, world.rank());
      step(model, *optimizer, world.rank());
      const auto whole = model->gather_optimizer(*optimizer);
      if (world.rank() != 0) return;
      std::ostringstream file;
      torch::save(*whole, file);
      for (std::size_t i = 0; i < reference->parameters().size(); ++i) {
        const auto want = ap::parameters::state_of(*plain, plain->param_groups()[0].params()[i]);
        const auto got = ap::parameters::state_of(*whole, whole->param_groups()[0].params()[i]);
        if (want.empty() || got.size() != want.size()) throw Failure("a state of another form");
        for (std::size_t k = 0; k < want.size(); ++k) {
          if (got[k].first != want[k].first) throw Failure(got[k].first + " instead of " + want[k].first);
          check_close(got[k].second, want[k].second, kTolerance, want[k].first);
        }
      }
    });
  }
}

}  // namespace owned_test
