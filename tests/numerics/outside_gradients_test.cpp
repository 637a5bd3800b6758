#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>
#include <says.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Gradients that a program brings to parameters beside the model: terms of parameters, which all ranks add alike, and
// forwards of the unwrapped module, which are of one rank's samples.
namespace outside_gradients_test {

namespace ap = autopar;
namespace nn = torch::nn;
using numerics::check_close;
using numerics::share_of;
using torch::Tensor;

constexpr double kTolerance = 1e-12;

struct Net : nn::Module {
  Net() {
    nets::register_all(*this, "words", words, "first", first, "norm", norm, "second", second, "third", third);
    scale = register_parameter("scale", torch::linspace(0.5, 1.5, 8));
  }
  Tensor features(const Tensor& x) { return torch::tanh(norm(first(x))) * scale; }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto ids = (x.select(1, 0) > 0).to(torch::kLong);
    return torch::mse_loss(third(torch::tanh(second(features(x) + words(ids)))), y);
  }
  nn::Embedding words{2, 8};
  nn::Linear first{6, 8}, second{8, 8}, third{nn::LinearOptions(8, 5).bias(false)};
  nn::LayerNorm norm{nn::LayerNormOptions({8})};
  Tensor scale;
};

std::shared_ptr<Net> made() { return nets::made<Net>(3); }

struct Samples {
  Tensor x, y;
};
Samples samples() {
  const std::lock_guard lock(numerics::generator_mutex());
  torch::manual_seed(4);
  return {torch::randn({8, 6}), torch::randn({8, 5})};
}
const std::vector<std::int64_t> kLocal{5, 3};

ap::Options replicas() { return {.stages = 1, .microbatches = 2, .zero = 0, .replicas = {2}}; }
ap::Options stages() { return {.stages = 2, .microbatches = 2, .zero = 0}; }

// ---------------------------------------------------------------- what all ranks add alike

/// One side of a comparison: the parameters that it has, by name, and its losses.
struct Side {
  std::vector<std::pair<std::string, Tensor>> parameters;
  std::function<Tensor(double shift)> loss;  ///< against targets that are shifted
};

/// Gives `.grad` of a step.
struct Program {
  const char* name;
  std::function<void(const Side&)> backward;
};

Tensor term_of(const Side& side, const std::function<Tensor(const std::string&, const Tensor&)>& term) {
  auto sum = torch::zeros({});
  for (const auto& [name, parameter] : side.parameters) sum = sum + term(name, parameter);
  return sum;
}

/// The loss, and a term of each parameter beside it.
std::function<void(const Side&)> with_term(const std::function<Tensor(const std::string&, const Tensor&)>& term,
                                           bool apart = false) {
  return [term, apart](const Side& side) {
    const auto penalty = 0.1 * term_of(side, term);
    if (!apart) return (side.loss(0) + penalty).backward();
    side.loss(0).backward();
    penalty.backward();
  };
}

Tensor earlier(const Tensor& parameter) {
  return torch::linspace(-1, 1, parameter.numel()).sin().view(parameter.sizes());
}

Tensor matrix_of(const Tensor& parameter) { return parameter.view({parameter.size(0), -1}); }

void each_gradient(const Side& side, const std::function<Tensor(const Tensor&)>& change) {
  side.loss(0).backward();
  for (auto [name, parameter] : side.parameters) {
    if (parameter.grad().defined()) parameter.mutable_grad() = change(parameter.grad());
  }
}

/// Of each parameter apart, as what one rank holds of a stage is all that it sees.
void project_conflicts(const Side& side) {
  std::vector<std::vector<Tensor>> of_task(2);
  for (std::size_t task = 0; task < 2; ++task) {
    for (auto [name, parameter] : side.parameters) parameter.mutable_grad() = Tensor();
    side.loss(3.0 * static_cast<double>(task)).backward();
    for (const auto& [name, parameter] : side.parameters) of_task[task].push_back(parameter.grad().clone());
  }
  for (std::size_t i = 0; i < side.parameters.size(); ++i) {
    const auto &a = of_task[0][i], &b = of_task[1][i];
    const auto dot = (a * b).sum();
    const auto projected = torch::where(dot < 0, a - b * dot / (b * b).sum().clamp_min(1e-12), a);
    auto parameter = side.parameters[i].second;
    parameter.mutable_grad() = projected + b;
  }
}

