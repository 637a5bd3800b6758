#include <torch/torch.h>

#include <ATen/record_function.h>
#include <catch_shim.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include <autopar/core/error.hpp>
#include <autopar/runtime/loopback.hpp>
#include <autopar/torch/optim/fused.hpp>
#include <autopar/torch/optim/lamb.hpp>
#include <autopar/torch/optim/lars.hpp>

#include "torch/checkpoint/checkpoint.hpp"

// The multi-tensor optimizers are torch::optim's, step by step: parameters of every layout, options of every kind,
// groups with options of their own, gradients that come and go, files that go from one to the other.
namespace optim_test {

namespace ap = autopar;
namespace optim = torch::optim;
using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr double kTolerance = 1e-12;

void require_close(const Tensor& got, const Tensor& wanted, double tolerance = kTolerance) {
  REQUIRE(got.sizes() == wanted.sizes());
  REQUIRE(got.scalar_type() == wanted.scalar_type());
  if (got.numel() == 0) return;
  const auto scale = 1 + wanted.detach().abs().max().item<double>();
  REQUIRE((got - wanted).detach().abs().max().item<double>() <= tolerance * scale);
}

void require_close(const Tensors& got, const Tensors& wanted, double tolerance = kTolerance) {
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("parameter " << i);
    require_close(got[i], wanted[i], tolerance);
  }
}

/// Every layout a parameter may have: scalar, empty, odd sizes, channels last, transposed, a view with gaps.
Tensors make_parameters(at::ScalarType dtype = at::kDouble) {
  const auto options = at::dtype(dtype);
  Tensors parameters{torch::randn({}, options),
                     torch::randn({0, 3}, options),
                     torch::randn({13}, options),
                     torch::randn({7, 33}, options),
                     torch::randn({4, 3, 5, 2}, options).contiguous(at::MemoryFormat::ChannelsLast),
                     torch::randn({6, 9}, options).t(),
                     torch::randn({10, 8}, options).slice(1, 0, 8, 2),
                     torch::randn({129, 65}, options)};
  for (auto& parameter : parameters) parameter.set_requires_grad(true);
  return parameters;
}

/// The same values and layouts in memory of their own.
Tensors twins_of(const Tensors& parameters) {
  Tensors twins;
  for (const auto& parameter : parameters) {
    const torch::NoGradGuard no_grad;
    const auto whole =
        at::empty({std::max<int64_t>(1, parameter.storage().nbytes() / parameter.itemsize())}, parameter.options());
    twins.push_back(whole.as_strided(parameter.sizes(), parameter.strides(), parameter.storage_offset()));
    twins.back().copy_(parameter);
    twins.back().set_requires_grad(true);
  }
  return twins;
}

/// Equal random gradients; some parameters have none in some steps, one never has.
void set_gradients(const Tensors& a, const Tensors& b, int step) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool skips = i == 2 || (i == 3 && step < 4) || (i == 5 && step % 3 == 1);
    auto gradient = torch::randn(a[i].sizes(), a[i].options().requires_grad(false));
    a[i].mutable_grad() = skips ? Tensor() : gradient.clone();
    if (i == 3 && !skips) a[i].mutable_grad() = gradient.t().contiguous().t();  // another layout than the parameter's
    b[i].mutable_grad() = skips ? Tensor() : gradient.clone();
  }
}

/// Two groups: the first with options of its own.
template <class Options>
std::vector<optim::OptimizerParamGroup> groups_of(const Tensors& parameters, Options own) {
  const auto middle = parameters.begin() + 4;
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(Tensors(parameters.begin(), middle), std::make_unique<Options>(std::move(own)));
  groups.emplace_back(Tensors(middle, parameters.end()));
  return groups;
}

