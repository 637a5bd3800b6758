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

// What a program does between steps to parameters, gradients and what it made of them: as in one process under every
// plan, or refused.
namespace numerics_parts_test {

namespace ap = autopar;
namespace nn = torch::nn;
using numerics::check_close;
using numerics::Failure;
using torch::Tensor;

constexpr int kSteps = 3;
constexpr double kTolerance = 1e-12;

struct Net : nets::Linears {
  Net() : Linears(6, {{"wide", 512}, {"head", 5, false}}, torch::relu) {}
  Tensor forward(const Tensor& x, const Tensor& y) { return (Linears::forward(x) - y).pow(2).mean(); }
};

std::shared_ptr<Net> made() { return nets::made<Net>(4); }

Tensor x() { return torch::linspace(-1, 2, 48).sin().view({8, 6}); }
Tensor y() { return torch::linspace(-2, 1, 40).cos().view({8, 5}); }
Tensor mine(const Tensor& whole, int rank, int world) {
  return whole.chunk(world)[static_cast<std::size_t>(rank)].clone();
}

torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.05).momentum(0.9); }

/// What the program does after each step, on the parameters that it owns.
struct Program {
  std::string name;
  std::function<void(const std::vector<Tensor>& owned, std::vector<Tensor>& states)> work;
  bool looks_at_whole = true;  ///< right on whole parameters alone
};

std::vector<Program> programs() {
  using Handles = const std::vector<Tensor>&;
  using States = std::vector<Tensor>&;
  const auto of_each = [](const std::function<void(Tensor)>& work) {
    return [work](Handles owned, States) {
      for (const auto& p : owned) work(p);
    };
  };
  const auto rows = nn::functional::NormalizeFuncOptions().dim(1);
  return {{"normalised rows", of_each([rows](Tensor p) {
             if (p.dim() == 2) p.copy_(nn::functional::normalize(p, rows));
             if (p.dim() == 1) p.div_(p.norm());
           })},
          {"a trust ratio", of_each([](Tensor p) { p.mul_(1 + 0.01 * p.grad().norm() / p.norm()); })},
          {"a projection", of_each([](Tensor p) { p.sub_(p.grad() * (p.grad() * p).sum() * 0.01); })},
          {"a centred gradient", of_each([](Tensor p) { p.sub_(0.1 * (p.grad() - p.grad().mean())); })},
          {"a state that looks back",
           [](Handles owned, States states) {
             if (states.empty())
               for (const auto& p : owned) states.push_back(torch::zeros_like(p));
             for (std::size_t i = 0; i < owned.size(); ++i) {
               states[i].mul_(0.5).add_(owned[i].grad());
               owned[i].sub_(states[i] / (1 + states[i].abs().max()) * 0.01);
             }
           }},
          {"one vector of all",
           [](Handles owned, States) {
             for (const auto& p : owned) {
               const auto flat = torch::cat({p.reshape({-1}), torch::ones({1})});
               p.mul_(1 / (1 + flat.dot(flat)));
             }
           }},
          {"the largest element",
           of_each([](Tensor p) { p.clamp_(-1, 1).div_(1 + std::get<0>(p.view({-1}).topk(1))[0]); })},
          {"clipping of one parameter", of_each([](Tensor p) {
             torch::nn::utils::clip_grad_norm_(std::vector<Tensor>{p}, 0.05);
             p.sub_(p.grad());
           })},
          {"a look at numbers", of_each([](Tensor p) {
             if (!p.isfinite().all().item<bool>()) throw std::runtime_error("not finite");
           })},
          {"decay and clipping by value", of_each([](Tensor p) {
             torch::nn::utils::clip_grad_value_(std::vector<Tensor>{p}, 0.01);
             p.mul_(0.99).sub_(p.grad().sign(), 0.01);
           }),
           false},
          {"a second optimizer of states",
           [](Handles owned, States states) {
             if (states.empty())
               for (const auto& p : owned) states.push_back(torch::zeros_like(p));
             torch::_foreach_mul_(states, 0.9);
             for (std::size_t i = 0; i < owned.size(); ++i) {
               states[i].addcmul_(owned[i].grad(), owned[i].grad(), 0.1);
               owned[i].addcdiv_(owned[i].grad(), states[i].sqrt().add_(1e-3), -0.01);
               owned[i].lerp_(torch::where(owned[i] > 0, owned[i], -owned[i]), 0.125);
             }
           },
           false},
          {"an average swapped in",
           [](Handles owned, States states) {
             if (states.empty())
               for (const auto& p : owned) states.push_back(p.detach().clone());
             for (std::size_t i = 0; i < owned.size(); ++i) {
               states[i].lerp_(owned[i], 0.5);
               const auto kept = owned[i].clone();
               owned[i].copy_(states[i].view_as(owned[i]));
               states[i].copy_(kept.view(kept.sizes()));
             }
           },
           false}};
}

