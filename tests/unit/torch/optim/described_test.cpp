#include <torch/torch.h>

#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <autopar/core/error.hpp>
#include <autopar/runtime/loopback.hpp>
#include <autopar/torch/optim/lars.hpp>
#include <autopar/torch/optim/lbfgs.hpp>
#include <autopar/torch/optim/muon.hpp>

#include "torch/checkpoint/checkpoint.hpp"
#include "torch/parameters/hyper_parameters.hpp"
#include "torch/parameters/optimizer_state.hpp"

// LARS, Muon and L-BFGS of one process beside what their papers and torch::optim say; descriptors of users' optimizers.
namespace described_test {

namespace ap = autopar;
namespace optim = torch::optim;
using at::Tensor;
using Tensors = std::vector<Tensor>;

void require_close(const Tensors& got, const Tensors& wanted, double tolerance) {
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("parameter " << i);
    const auto scale = 1 + wanted[i].detach().abs().max().item<double>();
    CHECK((got[i] - wanted[i]).detach().abs().max().item<double>() <= tolerance * scale);
  }
}

Tensors random(const std::vector<std::vector<int64_t>>& sizes) {
  Tensors parameters;
  for (const auto& size : sizes) parameters.push_back(torch::randn(size, at::kDouble).set_requires_grad(true));
  return parameters;
}

Tensors copies(const Tensors& tensors) {
  Tensors out;
  for (const auto& tensor : tensors) out.push_back(tensor.detach().clone().set_requires_grad(true));
  return out;
}

/// Equal random gradients; the second parameter has none in each third step.
void set_gradients(const Tensors& a, const Tensors& b, int step) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto gradient = torch::randn(a[i].sizes(), at::kDouble);
    const bool skips = i == 1 && step % 3 == 2;
    a[i].mutable_grad() = skips ? Tensor() : gradient.clone();
    b[i].mutable_grad() = skips ? Tensor() : gradient.clone();
  }
}

// ---------------------------------------------------------------- LARS

TEST_CASE("LARS: equals algorithm 1 of its paper") {
  torch::manual_seed(1);
  for (const double momentum : {0.0, 0.9}) {
    for (const double decay : {0.0, 0.02}) {
      const auto ours = random({{7, 3}, {5}, {}, {2, 3, 4}}), theirs = copies(ours);
      {
        const torch::NoGradGuard no_grad;
        ours[2].zero_();
        theirs[2].zero_();  // its ratio is 1
      }
      const auto options =
          ap::optim::LARSOptions(0.3).momentum(momentum).weight_decay(decay).trust_coefficient(0.02).eps(1e-6);
      ap::optim::LARS lars(ours, options);
      Tensors velocity(ours.size());
      for (int step = 0; step < 12; ++step) {
        set_gradients(ours, theirs, step);
        lars.step();
        const torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < theirs.size(); ++i) {
          auto& x = theirs[i];
          const auto& g = x.grad();
          if (!g.defined()) continue;
          const double size = x.norm().item<double>(), slope = g.norm().item<double>();
          const double trust = size > 0 && slope > 0 ? 0.02 * size / (slope + decay * size + 1e-6) : 1;
          const auto moved = 0.3 * trust * (g + decay * x);
          velocity[i] = velocity[i].defined() ? momentum * velocity[i] + moved : moved;
          x.sub_(velocity[i]);
        }
      }
      require_close(ours, theirs, 1e-12);
    }
  }
  CHECK_THROWS_WITH(ap::optim::LARS(random({{2}}), ap::optim::LARSOptions(-1)),
                    Catch::Matchers::Contains("learning rate"));
}

// ---------------------------------------------------------------- Muon

Tensor newton_schulz(Tensor x) {
  const bool tall = x.size(0) > x.size(1);
  if (tall) x = x.t();
  x = x / (x.norm() + 1e-7);
  for (int k = 0; k < 5; ++k) {
    const auto a = x.matmul(x.t());
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a.matmul(a)).matmul(x);
  }
  return tall ? x.t() : x;
}

