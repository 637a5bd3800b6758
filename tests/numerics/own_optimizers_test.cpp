#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>
#include <says.hpp>
#include <temp_folder.hpp>

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"
#include "torch/parameters/optimizer_state.hpp"

// Optimizers that are described, the library's and users', equal one process under every kind of plan, and so after a
// checkpoint of another plan.
namespace own_optimizers_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace optim = torch::optim;
using numerics::check_close;
using numerics::Failure;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

// ---------------------------------------------------------------- users' optimizers, one for each need of a step

struct RateOptions : optim::OptimizerCloneableOptions<RateOptions> {
  explicit RateOptions(double lr = 0.01) : rate(lr) {}
  double rate, beta1 = 0.9, beta2 = 0.99;
  [[nodiscard]] double get_lr() const override { return rate; }
  void set_lr(double lr) override { rate = lr; }
};

struct AverageState : optim::OptimizerCloneableParamState<AverageState> {
  std::int64_t steps = 0;
  Tensor average;
};

template <class State>
State& state_of(optim::Optimizer& optimizer, const Tensor& parameter) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (state == nullptr) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

/// Chen et al. 2023, with a smooth function in place of the sign.
class Lion : public optim::Optimizer, public ap::DescribedOptimizer {
 public:
  explicit Lion(const std::vector<optim::OptimizerParamGroup>& groups, const RateOptions& options = RateOptions())
      : Optimizer(groups, std::make_unique<RateOptions>(options)) {}
  [[nodiscard]] const ap::OptimizerDescriptor& descriptor() const override {
    static const ap::OptimizerDescriptor kLion =
        ap::describe_optimizer<Lion, RateOptions, AverageState>("Lion", ap::StepNeeds::kElementWise)
            .tensor("average", &AverageState::average)
            .option("lr", &RateOptions::rate)
            .option("beta1", &RateOptions::beta1)
            .option("beta2", &RateOptions::beta2);
    return kLion;
  }
  Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      const auto& options = static_cast<const RateOptions&>(group.options());
      for (auto& parameter : group.params()) {
        const auto& gradient = parameter.grad();
        if (!gradient.defined()) continue;
        auto& average = state_of<AverageState>(*this, parameter).average;
        if (!average.defined()) average = torch::zeros_like(parameter);
        parameter.add_((average * options.beta1 + gradient * (1 - options.beta1)).tanh(), -options.rate);
        average.mul_(options.beta2).add_(gradient, 1 - options.beta2);
      }
    }
    return {};
  }
};

/// Each parameter moves along its gradient's average over that one's norm, and the rate falls with the largest
/// gradient.
class Normalised : public optim::Optimizer, public ap::DescribedOptimizer {
 public:
  explicit Normalised(const std::vector<optim::OptimizerParamGroup>& groups, const RateOptions& options = RateOptions())
      : Optimizer(groups, std::make_unique<RateOptions>(options)) {}
  [[nodiscard]] const ap::OptimizerDescriptor& descriptor() const override {
    static const ap::OptimizerDescriptor kNormalised =
        ap::describe_optimizer<Normalised, RateOptions, AverageState>("Normalised", ap::StepNeeds::kNorms)
            .counter("steps", &AverageState::steps)
            .tensor("average", &AverageState::average)
            .option("lr", &RateOptions::rate)
            .option("beta1", &RateOptions::beta1)
            .option("beta2", &RateOptions::beta2);
    return kNormalised;
  }
  Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    Tensors handles, averages, gradients;
    for (auto& group : param_groups()) {
      const auto& options = static_cast<const RateOptions&>(group.options());
      for (auto& parameter : group.params()) {
        handles.push_back(parameter);
        gradients.push_back(parameter.grad());
        averages.emplace_back();
        if (!parameter.grad().defined()) continue;
        auto& state = state_of<AverageState>(*this, parameter);
        if (!state.average.defined()) state.average = torch::zeros_like(parameter);
        ++state.steps;
        state.average.mul_(options.beta1).add_(parameter.grad());
        averages.back() = state.average;
      }
    }
    const auto norms = collectives().norms(handles, averages);
    const auto largest = collectives().norms(handles, gradients, std::numeric_limits<double>::infinity()).max();
    const double slope = collectives().dot(handles, gradients, averages).item<double>();
    std::size_t i = 0;
    for (auto& group : param_groups()) {
      const double rate = group.options().get_lr() / (1 + largest.item<double>() + std::abs(slope));
      for (auto& parameter : group.params()) {
        if (averages[i].defined()) {
          const auto& state = state_of<AverageState>(*this, parameter);
          const auto norm = norms[static_cast<std::int64_t>(i)].item<double>() + 1e-3;
          parameter.add_(averages[i], -rate * static_cast<double>(state.steps) / norm);
        }
        ++i;
      }
    }
    return {};
  }
};

