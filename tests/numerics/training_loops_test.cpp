#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// What training loops do besides forward, backward and step: each works as in one process, or is refused by name.
namespace training_loops_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace optim = torch::optim;
using numerics::check_close;
using numerics::Failure;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr double kTolerance = 1e-12;

struct Net : nn::Module {
  Net() { nets::register_all(*this, "first", first, "second", second, "norm", norm, "unused", unused, "head", head); }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto hidden = torch::tanh(second(torch::tanh(first(x))));
    return nn::functional::mse_loss(head(norm(hidden)), y);
  }
  nn::Linear first{4, 6}, second{6, 6}, unused{3, 3}, head{6, 2};
  nn::LayerNorm norm{nn::LayerNormOptions({6})};
};

std::shared_ptr<Net> make_net() { return nets::made<Net>(12); }

Tensors of(const std::vector<const nn::Module*>& modules) {
  Tensors all;
  for (const auto* module : modules) {
    for (const auto& parameter : module->parameters()) all.push_back(parameter);
  }
  return all;
}

/// What a user keeps beside the model.
struct Training {
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
  std::function<void(int step)> after_backward = [](int) {};
  std::function<void(int step)> after_step = [](int) {};
  bool set_to_none = true;
};

enum class Made { kBeforeWrapping, kAfterWrapping, kAfterFirstCall };

/// A training loop: the same code for the plain module and for the wrapped one, whose handles are the module's.
struct Loop {
  std::string name;
  std::function<Training(Net&)> make;
  Made made = Made::kAfterWrapping;
  std::function<void(Net&)> before_wrapping = [](Net&) {};
  std::vector<int64_t> batches{8, 8, 8, 8};  ///< of each step, over all ranks
};

template <class Optimizer, class Options>
Training one(const Tensors& parameters, Options options) {
  Training training;
  training.optimizers.push_back(std::make_unique<Optimizer>(parameters, options));
  return training;
}

template <class Optimizer, class Options>
Training with_groups(Net& net, const Options& own, const Options& defaults) {
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(of({net.first.get(), net.norm.get()}), std::make_unique<Options>(own));
  groups.emplace_back(of({net.second.get(), net.unused.get(), net.head.get()}));
  Training training;
  training.optimizers.push_back(std::make_unique<Optimizer>(groups, defaults));
  return training;
}

/// Halves rates every second step.
Training scheduled(Training training) {
  const auto schedule = std::make_shared<optim::StepLR>(*training.optimizers.front(), 2, 0.5);
  training.after_step = [schedule](int) { schedule->step(); };
  return training;
}

const auto kSgd = optim::SGDOptions(0.1).momentum(0.9);
const auto kAdamW = optim::AdamWOptions(0.02).eps(1e-3);
const auto kLamb = ap::optim::LAMBOptions(0.02).eps(1e-3);

Training frozen_for_a_while(Net& net) {
  auto training = one<optim::SGD>(net.parameters(), kSgd);
  training.after_step = [&net](int step) {
    if (step == 1 || step == 3) net.second->weight.requires_grad_(step == 3);
  };
  return training;
}

Training two_optimizers(Net& net) {
  auto training = one<optim::SGD>(of({net.first.get(), net.second.get()}), kSgd);
  training.optimizers.push_back(
      std::make_unique<optim::AdamW>(of({net.norm.get(), net.head.get(), net.unused.get()}), kAdamW));
  return training;
}

Training group_added_later(Net& net) {
  auto training = one<optim::AdamW>(net.head->parameters(), kAdamW);
  training.after_step = [&net, optimizer = training.optimizers.front().get()](int step) {
    if (step == 1) optimizer->add_param_group(optim::OptimizerParamGroup(of({net.first.get(), net.norm.get()})));
  };
  return training;
}

