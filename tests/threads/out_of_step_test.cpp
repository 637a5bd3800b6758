#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <told.hpp>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

// Ranks whose trainings would drift apart silently.
namespace out_of_step_test {

namespace ap = autopar;
using torch::Tensor;

/// Any even cut leaves parameters on both sides.
struct Net : nets::MeanSquare<nets::Linears> {
  Net() : MeanSquare(4, {{"first", 4}, {"second", 4}, {"third", 4}, {"fourth", 4}}) {}
};

std::shared_ptr<Net> zeros() {
  auto net = std::make_shared<Net>();
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) parameter.fill_(0.1);
  return net;
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
void step(ap::AutoParallel<Net>& model, Optimizer& optimizer, bool steps = true) {
  optimizer.zero_grad();
  model(samples()).backward();
  if (steps) optimizer.step();
}

/// Trains with optimizers that `make(rank, parameters)` gives; rank 1 leaves out its second step if `skips`.
template <class Make>
std::vector<std::string> trained(const Make& make, bool skips, ap::Options options = replicas()) {
  return told(2, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, zeros(), options);
    auto optimizer = make(world.rank(), model->parameters());
    model->attach(optimizer);
    for (int i = 0; i < 4; ++i) step(model, optimizer, !(skips && i == 1 && world.rank() == 1));
  });
}

TEST_CASE("models called in another order: told apart at equal shapes") {
  const auto messages = told(2, [](ap::World& world) {
    ap::AutoParallel<Net> a(world, zeros(), replicas()), b(world, zeros(), replicas());
    a(samples());
    b(samples());
    auto& first = world.rank() == 0 ? a : b;
    first(samples()).backward();
  });
  check_told(messages, {"rank 0", "rank 1", "model 1", "model 2", "Net"});
}

/// Two ranks call a model as `call(model, rank)` does.
template <class Call>
std::vector<std::string> called(const Call& call) {
  return told(2, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, zeros(), replicas());
    call(model, world.rank());
  });
}

TEST_CASE("ranks differing in mode or arguments: error says so in words") {
  const auto check = [](const std::vector<std::string>& messages, const std::string& part) {
    check_told(messages, {part, "all but the batch size must agree"});
    for (const auto& message : messages) CHECK(message.find('\x1f') == std::string::npos);
  };
  check(called([](auto& model, int rank) {
          model->train(rank == 0);
          model(samples());
        }),
        "of forward: rank 0 is in train(), rank 1 in eval();");
  check(called([](auto& model, int rank) {
          if (rank == 1) model->module().layers[2]->eval();
          model(samples());
        }),
        ": module 'third' is in train() on rank 0, in eval() on rank 1;");
  check(called([](auto& model, int rank) { model(rank == 0 ? samples() : samples().to(torch::kDouble)); }),
        ": tensor argument 0 is float32 [4, 4] on rank 0, float64 [4, 4] on rank 1;");
  check(called([](auto& model, int rank) {
          model(rank == 0 ? samples() : torch::ones({2, 5}));
        }),
        ": tensor argument 0 is float32 [4, 4] on rank 0, float32 [2, 5] on rank 1;");
  check(called([](auto& model, int rank) {
          const at::AutoGradMode mode(rank == 0);
          model(samples());
        }),
        ": rank 0 has gradients enabled, rank 1 gradients disabled;");
  check(called([](auto& model, int rank) {
          if (rank == 1) model->module().layers[1]->weight.set_requires_grad(false);
          model(samples());
        }),
        ": parameter 'second.weight' has requires_grad = true on rank 0, requires_grad = false on rank 1;");
  check(called([](auto& model, int rank) {
          if (rank == 0)
            model(samples());
          else
            model->train_step([](const Tensor& y, const Tensor& x) { return y + x.mean(); }, samples(), samples());
        }),
        ": rank 0 calls forward, rank 1 train_step;");
  const auto scaled = [](Net& net, const Tensor& x, double factor) { return net.forward(x * factor); };
  check(called([&](auto& model, int rank) { model->call(scaled, samples(), rank + 0.5); }),
        ": the row of arguments is (tensor, 0.5) on rank 0, (tensor, 1.5) on rank 1;");
}