struct FactorState : optim::OptimizerCloneableParamState<FactorState> {
  Tensor factor;  ///< of rows
};

/// Moves along gradients divided by what their products have summed up to: an optimizer with state of other sizes.
class Whitened : public optim::Optimizer, public ap::DescribedOptimizer {
 public:
  explicit Whitened(const std::vector<optim::OptimizerParamGroup>& groups, const RateOptions& options = RateOptions())
      : Optimizer(groups, std::make_unique<RateOptions>(options)) {}
  [[nodiscard]] const ap::OptimizerDescriptor& descriptor() const override {
    static const ap::OptimizerDescriptor kWhitened =
        ap::describe_optimizer<Whitened, RateOptions, FactorState>("Whitened", ap::StepNeeds::kWholeMatrices)
            .whole("factor", &FactorState::factor,
                   [](at::IntArrayRef sizes) {
                     return std::vector{sizes[0], sizes[0]};
                   })
            .option("lr", &RateOptions::rate)
            .option("beta1", &RateOptions::beta1)
            .option("beta2", &RateOptions::beta2);
    return kWhitened;
  }
  Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    Tensors handles;
    std::vector<Tensors> along, factors;
    for (auto& group : param_groups()) {
      for (auto& parameter : group.params()) {
        handles.push_back(parameter);
        along.emplace_back();
        factors.emplace_back();
        if (!parameter.grad().defined()) continue;
        auto& factor = state_of<FactorState>(*this, parameter).factor;
        const auto rows = collectives().sizes(parameter)[0];
        if (!factor.defined()) factor = torch::zeros({rows, rows}, parameter.options().requires_grad(false));
        along.back() = {parameter.grad().clone()};
        factors.back() = {factor};
      }
    }
    const auto on_whole = [&](std::size_t i, const Tensors& whole) {
      const auto rows = whole[0].reshape({whole[0].size(0), -1});
      auto& factor = factors[i][0];
      factor.add_(rows.matmul(rows.t()));
      const auto made = torch::linalg_solve(factor + torch::eye(factor.size(0), factor.options()), rows);
      whole[0].copy_(made.view_as(whole[0]));
    };
    collectives().on_wholes(handles, along, on_whole, factors);
    std::size_t i = 0;
    for (auto& group : param_groups()) {
      for (auto& parameter : group.params()) {
        if (!along[i].empty()) parameter.add_(along[i][0], -group.options().get_lr());
        ++i;
      }
    }
    return {};
  }
};

// ---------------------------------------------------------------- trainings

/// What lies between two tanh goes into slices; one layer is frozen, one unused.
struct Net : nn::Module {
  explicit Net(bool tied = false) : is_tied(tied) {
    nets::register_all(*this, "first", first, "second", second, "norm", norm, "third", third, "fourth", fourth,
                       "unused", unused);
    fourth->bias.requires_grad_(false);
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    auto hidden = norm(second(torch::tanh(first(x))));
    if (is_tied) hidden = second(torch::tanh(first(hidden)));
    return nn::functional::mse_loss(fourth(torch::tanh(third(hidden))), y);
  }
  bool is_tied;
  nn::Linear first{6, 12}, second{12, 6}, third{6, 10}, fourth{10, 3}, unused{3, 2};
  nn::LayerNorm norm{nn::LayerNormOptions({6})};
};

std::shared_ptr<Net> made(bool tied) { return nets::made<Net>(4, tied); }

struct Batch {
  Tensor x, y;
};