Training rates_by_hand(Net& net) {
  auto training = with_groups<optim::SGD>(net, optim::SGDOptions(0.02), kSgd);
  training.after_step = [optimizer = training.optimizers.front().get()](int step) {
    optimizer->param_groups()[0].options().set_lr(0.3 / (step + 2));
    static_cast<optim::SGDOptions&>(optimizer->param_groups()[1].options()).momentum(0.5).weight_decay(0.01);
  };
  return training;
}

Training gradients_changed(Net& net) {
  auto training = one<optim::SGD>(net.parameters(), kSgd);
  training.after_backward = [&net](int) {
    for (const auto& parameter : net.parameters()) {
      if (parameter.grad().defined()) parameter.mutable_grad().mul_(0.25).clamp_(-0.5, 0.5);
    }
  };
  return training;
}

Training gradients_kept_as_zeros(Net& net) {
  auto training = one<optim::AdamW>(net.parameters(), kAdamW);
  training.set_to_none = false;
  return training;
}

std::vector<Loop> loops() {
  const auto sgd = [](Net& net) { return one<optim::SGD>(net.parameters(), kSgd); };
  const auto adamw = [](Net& net) { return one<optim::AdamW>(net.parameters(), kAdamW); };
  const auto freeze = [](Net& net) {
    net.first->weight.requires_grad_(false);
    net.norm->bias.requires_grad_(false);
  };
  const auto nothing = [](Net&) {};
  return {
      {"an optimizer made before wrapping", sgd, Made::kBeforeWrapping},
      {"an optimizer made after wrapping", adamw},
      {"an optimizer made after the first call", adamw, Made::kAfterFirstCall},
      {"groups with options of their own",
       [](Net& net) { return with_groups<optim::SGD>(net, optim::SGDOptions(0.03).weight_decay(0.1), kSgd); }},
      {"groups with options of their own, before wrapping",
       [](Net& net) {
         const auto own = optim::AdamWOptions(0.01).betas({0.5, 0.9}).amsgrad(true).eps(1e-2);
         return with_groups<optim::AdamW>(net, own, kAdamW);
       },
       Made::kBeforeWrapping},
      {"two optimizers", two_optimizers},
      {"frozen parameters", sgd, Made::kAfterWrapping, freeze},
      {"frozen parameters, an optimizer made before", adamw, Made::kBeforeWrapping, freeze},
      {"a parameter frozen for a while", frozen_for_a_while, Made::kAfterWrapping, nothing, {8, 8, 8, 8, 8, 8}},
      {"parameters in no optimizer", [](Net& net) { return one<optim::SGD>(net.head->parameters(), kSgd); }},
      {"no optimizer at all", [](Net&) { return Training(); }},
      {"a group added later", group_added_later},
      {"a schedule of rates", [=](Net& net) { return scheduled(sgd(net)); }},
      {"options set by hand", rates_by_hand},
      {"batches of other sizes", adamw, Made::kAfterWrapping, nothing, {8, 5, 1, 13, 2, 8}},
      {"gradients changed by hand", gradients_changed},
      {"gradients set to zero, not to none", gradients_kept_as_zeros},
      {"multi-tensor SGD", [](Net& net) { return scheduled(one<ap::optim::SGD>(net.parameters(), kSgd)); }},
      {"multi-tensor AdamW, before wrapping",
       [](Net& net) {
         return with_groups<ap::optim::AdamW>(net, optim::AdamWOptions(0.01).weight_decay(0.2).eps(1e-2), kAdamW);
       },
       Made::kBeforeWrapping},
      {"LAMB",
       [](Net& net) {
         return scheduled(with_groups<ap::optim::LAMB>(net, ap::optim::LAMBOptions(0.01).weight_decay(0), kLamb));
       }},
  };
}

/// One step of either kind of model.
template <class Call>
Tensor train_step(Training& training, nn::Module& module, int step, const Call& call) {
  module.zero_grad(training.set_to_none);
  const auto loss = call();
  loss.backward();
  training.after_backward(step);
  for (auto& optimizer : training.optimizers) optimizer->step();
  training.after_step(step);
  return loss.detach();
}