std::vector<Program> legal_programs() {
  const auto square = [](const std::string&, const Tensor& p) { return p.pow(2).sum(); };
  const auto to_start = [](const std::string&, const Tensor& p) { return (p - earlier(p)).pow(2).sum(); };
  const auto fisher = [](const std::string&, const Tensor& p) {
    return (earlier(p).abs() * (p - 0.5).pow(2)).sum() / 2;
  };
  const auto orthogonal = [](const std::string&, const Tensor& p) {
    const auto w = matrix_of(p);
    return (w.mm(w.t()) - torch::eye(w.size(0))).pow(2).sum();
  };
  const auto lasso = [](const std::string&, const Tensor& p) {
    return (matrix_of(p).pow(2).sum(1) + 1e-3).sqrt().sum();
  };
  const auto spectral = [](const std::string&, const Tensor& p) {
    const auto w = matrix_of(p);
    const auto v = torch::ones({w.size(1), 1}), u = w.detach().mm(v) / (w.detach().mm(v).norm() + 1e-3);
    return u.t().mm(w).mm(v).sum() + u.squeeze(1).dot(w.mv(v.squeeze(1)));
  };
  const auto smooth = [](const std::string&, const Tensor& p) {  // a constant matrix that keeps the sizes
    const auto w = matrix_of(p), chain = 2 * torch::eye(w.size(0));
    return w.t().mm(chain.mm(w)).diagonal().sum();
  };
  const auto clusters = [](const std::string&, const Tensor& p) {
    return (p.unsqueeze(-1) - torch::tensor({-1.0, 0.0, 1.0})).pow(2).prod(-1).sum();
  };
  return {
      {"weight decay in the loss", with_term(square)},
      {"weight decay beside the loss", with_term(square, true)},
      {"a distance to earlier values", with_term(to_start)},
      {"a distance weighted by constants", with_term(fisher, true)},
      {"orthogonal rows", with_term(orthogonal)},
      {"groups of rows", with_term(lasso)},
      {"the largest singular value", with_term(spectral)},
      {"a constant operator", with_term(smooth)},
      {"clusters of values", with_term(clusters)},
      {"projected conflicts", project_conflicts},
      {"clipping by value",
       [](const Side& side) { each_gradient(side, [](const Tensor& g) { return g.clamp(-1e-2, 1e-2); }); }},
      {"clipping by value in place",
       [](const Side& side) {
         side.loss(0).backward();
         std::vector<Tensor> all;
         for (const auto& [name, parameter] : side.parameters) all.push_back(parameter);
         nn::utils::clip_grad_value_(all, 1e-2);
       }},
      {"signs", [](const Side& side) { each_gradient(side, [](const Tensor& g) { return g.sign(); }); }},
      {"named gradients",
       [](const Side& side) {
         std::vector<Tensor> all;
         for (const auto& [name, parameter] : side.parameters) all.push_back(parameter);
         const auto given = torch::autograd::grad({side.loss(0)}, all);
         for (std::size_t i = 0; i < all.size(); ++i) all[i].mutable_grad() = given[i] * 2;
       }},
  };
}

constexpr int kSteps = 3;

template <class Parameters>
void train(const Side& side, const Program& program, Parameters parameters) {
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.02).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    program.backward(side);
    optimizer.step();
  }
}

TEST_CASE("penalty terms and changed gradients: equal one process") {
  const DoublePrecision fp64;
  const auto [x, y] = samples();
  for (const auto& program : legal_programs()) {
    INFO(program.name);
    const auto reference = made();
    Side whole{{}, [&, &x = x, &y = y](double shift) { return reference->forward(x, y + shift); }};
    for (const auto& item : reference->named_parameters()) whole.parameters.emplace_back(item.key(), item.value());
    train(whole, program, reference->parameters());
    for (const auto& options : {replicas(), stages()}) {
      INFO(options.stages << " stages");
      CHECK_NOTHROW(ap::loopback::run(2, [&, &x = x, &y = y](ap::World& world) {
        ap::AutoParallel<Net> model(world, made(), options);
        const auto own_x = share_of(x, 0, kLocal, world.rank()), own_y = share_of(y, 0, kLocal, world.rank());
        model->prepare(own_x, own_y);
        Side own{{}, [&](double shift) { return model(own_x, own_y + shift); }};
        for (const auto& item : model->named_parameters()) {
          if (model->owns(item.value())) own.parameters.emplace_back(item.key(), item.value());
        }
        train(own, program, model->parameters());
        model(own_x, own_y);  // compares what the last step did
        for (const auto& item : reference->named_parameters()) {
          const auto got = model->gather(model->named_parameters()[item.key()]);
          check_close(got, item.value(), kTolerance, item.key());
        }
      }));
    }
  }
}

// ---------------------------------------------------------------- what one rank has alone