std::vector<Batch> batches() {
  const std::lock_guard lock(numerics::generator_mutex());
  torch::manual_seed(5);
  std::vector<Batch> all;
  for (int k = 0; k < 8; ++k) all.push_back({torch::randn({8, 6}), torch::randn({8, 3})});
  return all;
}

using Optimizers = std::vector<std::unique_ptr<optim::Optimizer>>;

struct Kind {
  std::string name;
  std::function<Optimizers(const Net&)> make, plain;  ///< `plain`: what it is to equal, of one process
  bool searches = false;                              ///< steps with a closure over two batches
  bool is_own = true;                                 ///< `plain` makes optimizers of the same class
};

Tensors matrices(const Net& net, bool wanted) {
  Tensors out;
  for (const auto& item : net.named_parameters()) {
    const bool is_matrix = item.key().ends_with("weight") && !item.key().starts_with("norm");
    if (is_matrix == wanted) out.push_back(item.value());
  }
  return out;
}

/// Two groups: the first layer with a rate of its own.
template <class Optimizer, class Options>
Kind with_groups(const std::string& name, Options options) {
  const auto make = [options](const Net& net) {
    auto own = options;
    own.set_lr(options.get_lr() / 2);
    Tensors rest;
    for (const auto& item : net.named_parameters()) {
      if (!item.key().starts_with("first.")) rest.push_back(item.value());
    }
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(net.first->parameters(), std::make_unique<Options>(own));
    groups.emplace_back(rest);
    Optimizers all;
    all.push_back(std::make_unique<Optimizer>(groups, options));
    return all;
  };
  return {name, make, make};
}

template <class Optimizer>
std::function<Optimizers(const Net&)> lbfgs(optim::LBFGSOptions options) {
  return [options](const Net& net) {
    Optimizers all;
    all.push_back(std::make_unique<Optimizer>(net.parameters(), options));
    return all;
  };
}

std::vector<Kind> kinds() {
  const auto muon = [](const Net& net) {
    Optimizers all;
    all.push_back(
        std::make_unique<ap::optim::Muon>(matrices(net, true), ap::optim::MuonOptions(0.02).weight_decay(0.1)));
    all.push_back(std::make_unique<optim::AdamW>(matrices(net, false), optim::AdamWOptions(0.01).eps(1e-3)));
    return all;
  };
  const auto search = optim::LBFGSOptions(1).max_iter(3).history_size(3).line_search_fn("strong_wolfe");
  const auto fixed = optim::LBFGSOptions(0.3).max_iter(2).history_size(2);
  return {with_groups<Lion>("Lion", RateOptions(0.02)),
          with_groups<Normalised>("Normalised", RateOptions(0.05)),
          with_groups<Whitened>("Whitened", RateOptions(0.1)),
          with_groups<ap::optim::LARS>("LARS", ap::optim::LARSOptions(0.5).weight_decay(0.01).trust_coefficient(0.1)),
          {"Muon and AdamW", muon, muon},
          {"L-BFGS, line search", lbfgs<ap::optim::LBFGS>(search), lbfgs<optim::LBFGS>(search), true, false},
          {"L-BFGS", lbfgs<ap::optim::LBFGS>(fixed), lbfgs<optim::LBFGS>(fixed), true, false}};
}

constexpr int kSteps = 4, kSaved = 2;

/// One step with rates that fall. @param call  the loss of a batch
template <class Call>
void step(Optimizers& optimizers, bool searches, int number, const Call& call) {
  const auto closure = [&] {
    for (auto& optimizer : optimizers) optimizer->zero_grad();
    Tensor sum;
    for (int k = 0; k < (searches ? 2 : 1); ++k) {
      const auto loss = call(2 * number + k);
      loss.backward();
      sum = sum.defined() ? sum + loss.detach() : loss.detach();
    }
    return sum;
  };
  if (searches) {
    static_cast<void>(optimizers.front()->step(closure));
  } else {
    static_cast<void>(closure());
    for (auto& optimizer : optimizers) optimizer->step();
  }
  if (number != 0) return;
  for (auto& optimizer : optimizers) {
    for (auto& group : optimizer->param_groups()) group.options().set_lr(group.options().get_lr() * 0.7);
  }
}

struct Wanted {
  numerics::Snapshot saved, end;
  std::shared_ptr<Net> net;
  Optimizers optimizers;
};

