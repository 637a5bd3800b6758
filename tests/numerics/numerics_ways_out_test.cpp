#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>
#include <says.hpp>
#include <temp_folder.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>
#include <autopar/torch/optim/fused.hpp>
#include <autopar/torch/optim/lamb.hpp>
#include <autopar/torch/optim/lars.hpp>

#include "fidelity.hpp"
#include "precision.hpp"

// What a refusal says to do is done here, and trains as one process does.
namespace numerics_ways_out_test {

namespace ap = autopar;
namespace nn = torch::nn;
using torch::Tensor;

constexpr double kTolerance = 1e-9;
constexpr int kSteps = 3;

/// Any even cut leaves parameters on both sides.
struct Net : nn::Module {
  using Body = std::function<Tensor(Net&, const Tensor&)>;
  explicit Net(Body body_in = {}) : body(std::move(body_in)) {
    nets::register_all(*this, "first", first, "norm", norm, "inner", inner, "outer", outer, "second", second);
  }
  Tensor forward(const Tensor& x) { return body ? body(*this, x) : loss_of(torch::tanh(first(x))); }
  Tensor results_of(const Tensor& hidden) { return second(torch::tanh(outer(torch::tanh(inner(hidden))))); }
  Tensor loss_of(const Tensor& hidden) { return (results_of(hidden) - 1).pow(2).mean(); }
  /// Goes back from the last layer's to the first's.
  Tensor sharpen(const Tensor& z) { return (first(second(z).repeat({1, 2})) - 1).pow(2).mean(); }
  void add_late() {
    late = register_module("late", nn::Linear(nn::LinearOptions(6, 6).bias(false)));
    const torch::NoGradGuard no_grad;
    late->weight.fill_(0.25);
  }