TEST_CASE("Muon: follows orthogonalised momentum, for matrices alone") {
  torch::manual_seed(2);
  for (const bool nesterov : {false, true}) {
    const auto ours = random({{7, 3}, {3, 8}, {4, 3, 2, 2}, {5, 5}}), theirs = copies(ours);
    const auto options = ap::optim::MuonOptions(0.05).momentum(0.8).nesterov(nesterov).weight_decay(0.1);
    ap::optim::Muon muon(ours, options);
    Tensors velocity(ours.size());
    for (int step = 0; step < 9; ++step) {
      set_gradients(ours, theirs, step);
      muon.step();
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < theirs.size(); ++i) {
        auto& x = theirs[i];
        if (!x.grad().defined()) continue;
        velocity[i] = velocity[i].defined() ? 0.8 * velocity[i] + x.grad() : x.grad().clone();
        const auto along = nesterov ? x.grad() + 0.8 * velocity[i] : velocity[i];
        const auto flat = along.flatten(1);
        const double scale =
            std::sqrt(std::max(1.0, static_cast<double>(flat.size(0)) / static_cast<double>(flat.size(1))));
        x.mul_(1 - 0.05 * 0.1).sub_(0.05 * scale * newton_schulz(flat).view(x.sizes()));
      }
    }
    require_close(ours, theirs, 1e-12);
  }
  const auto values = std::get<1>(torch::linalg_svd(ap::optim::orthogonalised(torch::randn({40, 20}, at::kDouble))));
  CHECK(values.min().item<double>() > 0.6);
  CHECK(values.max().item<double>() < 1.3);
  CHECK(ap::optim::orthogonalised(torch::zeros({3, 4})).abs().max().item<double>() == 0);
  CHECK(ap::optim::orthogonalised(torch::randn({3, 4}).to(at::kBFloat16)).scalar_type() == at::kBFloat16);

  const auto mixed = random({{3, 2}, {6}}), other = copies(mixed);
  ap::optim::Muon wrong(mixed);
  set_gradients(mixed, other, 0);
  CHECK_THROWS_AS(wrong.step(), ap::InvalidArgument);
  CHECK_THROWS_WITH(wrong.step(), Catch::Matchers::Contains("parameter 1 of its groups has the sizes [6]"));
  CHECK_THROWS_WITH(ap::optim::Muon(mixed, ap::optim::MuonOptions().momentum(1)),
                    Catch::Matchers::Contains("momentum"));
}

// ---------------------------------------------------------------- L-BFGS

/// A small regression of several tensors, one of which has no gradient, or a curved valley.
struct Problem {
  std::string name;
  Tensors parameters;
  std::function<Tensor(const Tensors&)> loss;
};

std::vector<Problem> problems() {
  torch::manual_seed(3);
  const auto x = torch::randn({20, 4}, at::kDouble), y = torch::randn({20, 2}, at::kDouble);
  const auto net = [=](const Tensors& p) {
    return (torch::tanh(x.matmul(p[0]) + p[1]).matmul(p[2]) - y).pow(2).mean() + 0.01 * p[0].pow(2).sum();
  };
  const auto valley = [](const Tensors& p) {
    return (1 - p[0]).pow(2).sum() + 100 * (p[1] - p[0] * p[0]).pow(2).sum();
  };
  auto start = random({{4, 6}, {6}, {6, 2}, {3}});
  const auto options = at::dtype(at::kDouble);
  return {
      {"network", start, net},
      {"valley",
       {torch::tensor({-1.2}, options).set_requires_grad(true), torch::tensor({1.0}, options).set_requires_grad(true)},
       valley}};
}

std::vector<optim::LBFGSOptions> lbfgs_options() {
  using Options = optim::LBFGSOptions;
  std::vector<Options> all{Options(0.5), Options(1).max_iter(4).history_size(2), Options(0.3).max_iter(1),
                           Options(1).max_iter(7).max_eval(5).history_size(3)};
  const auto without = all;
  for (const auto& options : without) all.push_back(Options(options).line_search_fn("strong_wolfe"));
  all.push_back(Options(1).tolerance_change(1e-3).line_search_fn("strong_wolfe"));
  all.push_back(Options(1).tolerance_grad(0.5));
  return all;
}

template <class Optimizer>
auto closure_of(Optimizer& optimizer, const Problem& problem, const Tensors& parameters, int& calls) {
  return [&] {
    ++calls;
    optimizer.zero_grad();
    auto loss = problem.loss(parameters);
    loss.backward();
    return loss;
  };
}

TEST_CASE("LBFGS: equals torch::optim::LBFGS") {
  for (const auto& problem : problems()) {
    for (std::size_t k = 0; k < lbfgs_options().size(); ++k) {
      const auto options = lbfgs_options()[k];
      const bool searches = options.line_search_fn().has_value();
      if (problem.name == "valley" && !searches && options.max_iter() > 1) continue;  // it leaves the valley
      INFO(problem.name << ", options " << k);
      const auto ours = copies(problem.parameters), theirs = copies(problem.parameters);
      ap::optim::LBFGS mine(ours, options);
      optim::LBFGS other(theirs, options);
      int my_calls = 0, other_calls = 0;
      for (int step = 0; step < 4; ++step) {
        INFO("step " << step);
        const auto got = mine.step(closure_of(mine, problem, ours, my_calls));
        const auto wanted = other.step(closure_of(other, problem, theirs, other_calls));
        require_close({got}, {wanted}, 1e-8);
        require_close(ours, theirs, 1e-8);
        REQUIRE(my_calls == other_calls);
      }
    }
  }
}