Wanted in_one_process(const Kind& kind, bool tied) {
  Wanted wanted;
  wanted.net = made(tied);
  wanted.optimizers = kind.plain(*wanted.net);
  const auto all = batches();
  for (int k = 0; k < kSteps; ++k) {
    step(wanted.optimizers, kind.searches, k, [&](int b) {
      const auto& [x, y] = all[static_cast<std::size_t>(b)];
      return wanted.net->forward(x, y);
    });
    if (k + 1 == kSaved) wanted.saved = numerics::copies_of(wanted.net->named_parameters());
  }
  wanted.end = numerics::copies_of(wanted.net->named_parameters());
  return wanted;
}

struct Plan {
  const char* name;
  int ranks;
  ap::Options options;
  bool is_sliced = false;
};

std::vector<Plan> plans() {
  const auto of = [](std::vector<int> replicas, int zero, int microbatches = 2) {
    ap::Options options;
    options.stages = static_cast<int>(replicas.size());
    options.replicas = std::move(replicas);
    options.zero = zero;
    options.microbatches = microbatches;
    options.tensor_parallel = 1;
    options.offload = ap::Offload::kNone;
    options.gradient_accumulation = true;
    options.verify_replicas = 1;  // to the bit
    return options;
  };
  const auto sliced = [&](std::vector<int> replicas, int zero) {
    auto options = of(std::move(replicas), zero, 1);
    options.tensor_parallel = 2;
    return options;
  };
  const auto offloaded = [&](int zero) {
    auto options = of({2}, zero);
    options.offload = ap::Offload::kOptimizer;
    return options;
  };
  return {{"one rank", 1, of({1}, 0)},
          {"replicas", 2, of({2}, 0)},
          {"slices", 2, sliced({1}, 0), true},
          {"ZeRO 1", 2, of({2}, 1)},
          {"stages", 2, of({1, 1}, 0)},
          {"ZeRO 2 of 3", 3, of({3}, 2)},
          {"slices in ZeRO 3", 4, sliced({2}, 3), true},
          {"ZeRO 3", 2, of({2}, 3)},
          {"stages in ZeRO 2", 3, of({2, 1}, 2)},
          {"offload", 2, offloaded(0)},
          {"offload in ZeRO 2", 2, offloaded(2)}};
}

/// Trains from one step to another, and says what the parameters are.
class Course {
 public:
  Course(ap::World& world, const Kind& kind, const Plan& plan, bool tied)
      : world_(world), kind_(kind), all_(batches()), model_(world, made(tied), plan.options) {
    optimizers_ = kind.make(model_->module());
    for (auto& optimizer : optimizers_) model_->attach(*optimizer);
  }

  void train(int from, int to) {
    for (int k = from; k < to; ++k) {
      step(optimizers_, kind_.searches, k, [&](int b) {
        const auto& [x, y] = all_[static_cast<std::size_t>(b)];
        const auto mine = [&](const Tensor& whole) {
          return whole.tensor_split(world_.size())[static_cast<std::size_t>(world_.rank())].clone();
        };
        return model_(mine(x), mine(y));
      });
    }
  }
  void save(const std::string& path) {
    if (optimizers_.size() == 1)
      model_->save(path, *optimizers_[0]);
    else
      model_->save(path, *optimizers_[0], *optimizers_[1]);
  }
  void load(const std::string& path) {
    std::vector<optim::Optimizer*> all;
    for (auto& optimizer : optimizers_) all.push_back(optimizer.get());
    model_->load(path, all, {});
  }
  void check(const numerics::Snapshot& wanted, const std::string& when) {
    const auto state = model_->gather_state();
    if (world_.rank() != 0) return;
    const double tolerance = kind_.searches ? 1e-8 : 1e-12;
    for (const auto& [name, value] : wanted) check_close(state[name], value, tolerance, when + ", " + name);
  }
  /// State of all optimizers, gathered, is what one process has.
  void check_state(Wanted& wanted) {
    for (std::size_t o = 0; o < optimizers_.size(); ++o) {
      const auto whole = model_->gather_optimizer(*optimizers_[o]);
      if (world_.rank() != 0 || !kind_.is_own) continue;
      for (std::size_t g = 0; g < whole->param_groups().size(); ++g) {
        auto& plain = *wanted.optimizers[o];
        const auto& mine = whole->param_groups()[g].params();
        for (std::size_t i = 0; i < mine.size(); ++i) {
          const auto got = ap::parameters::state_of(*whole, mine[i]);
          const auto want = ap::parameters::state_of(plain, plain.param_groups()[g].params()[i]);
          if (got.size() != want.size()) throw Failure("a state of another form");
          for (std::size_t k = 0; k < got.size(); ++k) check_close(got[k].second, want[k].second, 1e-12, got[k].first);
        }
      }
    }
  }