  Body body;
  nn::Linear first{4, 6}, inner{6, 6}, outer{6, 6}, second{6, 2}, late{nullptr};
  nn::BatchNorm1d norm{6};
};

using Model = ap::AutoParallel<Net>;
using Loop = std::function<void(ap::World&)>;
using Step = std::function<void(Model&, ap::World&)>;  ///< makes gradients
using PlainStep = std::function<void(Net&)>;           ///< the same in one process
using MakeOptimizer = std::function<std::shared_ptr<torch::optim::Optimizer>(const std::vector<Tensor>&)>;

std::shared_ptr<Net> made(const Net::Body& body = {}) {
  const auto net = std::make_shared<Net>(body);
  nets::fill(*net);
  return net;
}

Tensor samples() { return torch::linspace(-1, 2, 32).sin().view({8, 4}); }
Tensor mine(const Tensor& whole, const ap::World& world) {
  return world.size() == 1 ? whole : numerics::share_of(whole, 0, {5, 3}, world.rank()).clone();
}

std::shared_ptr<torch::optim::Optimizer> sgd(const std::vector<Tensor>& parameters) {
  return std::make_shared<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

Tensor gives_results(Net& net, const Tensor& x) { return net.results_of(torch::tanh(net.first(x))); }

void step(Model& model, ap::World& world) { model(mine(samples(), world)).backward(); }
void plain_step(Net& net) { net.forward(samples()).backward(); }

/// One way to train, and what it is to equal.
struct Training {
  ap::Options options{};
  Net::Body body{};
  bool attached = true;
  MakeOptimizer optimizer = sgd;
  Step gradients = step;
  PlainStep plain = plain_step;
};

void train(const Training& training, Model& model, ap::World& world) {
  auto optimizer = training.optimizer(model->parameters());
  if (training.attached) model->attach(*optimizer);
  for (int k = 0; k < kSteps; ++k) {
    optimizer->zero_grad();
    training.gradients(model, world);
    optimizer->step();
  }
}

void require_as_in_one_process(const Training& training, Model& model, const std::shared_ptr<Net>& plain) {
  const auto state = model->gather_state();
  if (state.is_empty()) return;  // rank 0 has it
  const auto optimizer = training.optimizer(plain->parameters());
  for (int k = 0; k < kSteps; ++k) {
    optimizer->zero_grad();
    training.plain(*plain);
    optimizer->step();
  }
  for (const auto& dict : {plain->named_parameters(), plain->named_buffers()}) {
    for (const auto& item : dict) numerics::check_close(state[item.key()], item.value(), kTolerance, item.key());
  }
}

Loop trains(const Training& training) {
  return [=](ap::World& world) {
    Model model(world, made(training.body), training.options);
    train(training, model, world);
    require_as_in_one_process(training, model, made(training.body));
  };
}

struct Way {
  const char* name;
  int ranks;
  Loop refused;
  std::vector<std::string> says;
  std::vector<Loop> ways;
};

void check(const std::vector<Way>& table) {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  for (const auto& way : table) {
    INFO(way.name);
    const auto refused = [&](ap::World& world) { check_says(way.says, [&] { way.refused(world); }); };
    CHECK_NOTHROW(ap::loopback::run(way.ranks, refused));
    int k = 0;
    for (const auto& loop : way.ways) {
      INFO("way " << k++);
      CHECK_NOTHROW(ap::loopback::run(way.ranks, loop));
    }
  }
}

const ap::Options kReplicas{.stages = 1, .microbatches = 1, .zero = 0, .replicas = {2}};
const ap::Options kStages{.stages = 2, .microbatches = 1, .zero = 0, .replicas = {1, 1}};

ap::Options with(ap::Options options, const std::function<void(ap::Options&)>& change) {
  change(options);
  return options;
}

// ---------------------------------------------------------------- optimizers

template <class Optimizer, class Options>
MakeOptimizer makes(const Options& options) {
  return [=](const std::vector<Tensor>& parameters) { return std::make_shared<Optimizer>(parameters, options); };
}

/// Says nothing of itself.
class Undescribed : public torch::optim::Optimizer {
 public:
  Undescribed(const std::vector<Tensor>& parameters, const torch::optim::SGDOptions& options)
      : Optimizer(parameters, std::make_unique<torch::optim::SGDOptions>(options)) {}
  Tensor step(LossClosure) override { return {}; }
};

TEST_CASE("remedy for a refused optimizer: named replacements train") {
  const auto sgd_options = torch::optim::SGDOptions(0.1).momentum(0.9);
  const auto adam = torch::optim::AdamOptions(0.05).eps(1e-3);
  const auto adamw = torch::optim::AdamWOptions(0.05).eps(1e-3);
  std::vector<Loop> ways;
  for (const auto& make :
       {makes<torch::optim::SGD>(sgd_options), makes<torch::optim::Adam>(adam), makes<torch::optim::AdamW>(adamw),
        makes<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).eps(1e-3)),
        makes<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.05).eps(1e-3)), makes<ap::optim::SGD>(sgd_options),
        makes<ap::optim::Adam>(adam), makes<ap::optim::AdamW>(adamw),
        makes<ap::optim::LAMB>(ap::optim::LAMBOptions(0.05)), makes<ap::optim::LARS>(ap::optim::LARSOptions(0.5))}) {
    ways.push_back(trains({.options = with(kReplicas, [](auto& o) { o.zero = 2; }), .optimizer = make}));
  }
  check({{"an optimizer that nobody knows",
          2,
          trains({.options = kReplicas, .optimizer = makes<Undescribed>(sgd_options)}),
          {"Undescribed", "use torch::optim::SGD, Adam, AdamW, RMSprop or Adagrad",
           "or autopar::optim::SGD, Adam, AdamW, LAMB, LARS, Muon or LBFGS", "derive from autopar::DescribedOptimizer"},
          ways}});
}

TEST_CASE("remedy for ZeRO, offload without optimizer: attach or unset") {
  const auto zero = with(kReplicas, [](auto& o) { o.zero = 1; });
  const auto offload = with(kReplicas, [](auto& o) { o.offload = ap::Offload::kOptimizer; });
  check({{"ZeRO",
          2,
          trains({.options = zero, .attached = false}),
          {"ZeRO 1", "call model->attach(optimizer) before the first call, or set zero = 0"},
          {trains({.options = zero}), trains({.options = kReplicas, .attached = false})}},
         {"offload",
          2,
          trains({.options = offload, .attached = false}),
          {"offload = optimizer", "call model->attach(optimizer) before the first call, or set offload = none"},
          {trains({.options = offload}),
           trains({.options = with(kReplicas, [](auto& o) { o.offload = ap::Offload::kNone; }), .attached = false})}}});
}