TEST_CASE("LBFGS: resumes exactly after torch::save and checkpoints") {
  const TempFolder folder;
  const auto problem = problems().front();
  const auto options = optim::LBFGSOptions(1).max_iter(3).history_size(4).line_search_fn("strong_wolfe");
  for (const int before : {1, 3}) {
    for (const bool by_checkpoint : {false, true}) {
      INFO(before << " steps before" << (by_checkpoint ? ", a checkpoint" : ""));
      const auto first = copies(problem.parameters);
      ap::optim::LBFGS from(first, options);
      int calls = 0;
      for (int step = 0; step < before; ++step) from.step(closure_of(from, problem, first, calls));
      const auto second = copies(first);
      ap::optim::LBFGS to(second, optim::LBFGSOptions(9));
      if (by_checkpoint) {
        ap::loopback::run(1, [&](ap::World& world) {
          std::vector<ap::checkpoint::ShardedTensorMetadata> saved, loaded;
          for (std::size_t i = 0; i < first.size(); ++i) {
            saved.push_back({"p" + std::to_string(i), first[i], {ap::Rank(0)}});
            loaded.push_back({"p" + std::to_string(i), second[i], {ap::Rank(0)}});
          }
          ap::checkpoint::save_checkpoint(world, ap::single_file(), folder / "state", saved, {&from}, {});
          (void)ap::checkpoint::load_checkpoint(world, folder / "state", loaded, {&to});
        });
        CHECK(ap::parameters::hyper_parameters(to) == ap::parameters::hyper_parameters(from));
      } else {
        std::stringstream file;
        torch::save(from, file);
        torch::load(to, file);
        static_cast<optim::LBFGSOptions&>(to.param_groups()[0].options()) = options;
        static_cast<optim::LBFGSOptions&>(to.param_groups()[0].options()).max_eval(3);
        static_cast<optim::LBFGSOptions&>(from.param_groups()[0].options()).max_eval(3);
      }
      for (int step = 0; step < 3; ++step) {
        from.step(closure_of(from, problem, first, calls));
        to.step(closure_of(to, problem, second, calls));
      }
      require_close(second, first, 1e-14);
    }
  }
}

TEST_CASE("LBFGS: unsupported use is refused") {
  const auto parameters = random({{3}, {2}});
  ap::optim::LBFGS lbfgs(parameters);
  CHECK_THROWS_WITH(lbfgs.step(nullptr), Catch::Matchers::Contains("step takes a closure"));
  CHECK_THROWS_WITH(lbfgs.step([] { return Tensor(); }), Catch::Matchers::Contains("must return the loss"));
  int calls = 0;
  const auto late = [&] {  // a second parameter from the second call on
    lbfgs.zero_grad();
    auto loss = parameters[0].pow(4).sum() + (calls++ > 0 ? parameters[1].pow(4).sum() : torch::zeros({}));
    loss.backward();
    return loss;
  };
  CHECK_THROWS_WITH(lbfgs.step(late), Catch::Matchers::Contains("that had none after the first"));
  calls = 0;
  const auto overflows = [&] {
    lbfgs.zero_grad();
    auto loss = parameters[0].pow(4).sum();
    if (calls++ == 0) loss.backward();
    return loss;
  };
  CHECK_THROWS_WITH(lbfgs.step(overflows), Catch::Matchers::Contains("made no gradients"));
  const auto without = [&] {
    lbfgs.zero_grad();
    return parameters[0].pow(4).sum();
  };
  CHECK_NOTHROW(lbfgs.step(without));
  std::vector<optim::OptimizerParamGroup> groups;
  for (const auto& parameter : parameters) groups.emplace_back(Tensors{parameter});
  CHECK_THROWS_WITH(ap::optim::LBFGS(groups), Catch::Matchers::Contains("one group"));
  CHECK_THROWS_WITH(ap::optim::LBFGS(parameters, optim::LBFGSOptions(1).line_search_fn("armijo")),
                    Catch::Matchers::Contains("'armijo'"));
}

// ---------------------------------------------------------------- descriptors

struct OddOptions : optim::OptimizerCloneableOptions<OddOptions> {
  double rate = 0.5;
  int kept = 3;
  bool strict = false;
  [[nodiscard]] double get_lr() const override { return rate; }
  void set_lr(double lr) override { rate = lr; }
};