template <class Fused, class Plain, class Options>
void require_equal_training(const Options& defaults, Options own, double tolerance = kTolerance,
                            at::ScalarType dtype = at::kDouble) {
  torch::manual_seed(1);
  const auto ours = make_parameters(dtype);
  const auto theirs = twins_of(ours);
  Fused fused(groups_of(ours, own), defaults);
  Plain plain(groups_of(theirs, own), defaults);
  optim::StepLR our_schedule(fused, 7, 0.5), their_schedule(plain, 7, 0.5);
  for (int step = 0; step < 30; ++step) {
    INFO("step " << step);
    set_gradients(ours, theirs, step);
    fused.step();
    plain.step();
    our_schedule.step();
    their_schedule.step();
    require_close(ours, theirs, tolerance);
  }
  REQUIRE(fused.state().size() == plain.state().size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const auto mine = ap::parameters::state_of(fused, ours[i]), other = ap::parameters::state_of(plain, theirs[i]);
    REQUIRE(mine.size() == other.size());
    for (std::size_t k = 0; k < mine.size(); ++k) {
      REQUIRE(mine[k].first == other[k].first);
      require_close(mine[k].second, other[k].second, tolerance);
    }
  }
}

template <class Options>
std::vector<Options> adam_options() {
  std::vector<Options> all;
  for (const double decay : {0.0, 0.03}) {
    for (const bool amsgrad : {false, true}) {
      for (const double eps : {1e-8, 1e-3}) {
        all.push_back(Options(0.05).weight_decay(decay).amsgrad(amsgrad).eps(eps).betas({0.8, 0.95}));
      }
    }
  }
  return all;
}

std::vector<optim::SGDOptions> sgd_options() {
  std::vector<optim::SGDOptions> all;
  for (const double decay : {0.0, 0.03}) {
    for (const double momentum : {0.0, 0.9}) {
      all.push_back(optim::SGDOptions(0.05).weight_decay(decay).momentum(momentum));
      if (momentum == 0) continue;
      all.push_back(optim::SGDOptions(0.05).weight_decay(decay).momentum(momentum).dampening(0.2));
      all.push_back(optim::SGDOptions(0.05).weight_decay(decay).momentum(momentum).nesterov(true));
    }
  }
  return all;
}

/// The defaults are each of `all` in turn, and the first group's own options the next one.
template <class Fused, class Plain, class Options>
void require_equal_for_all(const std::vector<Options>& all) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    INFO("options " << i);
    require_equal_training<Fused, Plain>(all[i], all[(i + 1) % all.size()]);
  }
}

TEST_CASE("SGD: equals torch::optim under all options") {
  require_equal_for_all<ap::optim::SGD, optim::SGD>(sgd_options());
}

TEST_CASE("Adam: equals torch::optim under all options") {
  require_equal_for_all<ap::optim::Adam, optim::Adam>(adam_options<optim::AdamOptions>());
}

TEST_CASE("AdamW: equals torch::optim under all options") {
  require_equal_for_all<ap::optim::AdamW, optim::AdamW>(adam_options<optim::AdamWOptions>());
}

TEST_CASE("optimizers: float32 steps agree within its precision") {
  const auto sgd = optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01);
  require_equal_training<ap::optim::SGD, optim::SGD>(sgd, sgd, 1e-5, at::kFloat);
  const auto adam = optim::AdamWOptions(0.01).eps(1e-3);
  require_equal_training<ap::optim::AdamW, optim::AdamW>(adam, adam, 1e-5, at::kFloat);
}

TEST_CASE("optimizers: a group may mix dtypes") {
  torch::manual_seed(2);
  Tensors ours, theirs;
  for (const auto dtype : {at::kDouble, at::kFloat, at::kDouble, at::kFloat, at::kBFloat16}) {
    ours.push_back(torch::randn({40, 3}, dtype).set_requires_grad(true));
    theirs.push_back(ours.back().detach().clone().set_requires_grad(true));
  }
  ap::optim::Adam fused(ours, optim::AdamOptions(0.5).eps(1e-3));
  optim::Adam plain(theirs, optim::AdamOptions(0.5).eps(1e-3));
  for (int step = 0; step < 5; ++step) {
    set_gradients(ours, theirs, 6);
    fused.step();
    plain.step();
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const auto dtype = ours[i].scalar_type();
    require_close(ours[i].to(at::kDouble), theirs[i].to(at::kDouble),
                  dtype == at::kDouble  ? kTolerance
                  : dtype == at::kFloat ? 1e-5
                                        : 0.02);
  }
}