// ---------------------------------------------------------------- gradients

/// What a loop does with the gradients that it asked for.
void give(const std::vector<Tensor>& parameters, const std::vector<Tensor>& gradients) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (gradients[i].defined()) parameters[i].mutable_grad() = gradients[i].clone();
  }
}

TEST_CASE("remedy for absent gradients: owned_parameters, or backward") {
  const auto asks = [](const std::function<std::vector<Tensor>(Model&)>& parameters) -> Step {
    return [=](Model& model, ap::World& world) {
      const auto x = mine(samples(), world);
      const auto loss = ap::global_mean(world, (model(x) - 1).pow(2).sum() / 2, x.size(0));
      const auto asked = parameters(model);
      give(asked, torch::autograd::grad({loss}, asked, {}, std::nullopt, false, true));
    };
  };
  const auto all = asks([](Model& model) { return model->parameters(); });
  const auto owned = asks([](Model& model) { return model->owned_parameters(); });
  const PlainStep plain = [](Net& net) { (net.forward(samples()) - 1).pow(2).mean().backward(); };
  const Step reads = [](Model& model, ap::World& world) {
    const auto x = mine(samples(), world);
    ap::global_mean(world, (model(x) - 1).pow(2).sum() / 2, x.size(0)).backward();
  };
  const auto by = [&](const Step& gradients) {
    return trains({.options = kStages, .body = gives_results, .gradients = gradients, .plain = plain});
  };
  check({{"grad",
          2,
          by(all),
          {"ask for those of model->owned_parameters(), or call backward() and read .grad"},
          {by(owned), by(reads)}}});
}

TEST_CASE("remedy for backward(inputs) in no_sync: outside, or for all") {
  const auto of_some = [](bool inside) -> Step {
    return [=](Model& model, ap::World& world) {
      std::optional<decltype(model->no_sync())> guard;
      if (inside) guard.emplace(model->no_sync());
      const auto loss = model(mine(samples(), world));
      const std::vector<Tensor> weight{model->module().first->weight};
      loss.backward({}, std::nullopt, false, weight);
    };
  };
  const PlainStep plain_some = [](Net& net) {
    net.forward(samples()).backward({}, std::nullopt, false, std::vector<Tensor>{net.first->weight});
  };
  const Step all_inside = [](Model& model, ap::World& world) {
    {
      const auto guard = model->no_sync();
      (model(mine(samples(), world)) * 0.25).backward();
    }
    (model(mine(samples(), world)) * 0.75).backward();
  };
  check({{"inside no_sync",
          2,
          trains({.options = kReplicas, .gradients = of_some(true)}),
          {"make the call outside no_sync, or call backward() without inputs"},
          {trains({.options = kReplicas, .gradients = of_some(false), .plain = plain_some}),
           trains({.options = kReplicas, .gradients = all_inside})}}});
}

TEST_CASE("remedy for a later hook on a parameter: change .grad") {
  const Loop hooked_on_one = [](ap::World& world) {
    Model model(world, made(), kReplicas);
    const auto optimizer = sgd(model->parameters());
    model->attach(*optimizer);
    step(model, world);
    if (world.rank() == 1) model->parameters()[0].register_hook([](const Tensor& g) { return g * 0.5; });
    step(model, world);
  };
  const Loop between = [](ap::World& world) {
    Model model(world, made(), kReplicas);
    const auto optimizer = sgd(model->parameters());
    model->attach(*optimizer);
    const auto loss = model(mine(samples(), world));
    model->parameters()[0].register_hook([](const Tensor& g) { return g * 0.5; });
    loss.backward();
  };
  const std::vector<std::string> says{"a hook was set on parameter 'first.weight'", "change .grad after backward"};
  const Step halved = [](Model& model, ap::World& world) {
    step(model, world);
    for (const auto& parameter : model->parameters())
      if (parameter.grad().defined()) parameter.mutable_grad().mul_(0.5);
  };
  const PlainStep with_hooks = [](Net& net) {
    std::vector<std::pair<Tensor, unsigned>> hooks;
    for (auto& parameter : net.parameters())
      hooks.emplace_back(parameter, parameter.register_hook([](const Tensor& g) { return g * 0.5; }));
    plain_step(net);
    for (auto& [parameter, hook] : hooks) parameter.remove_hook(hook);
  };
  std::vector<Loop> ways;
  std::vector<ap::Options> plans{kStages};
  for (const int zero : {0, 1, 2, 3}) plans.push_back(with(kReplicas, [&](auto& o) { o.zero = zero; }));
  plans.push_back(with(kReplicas, [](auto& o) { o.replicas = {1}, o.tensor_parallel = 2; }));
  plans.push_back(with(kReplicas, [](auto& o) { o.offload = ap::Offload::kOptimizer; }));
  for (const auto& options : plans)
    ways.push_back(trains({.options = options, .gradients = halved, .plain = with_hooks}));
  check({{"set by one rank", 2, hooked_on_one, says, ways}, {"set before backward", 2, between, says, {}}});
}