 private:
  ap::World& world_;
  const Kind& kind_;
  std::vector<Batch> all_;
  ap::AutoParallel<Net> model_;
  Optimizers optimizers_;
};

void check(const Kind& kind, const Plan& plan, const Plan& next, bool tied) {
  const TempFolder folder;
  const auto path = (folder / "checkpoint").string();
  auto wanted = in_one_process(kind, tied);
  CHECK_NOTHROW(ap::loopback::run(plan.ranks, [&](ap::World& world) {
    Course course(world, kind, plan, tied);
    course.train(0, kSaved);
    course.check(wanted.saved, "before the checkpoint");
    course.save(path);
    course.train(kSaved, kSteps);
    course.check(wanted.end, "after the checkpoint");
    course.check_state(wanted);
  }));
  INFO("loaded under " << next.name);
  CHECK_NOTHROW(ap::loopback::run(next.ranks, [&](ap::World& world) {
    Course course(world, kind, next, tied);
    course.load(path);
    course.train(kSaved, kSteps);
    course.check(wanted.end, "loaded");
    course.check_state(wanted);
  }));
}

TEST_CASE("described optimizers: equal one process under every plan") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const auto all = plans();
  for (const auto& kind : kinds()) {
    for (std::size_t k = 0; k < all.size(); ++k) {
      const auto& next = all[(k + 4) % all.size()];
      INFO(kind.name << " under " << all[k].name);
      check(kind, all[k], next, false);
    }
    const auto stages = all[8], shards = all[7];
    INFO(kind.name << ", tied");
    check(kind, stages, shards, true);
  }
}

// ---------------------------------------------------------------- refused by name

/// Asks for more than it says.
class Understated : public Normalised {
 public:
  using Normalised::Normalised;
  [[nodiscard]] const ap::OptimizerDescriptor& descriptor() const override {
    static const ap::OptimizerDescriptor kUnderstated =
        ap::describe_optimizer<Understated, RateOptions, AverageState>("Understated", ap::StepNeeds::kElementWise)
            .tensor("average", &AverageState::average);
    return kUnderstated;
  }
};

TEST_CASE("non-elementwise optimizers: refused with their remedies") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  for (const auto& plan : plans()) {
    INFO(plan.name);
    CHECK_NOTHROW(ap::loopback::run(plan.ranks, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(false), plan.options);
      optim::LBFGS theirs(model->parameters());
      check_says({"torch::optim::LBFGS is not supported", "use autopar::optim::LBFGS"}, [&] { model->attach(theirs); });

      Understated understated({optim::OptimizerParamGroup(model->parameters())});
      model->attach(understated);
      const auto x = torch::ones({2, 6}), y = torch::ones({2, 3});
      model(x, y).backward();
      check_says({"the step of Understated asks for sums over whole parameters", "say StepNeeds::kNorms there"},
                 [&] { understated.step(); });

      ap::optim::Muon muon(model->parameters());
      model->attach(muon);
      check_says({"autopar::optim::Muon takes matrices", "give biases, norms and other vectors"}, [&] { muon.step(); });

      ap::optim::LBFGS lbfgs(model->parameters());
      model->attach(lbfgs);
      check_says({"step takes a closure"}, [&] { lbfgs.step(nullptr); });
      if (world.size() == 1) return;
      check_says({"the closure returned 0 on rank 0 and 1 on rank 1", "return the loss of all ranks' samples"},
                 [&] { lbfgs.step([&] { return torch::full({}, world.rank() == 0 ? 0.0 : 1.0); }); });
    }));
  }
}

}  // namespace own_optimizers_test