// ---------------------------------------------------------------- what all of them do

template <class Optimizer, class Options>
void check_manners(Options options) {
  auto first = torch::ones({3}, at::kDouble).set_requires_grad(true);
  auto late = torch::ones({2, 2}, at::kDouble).set_requires_grad(true);
  Optimizer optimizer(Tensors{first}, options);
  const torch::NoGradGuard no_grad;
  const auto loss = optimizer.step([&] {
    CHECK(at::GradMode::is_enabled());
    optimizer.zero_grad();
    auto value = (first * first).sum();
    value.backward();
    return value;
  });
  CHECK(loss.template item<double>() == 3.0);
  CHECK_FALSE(torch::equal(first, torch::ones_like(first)));
  CHECK_FALSE(optimizer.step().defined());

  optimizer.add_param_group(optim::OptimizerParamGroup(Tensors{late}));
  late.mutable_grad() = torch::ones_like(late);
  first.mutable_grad() = Tensor();
  const auto before = first.clone();
  optimizer.step();
  CHECK(torch::equal(first, before));
  CHECK_FALSE(torch::equal(late, torch::ones_like(late)));

  auto table = torch::ones({4, 2}, at::kDouble).set_requires_grad(true);
  Optimizer sparse(Tensors{late, table}, options);
  table.mutable_grad() = torch::sparse_coo_tensor(torch::tensor({{1}}), torch::ones({1, 2}, at::kDouble), {4, 2});
  const auto kept = late.clone();
  CHECK_THROWS_AS(sparse.step(), ap::InvalidArgument);
  CHECK_THROWS_WITH(sparse.step(), Catch::Matchers::Contains("sparse"));
  CHECK(torch::equal(late, kept));
  auto numbers = torch::ones({2}, at::kComplexDouble).set_requires_grad(true);
  numbers.mutable_grad() = torch::ones({2}, at::kComplexDouble);
  Optimizer complex(Tensors{numbers}, options);
  CHECK_THROWS_WITH(complex.step(), Catch::Matchers::Contains("Complex"));
}

int& copies_made() {
  thread_local int count = 0;
  return count;
}

TEST_CASE("optimizers: strides of size-1 dims need no copy") {
  const auto start = torch::randn({8, 4, 1, 1}), gradient = torch::randn({8, 1, 1, 4}).permute({0, 3, 1, 2});
  REQUIRE(start.strides() != gradient.strides());
  auto ours = start.clone(), theirs = start.clone();
  ap::optim::SGD optimizer({ours}, optim::SGDOptions(0.1).momentum(0.9));
  optim::SGD reference({theirs}, optim::SGDOptions(0.1).momentum(0.9));
  for (auto* parameter : {&ours, &theirs}) parameter->mutable_grad() = gradient;
  copies_made() = 0;
  const auto callback = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& called) {
    copies_made() += std::string_view(called.name()) == "aten::copy_" ? 1 : 0;
    return std::unique_ptr<at::ObserverContext>();
  }));
  for (int step = 0; step < 3; ++step) optimizer.step();
  at::removeCallback(callback);
  for (int step = 0; step < 3; ++step) reference.step();
  CHECK(copies_made() == 0);
  require_close(ours, theirs, 1e-6);
}

TEST_CASE("optimizers: closures, new groups, missing and odd gradients") {
  check_manners<ap::optim::SGD>(optim::SGDOptions(0.1).momentum(0.9));
  check_manners<ap::optim::Adam>(optim::AdamOptions(0.1));
  check_manners<ap::optim::AdamW>(optim::AdamWOptions(0.1));
  check_manners<ap::optim::LAMB>(ap::optim::LAMBOptions(0.1));
  check_manners<ap::optim::LARS>(ap::optim::LARSOptions(0.1));
}