TEST_CASE("remedy for sparse embedding gradients: dense ones") {
  const auto looks_up = [](bool sparse) -> Net::Body {
    return [=](Net& net, const Tensor& x) {
      const auto ids = (x * 2 + 2).to(torch::kLong);
      const auto rows = torch::embedding(net.first->weight, ids, -1, false, sparse).sum(1);
      return net.loss_of(torch::tanh(torch::matmul(rows, net.first->weight.t())));
    };
  };
  check({{"sparse",
          2,
          trains({.options = kReplicas, .body = looks_up(true)}),
          {"use an embedding with sparse = false"},
          {trains({.options = kReplicas, .body = looks_up(false)})}}});
}

Tensor power_loss(const Tensor& y, const Tensor& t, std::int64_t power = 2) { return (y - t).abs().pow(power).mean(); }

TEST_CASE("remedy for unknown loss default: AUTOPAR_FUNCTION, or lambda") {
  const auto targets = [] { return torch::linspace(1, 3, 16).cos().view({8, 2}); };
  const PlainStep plain = [=](Net& net) { power_loss(net.forward(samples()), targets()).backward(); };
  const auto by = [=](const auto& loss) {
    return trains({.options = kStages,
                   .body = gives_results,
                   .gradients =
                       [=](Model& model, ap::World& world) {
                         model->train_step(loss, mine(samples(), world), mine(targets(), world)).backward();
                       },
                   .plain = plain});
  };
  check({{"a default",
          2,
          by(&power_loss),
          {"whose default is not known; pass AUTOPAR_FUNCTION(its_name), or a lambda of results and targets"},
          {by(AUTOPAR_FUNCTION(power_loss)), by([](const Tensor& y, const Tensor& t) { return power_loss(y, t); })}}});
}

// ---------------------------------------------------------------- plans

TEST_CASE("remedy for plan_only: unset it to train") {
  check({{"plan_only",
          1,
          trains({.options = {.plan_only = true}}),
          {"plan_only is set", "unset it to train"},
          {trains({.options = {.plan_only = false}})}}});
}

TEST_CASE("remedy for a foreign plan file: remove it, or set the option") {
  const TempFolder folder;
  const auto file = folder / "plan.json";
  const auto keeps = [&](const std::function<void(ap::Options&)>& change) {
    return with(ap::Options{.plan_file = file}, change);
  };
  const auto plain = keeps([](auto&) {});
  const Net::Body other = [](Net& net, const Tensor& x) { return net.loss_of(torch::sin(torch::tanh(net.first(x)))); };
  const auto removed = [=](const Loop& loop) -> Loop {
    return [=](ap::World& world) {
      if (world.rank() == 0) std::filesystem::remove(file);
      world.barrier();
      loop(world);
    };
  };
  const auto lowered = keeps([](auto& o) { o.precision = ap::Precision::kTf32; });
  const auto writes_one = trains({.options = plain});
  const auto write = [&] {
    const DoublePrecision guard;
    ap::loopback::run(1, removed(writes_one));
  };
  write();
  check({{"another model",
          1,
          trains({.options = plain, .body = other}),
          {"remove the plan to plan again"},
          {removed(trains({.options = plain, .body = other}))}}});
  write();
  check({{"another precision",
          1,
          trains({.options = lowered}),
          {"precision = tf32", "set it to the plan's, or remove the plan to plan again"},
          {writes_one, removed(trains({.options = lowered}))}}});
  write();
  check({{"another world",
          2,
          trains({.options = plain}),
          {"start as many ranks, or remove the plan to plan again"},
          {[&](ap::World& world) {
             if (world.rank() == 0) ap::loopback::run(1, writes_one);
           },
           removed(writes_one)}}});
}