struct OddState : optim::OptimizerCloneableParamState<OddState> {
  int steps = 0;
  double product = 1;
  Tensor mean, factor;
  std::deque<Tensor> recent;
};

/// Keeps one of each kind of state.
class Odd : public optim::Optimizer, public ap::DescribedOptimizer {
 public:
  explicit Odd(const std::vector<optim::OptimizerParamGroup>& groups, const OddOptions& options = {})
      : Optimizer(groups, std::make_unique<OddOptions>(options)) {}
  [[nodiscard]] const ap::OptimizerDescriptor& descriptor() const override {
    using Range = ap::OptimizerDescriptor::Range;
    static const ap::OptimizerDescriptor kOdd =
        ap::describe_optimizer<Odd, OddOptions, OddState>("Odd", ap::StepNeeds::kNorms)
            .counter("steps", &OddState::steps)
            .scalar("product", &OddState::product)
            .tensor("mean", &OddState::mean, [](const OddOptions& options) { return options.rate > 0; })
            .tensors("recent", &OddState::recent, [](const OddOptions& options) { return options.kept; })
            .whole("factor", &OddState::factor, [](at::IntArrayRef sizes) { return std::vector<int64_t>{sizes[0]}; })
            .option("rate", &OddOptions::rate, Range::kNotNegative)
            .option("kept", &OddOptions::kept, Range::kCount)
            .option("strict", &OddOptions::strict, Range::kFlag)
            .conflict([](const OddOptions& options) { return options.strict && options.kept == 0 ? "none kept" : ""; })
            .temporaries(0.5);
    return kOdd;
  }
  Tensor step(LossClosure) override { return {}; }
};

TEST_CASE("optimizer descriptor: names, reads and writes the state") {
  const auto parameters = random({{4, 2}});
  const std::vector<optim::OptimizerParamGroup> groups{Tensors(parameters)};
  Odd odd(groups), other(groups);
  CHECK(ap::parameters::state_names(odd, parameters[0]) ==
        std::vector<std::string>{"steps", "product", "mean", "recent_0", "recent_1", "recent_2", "factor"});
  CHECK(ap::parameters::state_factor(odd) == 0.5 + 4 + 4.0 / 8);
  CHECK(ap::parameters::state_factor(odd, 2) == 0.5 + 4 + 2 * 4.0 / 8);
  CHECK(ap::parameters::state_of(odd, parameters[0]).empty());
  auto state = std::make_unique<OddState>();
  state->steps = 7;
  state->product = 0.25;
  state->mean = torch::randn({4, 2});
  state->recent = {torch::randn({4, 2}), torch::randn({4, 2})};
  odd.state()[parameters[0].unsafeGetTensorImpl()] = std::move(state);
  const auto entries = ap::parameters::state_of(odd, parameters[0]);
  REQUIRE(entries.size() == 5);
  CHECK(entries[0].second.scalar_type() == at::kLong);
  CHECK(entries[1].second.item<double>() == 0.25);
  CHECK(entries[4].first == "recent_1");
  ap::parameters::set_state(other, parameters[0], entries);
  const auto& copied = static_cast<const OddState&>(*other.state()[parameters[0].unsafeGetTensorImpl()]);
  CHECK(copied.steps == 7);
  CHECK(copied.product == 0.25);
  CHECK(copied.recent.size() == 2);
  CHECK_FALSE(copied.factor.defined());
  CHECK_THROWS_AS(ap::parameters::set_state(other, parameters[0], {{"recent_x", torch::ones({2})}}),
                  ap::CheckpointError);

  auto values = ap::parameters::hyper_parameters(odd);
  CHECK(values[0] == ap::parameters::HyperParameters{{"kept", 3}, {"rate", 0.5}, {"strict", 0}});
  values[0]["kept"] = 2;
  ap::parameters::set_options(odd, ap::parameters::options_with(odd, values));
  CHECK(static_cast<OddOptions&>(odd.param_groups()[0].options()).kept == 2);
  const auto said = [&](const char* name, double value) {
    auto changed = values;
    changed[0][name] = value;
    try {
      (void)ap::parameters::options_with(odd, changed);
    } catch (const ap::CheckpointError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(said("kept", 1.5), Catch::Matchers::Contains("kept = 1.5, where Odd takes whole numbers from 0"));
  values[0]["strict"] = 1;
  CHECK_THAT(said("kept", 0), Catch::Matchers::Contains("none kept"));
  CHECK(ap::parameters::same_optimizer(odd)->param_groups().size() == 1);
}

}  // namespace described_test