std::vector<Tensor> run_plain(const Program& program) {
  const auto net = made();
  torch::optim::SGD optimizer(net->parameters(), sgd());
  std::vector<Tensor> states;
  for (int k = 0; k < kSteps; ++k) {
    optimizer.zero_grad();
    net->forward(x(), y()).backward();
    optimizer.step();
    const torch::NoGradGuard no_grad;
    program.work(net->parameters(), states);
  }
  return net->parameters();
}

struct Plan {
  const char* name;
  ap::Options options;
  int ranks;
  bool has_parts;
};

std::vector<Plan> plans() {
  const auto of = [](int stages, int zero, int tensor, std::vector<int> replicas) {
    ap::Options options{.stages = stages, .microbatches = 1, .zero = zero, .replicas = std::move(replicas)};
    options.tensor_parallel = tensor;
    return options;
  };
  return {{"replicas", of(1, 0, 1, {2}), 2, false}, {"zero 1", of(1, 1, 1, {2}), 2, true},
          {"zero 2", of(1, 2, 1, {2}), 2, true},    {"zero 3", of(1, 3, 1, {2}), 2, true},
          {"slices", of(1, 0, 2, {1}), 2, true},    {"slices in shards", of(1, 1, 2, {2}), 4, true},
          {"stages", of(2, 0, 1, {1, 1}), 2, false}};
}

void on(const Plan& plan, const std::function<void(ap::World&)>& work) {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  ap::loopback::run(plan.ranks, work);
}

using Model = ap::AutoParallel<Net>;

void step(Model& model, torch::optim::Optimizer& optimizer, ap::World& world) {
  optimizer.zero_grad();
  model(mine(x(), world.rank(), world.size()), mine(y(), world.rank(), world.size())).backward();
  optimizer.step();
}

/// What `work` throws says all of `parts`. @return whether it threw
bool throws_saying(const std::function<void()>& work, const std::vector<std::string>& parts) {
  try {
    work();
  } catch (const ap::InvalidArgument& error) {
    for (const auto& part : parts) {
      if (std::string(error.what()).find(part) == std::string::npos)
        throw Failure("'" + part + "' is not in: " + error.what());
    }
    return true;
  }
  return false;
}

TEST_CASE("whole-parameter operation: equals one process, or throws") {
  for (const auto& program : programs()) {
    std::vector<Tensor> plain, without;
    {
      const DoublePrecision guard;
      plain = run_plain(program);
      without = run_plain({"nothing", [](const auto&, auto&) {}});
    }
    for (const auto& plan : plans()) {
      const auto what = program.name + " under " + plan.name;
      on(plan, [&](ap::World& world) {
        Model model(world, made(), plan.options);
        torch::optim::SGD optimizer(model->parameters(), sgd());
        model->attach(optimizer);
        std::vector<Tensor> states;
        const bool refused = plan.has_parts && program.looks_at_whole;
        for (int k = 0; k < kSteps; ++k) {
          step(model, optimizer, world);
          const torch::NoGradGuard no_grad;
          const auto work = [&] { program.work(model->owned_parameters(), states); };
          if (!throws_saying(work, {"model->gather(p)", "ap::for_whole_parameters(model, fn)"}) && refused)
            throw Failure(what + ": nothing was thrown");
        }
        const auto& expected = refused ? without : plain;
        const auto handles = model->parameters();
        for (std::size_t i = 0; i < handles.size(); ++i)
          check_close(model->gather(handles[i]), expected[i], kTolerance, what + ", parameter " + std::to_string(i));
      });
    }
  }
}