TEST_CASE("remedy for a missing device: device = auto") {
  if (torch::cuda::is_available()) return;
  check({{"CUDA",
          2,
          trains({.options = {.device = ap::DeviceChoice::kCuda}}),
          {"device = cuda", "use device = auto"},
          {trains({.options = {.device = ap::DeviceChoice::kAuto}})}}});
}

TEST_CASE("remedy for method reaching back: call first, or one stage") {
  const auto then = [](bool method_first) -> Step {
    return [=](Model& model, ap::World& world) {
      const auto z = mine(torch::linspace(0, 3, 48).cos().view({8, 6}), world);
      if (!method_first) step(model, world);
      model->call(&Net::sharpen, z).backward();
      if (method_first) step(model, world);
    };
  };
  const PlainStep plain = [](Net& net) {
    plain_step(net);
    net.sharpen(torch::linspace(0, 3, 48).cos().view({8, 6})).backward();
  };
  check({{"backwards",
          2,
          trains({.options = kStages, .gradients = then(false), .plain = plain}),
          {"make the first call in this mode, or use one stage"},
          {trains({.options = {.stages = 1, .replicas = {2}}, .gradients = then(false), .plain = plain})}}});
}

TEST_CASE("remedy for late registration: register before wrapping") {
  const Net::Body body = [](Net& net, const Tensor& x) {
    const auto hidden = torch::tanh(net.first(x));
    return net.loss_of(net.late ? net.late(hidden) : hidden);
  };
  const auto registers = [=](bool before) -> Loop {
    return [=](ap::World& world) {
      const Training training{.options = kReplicas};
      const auto net = made(body), plain = made(body);
      plain->add_late();
      if (before) net->add_late();
      Model model(world, net, training.options);
      if (!before) model->module().add_late();
      train(training, model, world);
      require_as_in_one_process(training, model, plain);
    };
  };
  check({{"late", 2, registers(false), {"late", "register all of them before it is wrapped"}, {registers(true)}}});
}

// ---------------------------------------------------------------- element types

enum class Evaluates { kOtherwise, kAsTrained, kFirst };

/// Trains single precision under autocast, and evaluates.
Loop trains_under_autocast(const ap::Options& options, Evaluates evaluates) {
  return [=](ap::World& world) {
    const auto singles = [] {
      auto net = made();
      net->to(torch::kFloat);
      return net;
    };
    const auto x = samples().to(torch::kFloat);
    const auto evaluate = [](auto& call, auto& module, const Tensor& own) {
      const torch::NoGradGuard no_grad;
      module->eval();
      const auto result = call(own);
      module->train();
      return result;
    };
    const auto plain = singles();
    auto net = [&](const Tensor& all) { return plain->forward(all); };
    Model model(world, singles(), options);
    const auto optimizer = sgd(model->parameters()), plain_optimizer = sgd(plain->parameters());
    model->attach(*optimizer);
    if (evaluates == Evaluates::kFirst) static_cast<void>(evaluate(model, model, mine(x, world)));
    for (int k = 0; k < kSteps; ++k) {
      optimizer->zero_grad();
      plain_optimizer->zero_grad();
      {
        const precision_test::AutocastScope autocast(at::kBFloat16);
        model(mine(x, world)).backward();
        net(x).backward();
      }
      optimizer->step();
      plain_optimizer->step();
    }
    std::optional<precision_test::AutocastScope> autocast;
    if (evaluates == Evaluates::kAsTrained) autocast.emplace(at::kBFloat16);
    numerics::check_close(evaluate(model, model, mine(x, world)), evaluate(net, plain, x), 0.02, "evaluated");
  };
}