TEST_CASE("optimizers: state is known to planner and checkpoints") {
  const Tensors parameters{torch::ones({2}).set_requires_grad(true)};
  const ap::optim::SGD plain(parameters, optim::SGDOptions(0.1)),
      heavy(parameters, optim::SGDOptions(0.1).momentum(0.9));
  const ap::optim::Adam adam(parameters);
  const ap::optim::AdamW adamw(parameters, optim::AdamWOptions().amsgrad(true));
  const ap::optim::LAMB lamb(parameters);
  CHECK(ap::parameters::state_factor(plain) == 0);
  CHECK(ap::parameters::state_factor(heavy) == 1);
  CHECK(ap::parameters::state_factor(adam) == 2);
  CHECK(ap::parameters::state_factor(adamw) == 3);
  CHECK(ap::parameters::state_factor(lamb) == 2);
  CHECK(ap::parameters::descriptor_of(adamw).name == "AdamW");
  CHECK(ap::parameters::descriptor_of(lamb).name == "LAMB");
}

// ---------------------------------------------------------------- files

/// Trains, hands over in mid-course by `hand_over(from, to, parameters of both)`, and trains on.
template <class From, class To, class Options, class HandOver>
void require_same_after(const Options& options, HandOver hand_over) {
  torch::manual_seed(3);
  const auto first = make_parameters(), second = twins_of(first);
  From from(groups_of(first, options), options);
  for (int step = 0; step < 6; ++step) {
    set_gradients(first, second, step);
    from.step();
  }
  auto changed = options;
  changed.lr(77);
  To to(groups_of(second, changed), changed);
  hand_over(from, to, first, second);
  for (int step = 6; step < 12; ++step) {
    set_gradients(first, second, step);
    from.step();
    to.step();
    require_close(second, first);
  }
}

template <class Fused, class Plain, class Options>
void check_files(const Options& options) {
  const auto stream = [](auto& from, auto& to, const Tensors& first, const Tensors& second) {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < first.size(); ++i) second[i].copy_(first[i]);
    std::stringstream file;
    torch::save(from, file);
    torch::load(to, file);
  };
  const auto folder = std::filesystem::temp_directory_path() / ("autopar-optim-" + std::to_string(::getpid()));
  const auto checkpoint = [&](auto& from, auto& to, const Tensors& first, const Tensors& second) {
    ap::loopback::run(1, [&](ap::World& world) {
      std::vector<ap::checkpoint::ShardedTensorMetadata> saved, loaded;
      for (std::size_t i = 0; i < first.size(); ++i) {
        saved.push_back({"p" + std::to_string(i), first[i], {ap::Rank(0)}});
        loaded.push_back({"p" + std::to_string(i), second[i], {ap::Rank(0)}});
      }
      ap::checkpoint::save_checkpoint(world, ap::single_file(), folder, saved, {&from}, {});
      (void)ap::checkpoint::load_checkpoint(world, folder, loaded, {&to});
    });
    std::filesystem::remove_all(folder);
  };
  require_same_after<Fused, Plain>(options, stream);
  require_same_after<Plain, Fused>(options, stream);
  require_same_after<Fused, Plain>(options, checkpoint);
  require_same_after<Plain, Fused>(options, checkpoint);
}

TEST_CASE("optimizers: files are interchangeable with torch::optim's") {
  check_files<ap::optim::SGD, optim::SGD>(optim::SGDOptions(0.1).momentum(0.9));
  check_files<ap::optim::Adam, optim::Adam>(optim::AdamOptions(0.1).amsgrad(true).eps(1e-3));
  check_files<ap::optim::AdamW, optim::AdamW>(optim::AdamWOptions(0.1).eps(1e-3));
  check_files<ap::optim::LAMB, ap::optim::LAMB>(ap::optim::LAMBOptions(0.1).betas({0.7, 0.9}).eps(1e-3));
  check_files<ap::optim::LARS, ap::optim::LARS>(ap::optim::LARSOptions(0.1).weight_decay(0.1));
}

// ---------------------------------------------------------------- LAMB