using Model = ap::AutoParallel<Net>;

struct Forward {
  const char* name;
  std::function<void(Model&, const Samples&)> backward;
};

void freeze_body(Model& model, bool on) {
  for (const auto& item : model->named_parameters()) {
    if (item.key() != "third.weight") item.value().set_requires_grad(!on);
  }
}

std::vector<Forward> unwrapped_forwards() {
  return {
      {"forward", [](Model& model, const Samples& own) { model->module().forward(own.x, own.y).backward(); }},
      {"another method", [](Model& model, const Samples& own) { model->module().features(own.x).mean().backward(); }},
      {"a part", [](Model& model, const Samples& own) { model->module().first(own.x).pow(2).sum().backward(); }},
      {"without a bias",
       [](Model& model, const Samples& own) {
         model->module().third(torch::cat({own.x, own.x}, 1).slice(1, 0, 8)).sum().backward();
       }},
      {"rows of a table",
       [](Model& model, const Samples& own) {
         model->module().words((own.x.select(1, 1) > 0).to(torch::kLong)).pow(2).sum().backward();
       }},
      {"a norm",
       [](Model& model, const Samples& own) {
         model->module().norm(torch::cat({own.x, own.x}, 1).slice(1, 0, 8)).pow(2).sum().backward();
       }},
      {"a factor by features",
       [](Model& model, const Samples& own) {
         (torch::cat({own.x, own.x}, 1).slice(1, 0, 8) * model->module().scale).pow(2).sum().backward();
       }},
      {"distances",
       [](Model& model, const Samples& own) {
         const auto x = torch::cat({own.x, own.x}, 1).slice(1, 0, 8);
         torch::cdist(x, model->module().words->weight).sum().backward();
       }},
      {"a term of the loss",
       [](Model& model, const Samples& own) {
         (model(own.x, own.y) + 0.1 * model->module().features(own.x).mean()).backward();
       }},
      {"named gradients",
       [](Model& model, const Samples& own) {
         static_cast<void>(torch::autograd::grad({model->module().features(own.x).mean()}, {model->module().scale}));
       }},
      {"arguments of the model",
       [](Model& model, const Samples& own) { model(own.x * model->module().scale.slice(0, 0, 6), own.y).backward(); }},
      {"a frozen body", [](Model& model, const Samples& own) {
         freeze_body(model, true);
         const auto message = said_by([&] { model->module().forward(own.x, own.y).backward(); });
         freeze_body(model, false);
         if (!message.empty()) throw ap::InvalidArgument(message);
       }}};
}

TEST_CASE("unwrapped backward: is refused at once, remedies work") {
  const DoublePrecision fp64;
  const auto [x, y] = samples();
  const auto reference = made();
  torch::optim::SGD plain(reference->parameters(), 0.1);
  reference->forward(x, y).backward();
  reference->features(x).pow(2).sum().backward();
  plain.step();
  const auto evaluated = reference->features(x).detach();
  CHECK_NOTHROW(ap::loopback::run(2, [&, &x = x, &y = y](ap::World& world) {
    Model model(world, made(), replicas());
    const Samples own{share_of(x, 0, kLocal, world.rank()).clone(), share_of(y, 0, kLocal, world.rank()).clone()};
    model->prepare(own.x, own.y);
    for (const auto& forward : unwrapped_forwards()) {
      try {
        check_says(
            {"parameter '", "outside of the model", "model(x)", "model->call(&Net::method, x)", "torch::NoGradGuard"},
            [&] { forward.backward(model, own); });
      } catch (const std::logic_error& error) {
        throw numerics::Failure(std::string(forward.name) + ": " + error.what());
      }
      model->zero_grad();
    }
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    model(own.x, own.y).backward();
    model->call(&Net::features, own.x).pow(2).sum().backward();
    optimizer.step();
    for (const auto& item : reference->named_parameters())
      check_close(model->named_parameters()[item.key()], item.value(), kTolerance, item.key());
    const torch::NoGradGuard no_grad;
    check_close(model->module().features(own.x), share_of(evaluated, 0, kLocal, world.rank()), kTolerance,
                "evaluation by the module");
  }));
}