TEST_CASE("remedy for mixed autocast: one setting in all modes") {
  const auto offload = with(kReplicas, [](auto& o) { o.offload = ap::Offload::kOptimizer; });
  const auto zero = with(kReplicas, [](auto& o) { o.zero = 3; });
  const auto as = [](const ap::Options& options, Evaluates how) { return trains_under_autocast(options, how); };
  check({{"offload",
          2,
          as(offload, Evaluates::kOtherwise),
          {"use one setting of autocast in all modes, or call the model in this mode first, or set offload = none"},
          {as(offload, Evaluates::kAsTrained), as(offload, Evaluates::kFirst), as(kReplicas, Evaluates::kOtherwise)}},
         {"ZeRO",
          2,
          as(zero, Evaluates::kOtherwise),
          {"use one setting of autocast in all modes, or call the model in this mode first, with zero = 2 at most"},
          {as(zero, Evaluates::kAsTrained), as(with(zero, [](auto& o) { o.zero = 2; }), Evaluates::kFirst)}}});
}

// ---------------------------------------------------------------- batch_norm = exact

ap::Options exact(ap::Options options) {
  options.batch_norm = ap::BatchNorm::kExact;
  return options;
}

TEST_CASE("remedy for exact batch norm: one micro-batch") {
  const Net::Body normalises = [](Net& net, const Tensor& x) {
    return net.loss_of(torch::tanh(net.norm(net.first(x))));
  };
  check({{"planned",
          2,
          trains({.options = exact({.microbatches = 2}), .body = normalises}),
          {"batch_norm = exact", "one micro-batch", "microbatches = 2; leave that to the planner"},
          {trains({.options = exact({.microbatches = 1}), .body = normalises}),
           trains({.options = exact({}), .body = normalises}), trains({.options = exact(kStages), .body = normalises}),
           trains({.options = exact(kReplicas), .body = normalises})}}});
}

void both_forms(Model& model, ap::World& world) {
  step(model, world);
  model(mine(samples().unsqueeze(-1), world)).backward();
}

void plain_both_forms(Net& net) {
  plain_step(net);
  net.forward(samples().unsqueeze(-1)).backward();
}

TEST_CASE("remedy for a later exact norm: one micro-batch, or not exact") {
  const Net::Body later = [](Net& net, const Tensor& x) {
    const auto hidden = net.first(x.flatten(1));
    return net.loss_of(torch::tanh(x.dim() == 3 ? net.norm(hidden) : hidden));
  };
  const auto of = [&](const ap::Options& options) {
    return trains({.options = options, .body = later, .gradients = both_forms, .plain = plain_both_forms});
  };
  const auto two = with(kStages, [](auto& o) { o.microbatches = 2; });
  const Loop by_microbatch = [=](ap::World& world) {
    Model model(world, made(later), two);
    train({.gradients = both_forms}, model, world);
  };
  check({{"later",
          2,
          of(exact(two)),
          {"with batch_norm = exact it is right with one micro-batch only, but the plan has 2",
           "set microbatches = 1, or batch_norm = microbatch"},
          {of(exact(with(two, [](auto& o) { o.microbatches = 1; }))), by_microbatch}}});
}

TEST_CASE("remedy for in-place exact norm result: copy, or one replica") {
  const auto normalises = [](bool copies) -> Net::Body {
    return [=](Net& net, const Tensor& x) {
      const auto hidden = net.first(x.flatten(1));
      if (x.dim() < 3) return net.loss_of(torch::tanh(hidden));
      auto both = torch::cat({hidden, hidden}, 1);
      const auto normalised = net.norm(both.slice(1, 0, 6).clone());
      if (copies) both = both.clone();
      both.slice(1, 6, 12).copy_(normalised);
      return net.loss_of(torch::tanh(both.slice(1, 6, 12) + both.slice(1, 0, 6)));
    };
  };
  const auto of = [&](const ap::Options& options, bool copies) {
    return trains(
        {.options = exact(options), .body = normalises(copies), .gradients = both_forms, .plain = plain_both_forms});
  };
  check({{"written later",
          2,
          of(kReplicas, false),
          {"write into a copy, or use one replica"},
          {of(kReplicas, true), of(kStages, false)}}});
}

}  // namespace numerics_ways_out_test