struct Batch {
  Tensor x, y;
};

std::vector<Batch> batches_of(const Loop& loop) {
  const std::lock_guard lock(numerics::generator_mutex());
  torch::manual_seed(99);
  std::vector<Batch> batches;
  for (const auto samples : loop.batches) batches.push_back({torch::randn({samples, 4}), torch::randn({samples, 2})});
  return batches;
}

/// Almost even shares, the first ranks have one sample more; some may be empty.
Tensor mine(const Tensor& whole, const ap::World& world) {
  const auto parts = whole.tensor_split(world.size());
  return parts[static_cast<size_t>(world.rank())].clone();
}

void compare(ap::World& world, const ap::Options& options, const Loop& loop) {
  const auto batches = batches_of(loop);
  const auto plain = make_net();
  loop.before_wrapping(*plain);
  auto reference = loop.make(*plain);

  const auto net = make_net();
  loop.before_wrapping(*net);
  Training training;
  if (loop.made == Made::kBeforeWrapping) training = loop.make(*net);
  ap::AutoParallel<Net> model(world, net, options);
  if (loop.made == Made::kAfterWrapping) {
    training = loop.make(model->module());
    for (auto& optimizer : training.optimizers) model->attach(*optimizer);
  }
  if (loop.made == Made::kAfterFirstCall) {
    const torch::NoGradGuard no_grad;
    (void)model(mine(batches[0].x, world), mine(batches[0].y, world));
    training = loop.make(model->module());
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    const auto& [x, y] = batches[i];
    const auto step = static_cast<int>(i);
    const auto wanted = train_step(reference, *plain, step, [&, &x = x, &y = y] { return plain->forward(x, y); });
    const auto call = [&, &x = x, &y = y] { return model(mine(x, world), mine(y, world)); };
    const auto got = train_step(training, *model, step, call);
    const auto when = loop.name + ", step " + std::to_string(i);
    check_close(got, wanted, kTolerance, when + ", loss");
    const auto expected = plain->named_parameters();
    for (const auto& item : model->named_parameters()) {
      if (!model->owns(item.value())) continue;
      const auto shard = model->shard(item.value());
      const auto& whole = expected[item.key()];
      check_close(item.value(), numerics::held_part(whole, shard), kTolerance, when + ", " + item.key());
      check_close(item.value().grad(), numerics::held_part(whole.grad(), shard), kTolerance,
                  when + ", gradient of " + item.key());
    }
  }
}

struct World {
  int ranks;
  ap::Options options;
};

std::vector<World> worlds() {
  return {{1, {}},
          {2, {.stages = 2, .microbatches = 3, .replicas = {1, 1}}},
          {2, {.stages = 1, .microbatches = 2, .replicas = {2}}},
          {3, {.stages = 2, .microbatches = 2, .replicas = {2, 1}}}};
}

TEST_CASE("common training loops: equal one process") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  for (const auto& loop : loops()) {
    for (const auto& [ranks, options] : worlds()) {
      INFO(loop.name << ", " << ranks << " ranks, " << options.stages << " stages");
      const auto body = [&, &options = options](ap::World& world) { compare(world, options, loop); };
      CHECK_NOTHROW(ap::loopback::run(ranks, body));
    }
  }
}

TEST_CASE("square weight given transposed memory: is read so") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const Loop loop{"transposed", [](Net& net) {
                    auto training = one<optim::SGD>(net.parameters(), optim::SGDOptions(0.1));
                    training.after_step = [&net](int step) {
                      if (step == 1) net.second->weight.set_data(net.second->weight.detach().t());
                    };
                    return training;
                  }};
  ap::loopback::run(1, [&](ap::World& world) { compare(world, {}, loop); });
}

// ---------------------------------------------------------------- refused by name

