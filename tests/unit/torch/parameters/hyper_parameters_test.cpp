#include "torch/parameters/hyper_parameters.hpp"

#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include <limits>
#include <sstream>

#include <torch/torch.h>
#include <autopar/core/error.hpp>
#include <autopar/runtime/loopback.hpp>
#include <autopar/torch/optim/fused.hpp>
#include <autopar/torch/optim/lamb.hpp>

#include "torch/checkpoint/checkpoint.hpp"

namespace hyper_parameters_test {

using namespace autopar;
namespace optim = torch::optim;
using Tensors = std::vector<at::Tensor>;

/// Two parameters, each in a group of its own.
template <class Options>
std::vector<optim::OptimizerParamGroup> groups_of(const Tensors& tensors, const Options& first, const Options& second) {
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(Tensors{tensors[0]}, std::make_unique<Options>(first));
  groups.emplace_back(Tensors{tensors[1]}, std::make_unique<Options>(second));
  return groups;
}

Tensors two_parameters() {
  return {torch::ones({3}).set_requires_grad(true), torch::ones({2}).set_requires_grad(true)};
}

template <class Optimizer>
void two_steps(Optimizer& optimizer, const Tensors& tensors) {
  for (int k = 0; k < 2; ++k) {
    optimizer.zero_grad();
    for (const auto& tensor : tensors) tensor.pow(3).sum().backward();
    optimizer.step();
  }
}

std::vector<checkpoint::ShardedTensorMetadata> on_rank_0(const Tensors& tensors) {
  std::vector<checkpoint::ShardedTensorMetadata> placed;
  for (std::size_t i = 0; i < tensors.size(); ++i) placed.push_back({"p" + std::to_string(i), tensors[i], {Rank(0)}});
  return placed;
}

/// A checkpoint gives an optimizer of other options exactly what torch::save and torch::load give one.
template <class Optimizer, class Options>
void check_as_torch_does(const Options& first, const Options& second, const Options& other) {
  const TempFolder folder;
  const auto mine = two_parameters(), loaded = two_parameters(), reference = two_parameters();
  Optimizer from(groups_of(mine, first, second), first);
  Optimizer to(groups_of(loaded, other, other), other), as_torch(groups_of(reference, other, other), other);
  const auto& kept = static_cast<const Options&>(to.param_groups()[1].options());
  two_steps(from, mine);
  loopback::run(1, [&](World& world) {
    checkpoint::save_checkpoint(world, single_file(), folder / "state", on_rank_0(mine), {&from}, {});
    (void)checkpoint::load_checkpoint(world, folder / "state", on_rank_0(loaded), {&to});
  });
  std::stringstream archive;
  torch::save(from, archive);
  torch::load(as_torch, archive);
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < mine.size(); ++i) reference[i].copy_(mine[i]);
  }
  CHECK(parameters::hyper_parameters(to) == parameters::hyper_parameters(from));
  CHECK(parameters::hyper_parameters(to) == parameters::hyper_parameters(as_torch));
  CHECK(static_cast<const Options&>(to.param_groups()[0].options()) == first);
  CHECK(static_cast<const Options&>(to.param_groups()[1].options()) == second);
  CHECK(&kept == &to.param_groups()[1].options());
  two_steps(to, loaded);
  two_steps(as_torch, reference);
  two_steps(from, mine);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    CHECK(torch::equal(loaded[i], reference[i]));
    CHECK(torch::equal(loaded[i], mine[i]));
  }
}