TEST_CASE("rank leaving out a step: is named") {
  const auto adam = [](int, auto parameters) { return torch::optim::Adam(parameters, 0.01); };
  const auto momentum = [](int, auto parameters) {
    return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
  };
  const auto lamb = [](int, auto parameters) { return ap::optim::LAMB(parameters, ap::optim::LAMBOptions(0.01)); };
  check_told(trained(adam, true), {"rank 0 has stepped", "rank 1 has not stepped"});
  check_told(trained(momentum, true), {"rank 0 has stepped", "rank 1 has not stepped"});
  const auto plain = [](int, auto parameters) { return torch::optim::SGD(parameters, 0.01); };
  check_told(trained(plain, true), {"rank 0 has stepped", "rank 1 has not stepped"});
  for (const auto& options : {replicas(), ap::Options{.stages = 2, .microbatches = 2, .zero = 0}}) {
    CAPTURE(options.stages);
    for (const auto& message : trained(adam, false, options)) CHECK(message.empty());
    for (const auto& message : trained(momentum, false, options)) CHECK(message.empty());
    for (const auto& message : trained(lamb, false, options)) CHECK(message.empty());
    for (const auto& message : trained(plain, false, options)) CHECK(message.empty());
  }
}

TEST_CASE("stage leaving out a step: is named") {
  const ap::Options stages{.stages = 2, .microbatches = 2, .zero = 0};
  const auto adam = [](int, auto parameters) { return torch::optim::Adam(parameters, 0.01); };
  check_told(trained(adam, true, stages), {"rank 0 has stepped", "rank 1 has not stepped", "requires_grad_(false)"});
}

TEST_CASE("step: may skip dropped gradients and frozen stages") {
  for (const bool whole_stage : {false, true}) {
    CAPTURE(whole_stage);
    const auto messages = told(2, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, zeros(), {.stages = 2, .microbatches = 2, .zero = 0});
      torch::optim::Adam optimizer(model->parameters(), 0.01);
      model->attach(optimizer);
      for (int i = 0; i < 4; ++i) {
        auto& net = model->module();
        if (whole_stage) {
          for (auto& parameter : net.layers[2]->parameters()) parameter.set_requires_grad(i % 2 == 0);
          for (auto& parameter : net.layers[3]->parameters()) parameter.set_requires_grad(i % 2 == 0);
        }
        optimizer.zero_grad();
        model(samples()).backward();
        if (!whole_stage && i % 2 == 0) {
          for (auto& parameter : net.layers[3]->parameters()) parameter.mutable_grad().reset();
        }
        optimizer.step();
      }
    });
    for (const auto& message : messages) CHECK(message.empty());
  }
}

TEST_CASE("stateless parameter groups: report nothing about steps") {
  const auto mixed = [](int, auto parameters) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    const auto half = static_cast<std::ptrdiff_t>(parameters.size() / 2);
    groups.emplace_back(std::vector<Tensor>(parameters.begin(), parameters.begin() + half));
    groups.emplace_back(std::vector<Tensor>(parameters.begin() + half, parameters.end()),
                        std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.01).momentum(0.9)));
    return torch::optim::SGD(groups, torch::optim::SGDOptions(0.01));
  };
  for (const auto& options : {replicas(), ap::Options{.stages = 2, .microbatches = 2, .zero = 0}}) {
    for (const auto& message : trained(mixed, false, options)) CHECK(message.empty());
  }
}

TEST_CASE("hyper-parameters differing between ranks: both are named") {
  const auto rates = [](int rank, auto parameters) { return torch::optim::SGD(parameters, rank == 0 ? 0.1 : 0.2); };
  check_told(trained(rates, false), {"rank 0", "rank 1", "lr 0.1", "lr 0.2"});
  const auto betas = [](int rank, auto parameters) {
    return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(0.1).betas({0.9, rank == 0 ? 0.99 : 0.999}));
  };
  check_told(trained(betas, false), {"rank 0", "rank 1", "beta2 0.99"});
}