/// Algorithm 2 of You et al. 2020, parameter by parameter, on plain vectors of doubles.
class ReferenceLamb {
 public:
  ReferenceLamb(Tensor parameter, ap::optim::LAMBOptions options)
      : x_(std::move(parameter)), options_(std::move(options)) {}

  void step(const Tensor& gradient, double rate) {
    const auto [beta1, beta2] = options_.betas();
    const auto flat = x_.detach().contiguous().view({-1}), g = gradient.contiguous().view({-1});
    const auto n = static_cast<std::size_t>(flat.numel());
    m_.resize(n);
    v_.resize(n);
    ++t_;
    std::vector<double> along(n);
    double size = 0, length = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double x = flat.data_ptr<double>()[i], gi = g.data_ptr<double>()[i];
      m_[i] = beta1 * m_[i] + (1 - beta1) * gi;
      v_[i] = beta2 * v_[i] + (1 - beta2) * gi * gi;
      const double m_hat = m_[i] / (1 - std::pow(beta1, t_)), v_hat = v_[i] / (1 - std::pow(beta2, t_));
      along[i] = m_hat / (std::sqrt(v_hat) + options_.eps()) + options_.weight_decay() * x;
      size += x * x;
      length += along[i] * along[i];
    }
    const double trust = size > 0 && length > 0 ? std::sqrt(size) / std::sqrt(length) : 1;
    const torch::NoGradGuard no_grad;
    const auto moved = torch::tensor(along, at::kDouble).mul(rate * trust).view(x_.sizes());
    x_.sub_(moved);
  }

 private:
  Tensor x_;
  ap::optim::LAMBOptions options_;
  std::vector<double> m_, v_;
  int t_ = 0;
};

TEST_CASE("LAMB: equals algorithm 2 of its paper") {
  for (const double decay : {0.0, 0.02}) {
    torch::manual_seed(4);
    const auto own = ap::optim::LAMBOptions(0.02).weight_decay(decay).betas({0.8, 0.95}).eps(1e-3);
    const auto defaults = ap::optim::LAMBOptions(0.01).weight_decay(decay);
    auto ours = make_parameters();
    ours.push_back(torch::zeros({5}, at::kDouble).set_requires_grad(true));  // its norm is zero in the first step
    const auto theirs = twins_of(ours);
    ap::optim::LAMB lamb(groups_of(ours, own), defaults);
    optim::StepLR schedule(lamb, 7, 0.5);
    std::vector<ReferenceLamb> references;
    for (std::size_t i = 0; i < theirs.size(); ++i) references.emplace_back(theirs[i], i < 4 ? own : defaults);
    for (int step = 0; step < 30; ++step) {
      INFO("step " << step);
      set_gradients(ours, theirs, step);
      lamb.step();
      for (std::size_t i = 0; i < theirs.size(); ++i) {
        const double rate = lamb.param_groups()[i < 4 ? 0 : 1].options().get_lr();
        if (theirs[i].grad().defined()) references[i].step(theirs[i].grad(), rate);
      }
      schedule.step();
      require_close(ours, theirs);
    }
  }
}

/// A rank's part of a flattened parameter; nothing where there are fewer elements than ranks.
Tensor shard_of(const Tensor& whole, int rank, int ranks) {
  const auto each = (whole.numel() + ranks - 1) / ranks;
  return whole.slice(0, std::min(whole.numel(), each * rank), std::min(whole.numel(), each * (rank + 1)));
}

/// Of which each rank has another part.
class OverShards : public ap::ParameterCollectives {
 public:
  explicit OverShards(ap::World& world) : world_(world) {}
  std::vector<int64_t> sizes(const Tensor&) const override { throw std::logic_error("not asked for"); }
  Tensor sum(const Tensors& handles, const Tensor& partial) override {
    if (partial.size(0) != std::ssize(handles)) throw std::logic_error("a row for each parameter is expected");
    auto total = partial.contiguous().clone();
    world_.all_reduce_sum(std::span(total.data_ptr<double>(), static_cast<std::size_t>(total.numel())), "norms");
    return total;
  }
  Tensor norms(const Tensors&, const Tensors&, double) override { throw std::logic_error("not asked for"); }
  Tensor dot(const Tensors&, const Tensors&, const Tensors&) override { throw std::logic_error("not asked for"); }
  std::vector<double> of_ranks(double) override { throw std::logic_error("not asked for"); }
  void on_wholes(const Tensors&, const std::vector<Tensors>&, const OnWhole&, const std::vector<Tensors>&) override {
    throw std::logic_error("not asked for");
  }