/// What rank 0 meets; empty = nothing.
std::string message_of(int ranks, const std::function<void(ap::World&)>& body) {
  try {
    ap::loopback::run(ranks, body);
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

struct SparseNet : nn::Module {
  explicit SparseNet(bool bag) {
    words = register_module("words", nn::Embedding(nn::EmbeddingOptions(10, 4).sparse(!bag)));
    bags = register_module("bags", nn::EmbeddingBag(nn::EmbeddingBagOptions(10, 4).sparse(bag).mode(torch::kSum)));
  }
  Tensor forward(const Tensor& tokens) { return words(tokens).sum() + bags(tokens).sum(); }
  nn::Embedding words{nullptr};
  nn::EmbeddingBag bags{nullptr};
};

TEST_CASE("sparse gradients: refused, naming the layer") {
  for (const bool bag : {false, true}) {
    for (const int ranks : {1, 2}) {
      const auto message = message_of(ranks, [&](ap::World& world) {
        ap::AutoParallel<SparseNet> model(world, SparseNet(bag));
        model(torch::zeros({4, 3}, torch::kLong)).backward();
      });
      CAPTURE(message);
      CHECK(message.find("sparse") != std::string::npos);
      CHECK(message.find(bag ? "bags" : "words") != std::string::npos);
      CHECK(message.find("sparse = false") != std::string::npos);
    }
  }
}

TEST_CASE("attach: optimizer that needs whole parameters is refused") {
  const DoublePrecision guard;
  for (const int ranks : {1, 2}) {
    const auto message = message_of(ranks, [](ap::World& world) {
      ap::AutoParallel<Net> model(world, make_net());
      optim::LBFGS optimizer(model->parameters());
      model->attach(optimizer);
    });
    CAPTURE(message);
    CHECK(message.find("LBFGS") != std::string::npos);
    CHECK(message.find("use autopar::optim::LBFGS") != std::string::npos);
  }
}

// ---------------------------------------------------------------- losses that are no numbers

TEST_CASE("NaN or infinite loss: is returned and reported with its step") {
  const DoublePrecision guard;
  for (const auto& [ranks, options] : worlds()) {
    std::mutex mutex;
    std::vector<std::string> lines;
    std::string wrong;
    CHECK_NOTHROW(ap::loopback::run(ranks, [&, &options = options](ap::World& world) {
      world.log().set_writer([&](const std::string& line) {
        const std::lock_guard lock(mutex);
        if (line.find("the loss is") != std::string::npos) lines.push_back(line);
      });
      ap::AutoParallel<Net> model(world, make_net(), options);
      optim::SGD optimizer(model->parameters(), 0.1);
      const auto x = torch::ones({8, 4});
      for (int step = 1; step <= 4; ++step) {
        optimizer.zero_grad();
        auto y = torch::ones({8, 2});
        if (step == 2) y[5][1] = std::numeric_limits<double>::infinity();
        if (step == 3) y[0][0] = std::numeric_limits<double>::quiet_NaN();
        const auto loss = model(mine(x, world), mine(y, world));
        loss.backward();
        const bool expected = step == 2   ? loss.isinf().item<bool>()
                              : step == 3 ? loss.isnan().item<bool>()
                                          : loss.isfinite().item<bool>();
        if (!expected) throw Failure("step " + std::to_string(step) + ": the loss is hidden");
        for (const auto& parameter : model->owned_parameters()) {
          if (step == 3 && parameter.grad().defined() && !parameter.grad().isnan().any().item<bool>()) {
            throw Failure("gradients of a NaN are hidden");
          }
        }
        if (step == 1 || step == 4) optimizer.step();
      }
      if (model->stats().losses_not_finite != 2) throw Failure("stats() do not count losses that are not finite");
    }));
    REQUIRE(lines.size() == 2);  // of rank 0 alone
    CHECK(lines[0].find("step 2 ") != std::string::npos);
    CHECK(lines[0].find("inf") != std::string::npos);
    CHECK(lines[1].find("step 3 ") != std::string::npos);
    CHECK(lines[1].find("nan") != std::string::npos);
  }
}

}  // namespace training_loops_test