TEST_CASE("unwrapped submodule: backward refused, shards run no forward") {
  const DoublePrecision fp64;
  const auto [x, y] = samples();
  const auto parts = [](Model& model, const Samples& own) {
    auto& net = model->module();
    if (model->owns(net.first->weight)) net.first(own.x).pow(2).mean().backward();
    if (model->owns(net.second->weight))
      net.second(torch::cat({own.x, own.x}, 1).slice(1, 0, 8)).pow(2).mean().backward();
  };
  struct Case {
    ap::Options options;
    bool attached;
  };
  const std::vector<Case> cases{{stages(), false},
                                {{.stages = 1, .microbatches = 1, .zero = 1, .replicas = {2}}, true},
                                {{.stages = 1, .microbatches = 1, .zero = 3, .replicas = {2}}, true},
                                {{.stages = 1, .microbatches = 1, .tensor_parallel = 2, .zero = 0}, true}};
  for (const auto& each : cases) {
    INFO(each.options.stages << " stages, zero " << each.options.zero);
    CHECK_NOTHROW(ap::loopback::run(2, [&, &x = x, &y = y](ap::World& world) {
      Model model(world, made(), each.options);
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      if (each.attached) model->attach(optimizer);
      const Samples own{share_of(x, 0, kLocal, world.rank()).clone(), share_of(y, 0, kLocal, world.rank()).clone()};
      model->prepare(own.x, own.y);
      bool refused = false;
      try {
        parts(model, own);
      } catch (const std::exception&) {
        refused = true;
      }
      if (!refused) throw numerics::Failure("a backward through a part of the module went through");
    }));
  }
}

TEST_CASE("differing gradients of owners: next call reports them") {
  const DoublePrecision fp64;
  const auto [x, y] = samples();
  const std::vector<Forward> programs{
      {"one sample",
       [](Model& model, const Samples& own) { torch::dot(model->module().scale.slice(0, 0, 6), own.x[0]).backward(); }},
      {"rows by an index",
       [](Model& model, const Samples& own) {
         model->module()
             .third->weight.index({(own.x.select(1, 2).abs() * 2).to(torch::kLong).clamp(0, 4)})
             .sum()
             .backward();
       }},
      {"a single layer", [](Model& model, const Samples& own) {
         model->module().first(own.x.slice(0, 0, 1)).backward(torch::ones({1, 8}) * own.y[0][0]);
       }}};
  const std::vector<Forward> one_rank{{"a term of one rank", [](Model& model, const Samples& own) {
                                         if (own.x.size(0) == 3) model->module().scale.pow(2).sum().backward();
                                       }}};
  for (const auto* list : {&programs, &one_rank}) {
    for (const auto& program : *list) {
      INFO(program.name);
      CHECK_NOTHROW(ap::loopback::run(2, [&, &x = x, &y = y](ap::World& world) {
        Model model(world, made(), replicas());
        const Samples own{share_of(x, 0, kLocal, world.rank()).clone(), share_of(y, 0, kLocal, world.rank()).clone()};
        model(own.x, own.y).backward();
        program.backward(model, own);
        check_says({"gradients", "rank 0 has", "rank 1 has", "model->call(&Net::method, x)"},
                   [&] { model(own.x, own.y); });
      }));
    }
  }
}

TEST_CASE("parameter hooks: user's stay, ours end with the model") {
  const DoublePrecision fp64;
  const auto [x, y] = samples();
  CHECK_NOTHROW(ap::loopback::run(2, [&, &x = x, &y = y](ap::World& world) {
    const auto net = made();
    const Samples own{share_of(x, 0, kLocal, world.rank()).clone(), share_of(y, 0, kLocal, world.rank()).clone()};
    {
      Model model(world, net, replicas());
      for (int call = 0; call < 5; ++call) {  // with captures that verify
        model->zero_grad();
        model(own.x, own.y).backward();
      }
      int seen = 0;
      const auto hook = net->scale.register_hook([&](const Tensor& gradient) {
        if (!gradient.defined()) return Tensor();
        ++seen;
        return gradient * 2;
      });
      model->zero_grad();
      net->scale.sum().backward();
      if (seen != 1) throw numerics::Failure("the user's hook was not called");
      check_close(net->scale.grad(), torch::full({8}, 2.0), kTolerance, "gradient behind the hook");
      net->scale.remove_hook(hook);
      for (auto& parameter : net->parameters()) parameter.set_requires_grad(false);
      for (auto& parameter : net->parameters()) parameter.set_requires_grad(true);
      check_says({"outside of the model"}, [&] { net->forward(own.x, own.y).backward(); });
      std::ostringstream file;
      torch::save(net->scale, file);
    }
    net->zero_grad();
    net->forward(own.x, own.y).backward();
    const auto plain = made();
    plain->forward(own.x, own.y).backward();
    check_close(net->scale.grad(), plain->scale.grad(), kTolerance, "gradient after the model's end");
  }));
}

}  // namespace outside_gradients_test