 private:
  ap::World& world_;
};

/// The largest difference between the shards of one rank and those of whole parameters, after ten steps.
double difference_over_shards(ap::World& world) {
  const auto options = ap::optim::LAMBOptions(0.02).eps(1e-3);
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  const int rank = world.rank(), ranks = world.size();
  Tensors wholes, shards;
  for (const int64_t elements : {1, 2, 17, 400}) {
    wholes.push_back(torch::randn({elements}, generator, at::kDouble).set_requires_grad(true));
    shards.push_back(shard_of(wholes.back().detach(), rank, ranks).clone().set_requires_grad(true));
  }
  ap::optim::LAMB whole(wholes, options), sharded(shards, options);
  sharded.set_collectives(std::make_shared<OverShards>(world));
  double worst = 0;
  for (int step = 0; step < 10; ++step) {
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      wholes[i].mutable_grad() = torch::randn(wholes[i].sizes(), generator, at::kDouble);
      if (shards[i].numel() > 0) shards[i].mutable_grad() = shard_of(wholes[i].grad(), rank, ranks).clone();
    }
    whole.step();
    sharded.step();
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      if (shards[i].numel() == 0) continue;
      const auto off = (shards[i] - shard_of(wholes[i], rank, ranks)).abs().max();
      worst = std::max(worst, off.item<double>());
    }
  }
  return worst;
}

TEST_CASE("LAMB: over shards equals unsharded") {
  for (const int ranks : {1, 2, 3}) {
    std::vector<double> worst(static_cast<std::size_t>(ranks));
    ap::loopback::run(ranks, [&](ap::World& world) {
      worst[static_cast<std::size_t>(world.rank())] = difference_over_shards(world);
    });
    for (const auto off : worst) CHECK(off <= kTolerance);
  }
}

TEST_CASE("LAMB: large groups are processed in pieces") {
  torch::manual_seed(6);
  Tensors ours, theirs;
  for (int i = 0; i < 3; ++i) {
    ours.push_back(torch::randn({5 << 20}, at::kDouble).set_requires_grad(true));  // 40 MiB: a list holds one
    theirs.push_back(ours.back().detach().clone().set_requires_grad(true));
  }
  const ap::optim::LAMBOptions options(0.1);
  ap::optim::LAMB together(ours, options);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ours[i].mutable_grad() = torch::randn_like(ours[i]);
    theirs[i].mutable_grad() = ours[i].grad();
    ap::optim::LAMB alone(Tensors{theirs[i]}, options);
    alone.step();
  }
  together.step();
  for (std::size_t i = 0; i < ours.size(); ++i) REQUIRE(torch::equal(ours[i], theirs[i]));
}

TEST_CASE("LAMB: options out of range are refused") {
  const Tensors parameters{torch::ones({2}).set_requires_grad(true)};
  using Options = ap::optim::LAMBOptions;
  CHECK_THROWS_WITH(ap::optim::LAMB(parameters, Options(-1)), Catch::Matchers::Contains("learning rate"));
  CHECK_THROWS_WITH(ap::optim::LAMB(parameters, Options().betas({1.0, 0.9})), Catch::Matchers::Contains("index 0"));
  CHECK_THROWS_WITH(ap::optim::LAMB(parameters, Options().betas({0.9, 1.0})), Catch::Matchers::Contains("index 1"));
  CHECK_THROWS_WITH(ap::optim::LAMB(parameters, Options().eps(-1)), Catch::Matchers::Contains("epsilon"));
  CHECK_THROWS_WITH(ap::optim::LAMB(parameters, Options().weight_decay(-1)), Catch::Matchers::Contains("weight_decay"));
}

}  // namespace optim_test