TEST_CASE("RNG on a parameter: throws if several ranks own it") {
  for (const auto& plan : plans()) {
    on(plan, [&](ap::World& world) {
      Model model(world, made(), plan.options);
      torch::optim::SGD optimizer(model->parameters(), sgd());
      model->attach(optimizer);
      step(model, optimizer, world);
      const torch::NoGradGuard no_grad;
      const bool has_stages = plan.options.stages > 1;
      const std::vector<std::pair<std::string, std::function<void(Tensor)>>> draws{
          {"normal_", [](Tensor p) { p.normal_(); }},
          {"randn_like", [](const Tensor& p) { p.add_(torch::randn_like(p), 0.01); }},
          {"of a gradient", [](const Tensor& p) { p.grad().add_(torch::rand_like(p.grad())); }},
          {"dropout", [](const Tensor& p) { p.copy_(torch::dropout(p * 2, 0.5, true)); }},
          {"noise in a state", [](const Tensor& p) { p.add_(torch::zeros_like(p).normal_(0, 0.1)); }},
          {"init", [](Tensor p) { nn::init::uniform_(p); }}};
      for (const auto& [name, draw] : draws) {
        for (const auto& p : model->owned_parameters()) {
          const bool threw =
              throws_saying([&] { draw(p); }, {"draws random numbers", "ap::for_whole_parameters(model, fn)"});
          if (threw == has_stages)
            throw Failure(name + " under " + plan.name + (threw ? " throws" : " does not throw"));
        }
      }
      // Constants are no draws.
      for (const auto& p : model->owned_parameters()) p.add_(torch::ones_like(p)).sub_(torch::full_like(p, 1.0));
    });
  }
}

TEST_CASE("autograd::grad results: are shards as .grad is") {
  for (const auto& plan : plans()) {
    if (!plan.has_parts) continue;
    on(plan, [&](ap::World& world) {
      Model model(world, made(), plan.options);
      torch::optim::SGD optimizer(model->parameters(), sgd());
      model->attach(optimizer);
      step(model, optimizer, world);
      const auto owned = model->owned_parameters();
      for (const auto& p : owned) {
        if (!throws_saying([&] { static_cast<void>(p.grad().norm()); }, {"model->norm(p)"}))
          throw Failure(std::string(plan.name) + ": a gradient's norm is taken of a part");
      }
      const auto loss = model(mine(x(), world.rank(), world.size()), mine(y(), world.rank(), world.size()));
      const auto gradients = torch::autograd::grad({loss}, owned);
      for (std::size_t i = 0; i < owned.size(); ++i) {
        if (!throws_saying([&] { static_cast<void>(gradients[i].sum()); }, {"model->gather(p)"}))
          throw Failure(std::string(plan.name) + ": a sum is taken of a part");
        owned[i].detach().sub_(gradients[i], 0.01);
      }
    });
  }
}

TEST_CASE("unattached optimizer: no sharding, refused where asked for") {
  const Plan any{"any", {}, 2, false};
  on(any, [&](ap::World& world) {
    Model model(world, made());
    model(mine(x(), world.rank(), 2), mine(y(), world.rank(), 2)).backward();
    for (const auto& p : model->owned_parameters()) {
      if (!model->shard(p).whole)
        throw Failure("the planner divides a parameter of an optimizer that it does not know");
      static_cast<void>(p.norm());
    }
  });
  for (const auto& plan : plans()) {
    if (plan.options.tensor_parallel < 2) continue;
    on(plan, [&](ap::World& world) {
      auto options = plan.options;
      options.zero = 0;
      const auto prepared = [&](const ap::Options& given) {
        Model model(world, made(), given);
        model->prepare(mine(x(), world.rank(), world.size()), mine(y(), world.rank(), world.size()));
        return model;
      };
      if (!throws_saying([&] { prepared(options); },
                         {"tensor_parallel = 2", "model->attach(optimizer)", "inference = true"}))
        throw Failure("slices are made without an optimizer");
      // The ways out.
      options.inference = true;
      if (prepared(options)->plan().stages[0].mesh.tensor() != 2) throw Failure("inference has no slices");
      options.inference = false;
      options.tensor_parallel = 1;
      prepared(options);
    });
  }
}

// ---------------------------------------------------------------- what another rank, or another model, has