TEST_CASE("hyper_parameters: round trip equals torch::optim's archives") {
  const auto sgd = optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01).nesterov(true);
  check_as_torch_does<optim::SGD>(sgd, optim::SGDOptions(0.3).momentum(0.5).dampening(-0.25), optim::SGDOptions(1));
  check_as_torch_does<autopar::optim::SGD>(sgd, optim::SGDOptions(0.3), optim::SGDOptions(1).momentum(0.1));
  const auto adam = optim::AdamOptions(0.1).betas({0.7, 0.9}).eps(1e-3).weight_decay(0.02).amsgrad(true);
  check_as_torch_does<optim::Adam>(adam, optim::AdamOptions(0.01).betas({0.1, 0.2}).amsgrad(true),
                                   optim::AdamOptions(1));
  const auto adamw = optim::AdamWOptions(0.1).betas({0.7, 0.9}).eps(1e-3).weight_decay(0.02).amsgrad(true);
  check_as_torch_does<optim::AdamW>(adamw, optim::AdamWOptions(1.0 / 3), optim::AdamWOptions(1));
  check_as_torch_does<optim::RMSprop>(
      optim::RMSpropOptions(0.1).alpha(0.5).eps(1e-3).weight_decay(0.1).momentum(0.5).centered(true),
      optim::RMSpropOptions(0.2), optim::RMSpropOptions(1));
  check_as_torch_does<optim::Adagrad>(
      optim::AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.1).initial_accumulator_value(0.2).eps(1e-3),
      optim::AdagradOptions(0.2).initial_accumulator_value(0.2),
      optim::AdagradOptions(1).initial_accumulator_value(0.2));
  check_as_torch_does<autopar::optim::LAMB>(
      autopar::optim::LAMBOptions(0.1).betas({0.7, 0.9}).eps(1e-3).weight_decay(0.02), autopar::optim::LAMBOptions(0.2),
      autopar::optim::LAMBOptions(1));
}

TEST_CASE("options_with: invalid options are refused by name") {
  const auto tensors = two_parameters();
  const auto options = optim::SGDOptions(0.1).momentum(0.9).nesterov(true);
  optim::SGD sgd(groups_of(tensors, options, options), options);
  const auto refused = [&](const std::string& part,
                           const std::function<void(std::vector<parameters::HyperParameters>&)>& change) {
    auto values = parameters::hyper_parameters(sgd);
    change(values);
    std::string message;
    try {
      (void)parameters::options_with(sgd, values);
    } catch (const CheckpointError& error) {
      message = error.what();
    }
    CAPTURE(message);
    CHECK(message.find(part) != std::string::npos);
  };
  CHECK_NOTHROW(parameters::options_with(sgd, parameters::hyper_parameters(sgd)));
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(), -1e308, -1e-300}) {
    for (const char* name : {"lr", "momentum", "weight_decay"}) {
      refused(std::string("group 1 of the optimizer: ") + name, [&](auto& values) { values[1][name] = bad; });
    }
  }
  refused("dampening = inf", [](auto& values) { values[0]["dampening"] = std::numeric_limits<double>::infinity(); });
  refused("nesterov = 0.5", [](auto& values) { values[0]["nesterov"] = 0.5; });
  refused("nesterov needs a momentum", [](auto& values) { values[0]["momentum"] = 0; });
  refused("'lr' is missing", [](auto& values) { values[0].erase("lr"); });
  refused("'beta1' is none of its options", [](auto& values) { values[0]["beta1"] = 0.5; });
  refused("has 1 parameter groups, this one 2", [](auto& values) { values.pop_back(); });
  optim::Adam adam(tensors, optim::AdamOptions(0.1));
  auto values = parameters::hyper_parameters(adam);
  values[0]["beta2"] = 1;
  CHECK_THROWS_AS(parameters::options_with(adam, values), CheckpointError);
}

TEST_CASE("save_checkpoint: values that cannot be loaded are not saved") {
  const TempFolder folder;
  loopback::run(2, [&](World& world) {
    const auto tensors = two_parameters();
    optim::SGD sgd(tensors, optim::SGDOptions(0.1));
    checkpoint::save_checkpoint(world, single_file(), folder / "state", on_rank_0(tensors), {&sgd}, {});
    sgd.param_groups()[0].options().set_lr(std::nan(""));
    std::string message;
    try {
      checkpoint::save_checkpoint(world, single_file(), folder / "state", on_rank_0(tensors), {&sgd}, {});
    } catch (const CheckpointError& error) {
      message = error.what();
    }
    const bool names_it = message.find("lr = nan") != std::string::npos;
    (void)checkpoint::load_checkpoint(world, folder / "state", on_rank_0(tensors), {&sgd});
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    CHECK(names_it);
    CHECK(sgd.param_groups()[0].options().get_lr() == 0.1);
  });
}

}  // namespace hyper_parameters_test