TEST_CASE("steps left out by all ranks: are allowed") {
  const auto messages = told(2, [](ap::World& world) {
    ap::AutoParallel<Net> model(world, zeros(), {.stages = 2, .microbatches = 2, .zero = 0});
    {
      torch::optim::Adam optimizer(model->parameters(), 0.01);
      model->attach(optimizer);
      step(model, optimizer);
      model(samples()).backward();  // gradients add up
      step(model, optimizer, false);
      {
        const torch::NoGradGuard no_grad;
        model(samples());
      }
      for (auto& parameter : model->module().layers[3]->parameters()) parameter.set_requires_grad(false);
      for (int i = 0; i < 3; ++i) step(model, optimizer);  // one stage has nothing to step
      for (auto& parameter : model->module().layers[3]->parameters()) parameter.set_requires_grad(true);
      for (int i = 0; i < 3; ++i) step(model, optimizer);
    }
    torch::optim::SGD other(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    model->attach(other);
    for (int i = 0; i < 3; ++i) step(model, other);
  });
  for (const auto& message : messages) CHECK(message.empty());
}

TEST_CASE("verify_replicas: finds replicas whose parameters differ") {
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
          model->module().layers[1]->weight.view(-1)[3] += 1;
        }
      }
      step(model, optimizer);
    });
    if (asked)
      check_told(messages, {"verify_replicas", "second.weight", "rank 1", "rank 0"});
    else
      for (const auto& message : messages) CHECK(message.empty());
  }
}

// ---------------------------------------------------------------- what they are told to do

using Model = ap::AutoParallel<Net>;
using Calls = std::function<void(int rank, Model& a, Model& b)>;  ///< that give both models the gradients of one loss

struct WayOut {
  const char* name;
  Calls wrong;
  std::vector<std::string> says;
  Calls right;
};

std::shared_ptr<Net> doubles() {
  auto net = zeros();
  net->to(torch::kDouble);
  return net;
}

/// Has the calls made by two ranks, and the models stepped; they are then those of one process.
std::vector<std::string> told_of(const Calls& calls) {
  const auto plain = doubles();
  torch::optim::SGD plain_optimizer(plain->parameters(), 0.1);
  plain->forward(samples().to(torch::kDouble)).backward();
  plain_optimizer.step();
  return told(2, [&](ap::World& world) {
    Model a(world, doubles(), replicas()), b(world, doubles(), replicas());
    calls(world.rank(), a, b);
    for (auto* model : {&a, &b}) {
      torch::optim::SGD optimizer((*model)->parameters(), 0.1);
      optimizer.step();
      for (const auto& item : plain->named_parameters()) {
        const auto got = (*model)->gather((*model)->named_parameters()[item.key()]);
        if (torch::allclose(got, item.value(), 1e-9, 1e-9)) continue;
        throw std::logic_error(item.key() + " is not that of one process");
      }
    }
  });
}

void train(Model& model, double share = 1) { (model(samples().to(torch::kDouble)) * share).backward(); }

TEST_CASE("ranks following the error's advice: train as one process") {
  const std::vector<WayOut> table{
      {"two models",
       [](int rank, Model& a, Model& b) {
         train(rank == 0 ? a : b);
         train(rank == 0 ? b : a);
       },
       {"every rank must make its models, and call them, in the same order"},
       [](int, Model& a, Model& b) {
         train(a);
         train(b);
       }},
      {"no_sync",
       [](int rank, Model& a, Model& b) {
         train(b);
         if (rank == 0) return train(a);
         const auto guard = a->no_sync();
         train(a);
       },
       {"some ranks are inside no_sync and some are not", "every rank must make the same calls in the same order"},
       [](int, Model& a, Model& b) {
         train(b);
         {
           const auto guard = a->no_sync();
           train(a, 0.25);
         }
         train(a, 0.75);
       }},
      {"members",
       [](int rank, Model& a, Model& b) {
         train(a);
         train(b);
         if (rank == 0)
           static_cast<void>(a->clip_grad_norm_(1e9));
         else
           static_cast<void>(a->gather_state());
       },
       {"every rank must make the same calls in the same order"},
       [](int, Model& a, Model& b) {
         train(a);
         train(b);
         static_cast<void>(a->clip_grad_norm_(1e9));
         static_cast<void>(a->gather_state());
       }},
      {"factors",
       [](int rank, Model& a, Model& b) {
         train(a, rank == 0 ? 1 : 2);
         train(b);
         a(samples().to(torch::kDouble));
       },
       {"every rank must call backward for the same losses with the same factors"},
       [](int, Model& a, Model& b) {
         train(a, 1);
         train(b);
         a(samples().to(torch::kDouble));
       }}};
  for (const auto& way : table) {
    INFO(way.name);
    const auto messages = told_of(way.wrong);
    for (const auto& message : messages) CHECK_FALSE(message.empty());
    check_told(messages, way.says);
    for (const auto& message : told_of(way.right)) CHECK(message.empty());
  }
}

}  // namespace out_of_step_test