TEST_CASE("placeholder parameter: any read names it, owner and remedy") {
  const auto stages = plans().back();
  for (const bool recorded : {false, true}) {
    on(stages, [&](ap::World& world) {
      auto model = recorded ? Model(
                                  world, [] { return std::make_shared<Net>(); }, stages.options)
                            : Model(world, made(), stages.options);
      torch::optim::SGD optimizer(model->parameters(), sgd());
      model->attach(optimizer);
      step(model, optimizer, world);
      const torch::NoGradGuard no_grad;
      int absent = 0;
      for (const auto& item : model->named_parameters()) {
        const auto p = item.value();
        if (model->owns(p)) continue;
        ++absent;
        const std::vector<std::function<void()>> reads{[&] { static_cast<void>(p.view({-1}).sum().item<double>()); },
                                                       [&] {
                                                         static_cast<void>(torch::cat({p, p}));
                                                       },
                                                       [&] { static_cast<void>(p.norm().item<double>()); },
                                                       [&] { static_cast<void>(p.select(0, 0)); },
                                                       [&] { static_cast<void>(p.abs().max().item<double>()); },
                                                       [&] { static_cast<void>(p.clone()); },
                                                       [&] { p.mul_(2); },
                                                       [&] { p.copy_(torch::zeros(p.sizes())); }};
        for (std::size_t i = 0; i < reads.size(); ++i) {
          if (!throws_saying(reads[i], {"'" + item.key() + "'", "lives on rank " + std::to_string(1 - world.rank()),
                                        "model->gather(p)", "ap::for_whole_parameters(model, fn)", "model->owns(p)"}))
            throw Failure("read " + std::to_string(i) + " of '" + item.key() + "' does not throw");
        }
      }
      if (absent == 0) throw Failure("every rank has every parameter");
      // The ways out.
      for (const auto& p : model->parameters()) {
        if (model->gather(p).norm().item<double>() == 0) throw Failure("a gathered parameter is zero");
        if (model->owns(p)) p.mul_(0.5);
      }
    });
  }
}

struct Trunk : nets::Linears {
  Trunk() : Linears(6, {{"linear", 512}}) {}
};

struct Branch : nn::Module {
  explicit Branch(std::shared_ptr<Trunk> shared) : trunk(std::move(shared)) {
    nets::register_all(*this, "trunk", trunk, "head", head);
  }
  Tensor forward(const Tensor& x) { return head(torch::relu(trunk->forward(x))).pow(2).mean(); }
  std::shared_ptr<Trunk> trunk;
  nn::Linear head{nn::LinearOptions(512, 5).bias(false)};
};

/// Reads a parameter that it has not registered.
struct Reader : nets::Linears {
  explicit Reader(Tensor shared) : Linears(6, {{"head", 512}}), other(std::move(shared)) {}
  Tensor forward(const Tensor& x) { return (Linears::forward(x) * other).pow(2).mean(); }
  Tensor other;
};

TEST_CASE("parameter of two models: works unsharded, else is diagnosed") {
  for (const auto& plan : plans()) {
    for (const bool first_divides : {true, false}) {
      on(plan, [&](ap::World& world) {
        const auto trunk = nets::made<Trunk>(4);
        auto replicated = plan.options;
        replicated.stages = 1, replicated.zero = 0, replicated.tensor_parallel = 1,
        replicated.replicas = {world.size()};
        ap::AutoParallel<Branch> first(world, std::make_shared<Branch>(trunk),
                                       first_divides ? plan.options : replicated);
        ap::AutoParallel<Branch> second(world, std::make_shared<Branch>(trunk),
                                        first_divides ? replicated : plan.options);
        torch::optim::SGD optimizer(first->parameters(), sgd()), other(second->parameters(), sgd());
        first->attach(optimizer);
        second->attach(other);
        const auto batch = mine(x(), world.rank(), world.size());
        first(batch).backward();
        const bool divides = plan.has_parts || plan.options.stages > 1;
        const bool threw = throws_saying([&] { second(batch).backward(); },
                                         {"'trunk.linear.", "another AutoParallel model", "zero = 0"});
        if (threw != divides) throw Failure(std::string(plan.name) + (threw ? ": refused" : ": not refused"));
      });
    }
  }
}

TEST_CASE("forward on another model's shard: refused, gathered is fine") {
  for (const auto& plan : plans()) {
    if (!plan.has_parts) continue;
    on(plan, [&](ap::World& world) {
      Model model(world, made(), plan.options);
      torch::optim::SGD optimizer(model->parameters(), sgd());
      model->attach(optimizer);
      step(model, optimizer, world);
      const auto bias = model->module().layers[0]->bias;
      ap::AutoParallel<Reader> reader(world, std::make_shared<Reader>(bias.detach()),
                                      {.stages = 1, .zero = 0, .replicas = {world.size()}});
      const torch::NoGradGuard no_grad;
      if (!throws_saying([&] { reader(mine(x(), world.rank(), world.size())); }, {"'wide.bias'", "model->gather(p)"}))
        throw Failure(std::string(plan.name) + ": a part was taken for a constant");
    });
  }
}

}  // namespace numerics_parts_test
