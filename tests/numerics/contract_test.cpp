#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>
#include <rank_memory.hpp>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include <unistd.h>

#include "fidelity.hpp"
#include "matrix_models.hpp"

// The public contract (DESIGN §2) where the matrix's one loop does not reach, each time against one process.
namespace contract_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::check_close;
using numerics::share_of;
using torch::Tensor;

constexpr double kTolerance = 1e-12;

/// The same module on every rank and in the reference.
template <class Net>
std::shared_ptr<Net> made(uint64_t seed = 5) {
  return nets::made<Net>(seed);
}

template <class Model>
torch::optim::SGD sgd(Model& model) {
  return torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// Compares this rank's parameters and their gradients with the reference's.
template <class Model, class Net>
void check_parameters(Model& model, Net& reference, const std::string& when) {
  const auto expected = reference.named_parameters();
  for (const auto& item : model->named_parameters()) {
    if (!model->owns(item.value())) continue;
    check_close(item.value(), expected[item.key()], kTolerance, when + ", " + item.key());
    check_close(item.value().grad(), expected[item.key()].grad(), kTolerance, when + ", gradient of " + item.key());
  }
}

void check_ranks(int ranks, const std::function<void(ap::World&)>& body) {
  torch::set_num_threads(1);
  CHECK_NOTHROW(ap::loopback::run(ranks, body));
}

const std::vector<int64_t> kLocal{5, 3};
Tensor mine(const Tensor& whole, int rank, const std::vector<int64_t>& local = kLocal) {
  return share_of(whole, 0, local, rank).clone();
}

struct Mlp : nn::Module {
  Mlp() { nets::register_all(*this, "first", first, "second", second, "unused", unused); }
  Tensor forward(const Tensor& x) { return second(torch::tanh(first(x)) * (is_training() ? 1.0 : 2.0)); }
  nn::Linear first{4, 6}, second{6, 3}, unused{2, 2};
};

const ap::Options kPipeline{.stages = 2, .microbatches = 3, .replicas = {1, 1}};
const ap::Options kReplicas{.stages = 1, .microbatches = 2, .replicas = {2}};

TEST_CASE("train_step: adds a loss to a model without one") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), y = torch::randint(3, {8}, torch::kLong);
  const auto loss_of = [](const Tensor& out, const Tensor& target) { return F::cross_entropy(out, target) * 2; };
  for (const auto& options : {kPipeline, kReplicas}) {
    const auto reference = made<Mlp>();
    torch::optim::SGD reference_optimizer(reference->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    std::vector<Tensor> losses;
    for (int step = 0; step < 3; ++step) {
      reference_optimizer.zero_grad();
      losses.push_back(loss_of(reference->forward(x), y));
      losses.back().backward();
      reference_optimizer.step();
    }
    check_ranks(2, [&](ap::World& world) {
      ap::AutoParallel<Mlp> model(world, made<Mlp>(), options);
      auto optimizer = sgd(model);
      for (const auto& expected : losses) {
        optimizer.zero_grad();
        const auto loss = model->train_step(loss_of, mine(x, world.rank()), mine(y, world.rank()));
        loss.backward();
        check_close(loss, expected, kTolerance, "loss");
        optimizer.step();
      }
      check_parameters(model, *reference, "train_step");
      if (model->module().unused->weight.grad().defined()) throw numerics::Failure("an unused weight has a gradient");
    });
  }
}

TEST_CASE("evaluation between steps: leaves training unchanged") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 3}), other = torch::randn({7, 4});
  for (const auto& options : {kPipeline, kReplicas}) {
    const auto reference = made<Mlp>();
    torch::optim::SGD reference_optimizer(reference->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    std::vector<Tensor> evaluated;
    for (int step = 0; step < 2; ++step) {
      reference_optimizer.zero_grad();
      F::mse_loss(reference->forward(x), y).backward();
      reference_optimizer.step();
      const torch::NoGradGuard no_grad;
      reference->eval();
      evaluated.push_back(reference->forward(other));
      reference->train();
    }
    check_ranks(2, [&](ap::World& world) {
      ap::AutoParallel<Mlp> model(world, made<Mlp>(), options);
      auto optimizer = sgd(model);
      const auto loss_of = [](const Tensor& out, const Tensor& target) { return F::mse_loss(out, target); };
      for (const auto& expected : evaluated) {
        optimizer.zero_grad();
        model->train_step(loss_of, mine(x, world.rank()), mine(y, world.rank())).backward();
        optimizer.step();
        const torch::NoGradGuard no_grad;
        model->eval();
        const auto out = model(mine(other, world.rank(), {0, 7}));
        if (out.requires_grad()) throw numerics::Failure("a result under NoGradGuard requires a gradient");
        check_close(out, mine(expected, world.rank(), {0, 7}), kTolerance, "evaluation");
        model->train();
      }
      check_parameters(model, *reference, "after evaluations");
    });
  }
}

struct Generator : nets::Sequence {
  Generator() : Sequence(nn::Sequential{nn::Linear(2, 6), nn::Tanh(), nn::Linear(6, 4)}) {}
};
struct Critic : nets::Sequence {
  Critic() : Sequence(nn::Sequential{nn::Linear(4, 6), nn::ReLU(), nn::Linear(6, 1)}) {}
};

TEST_CASE("two adversarial models: outside losses train as one process") {
  const DoublePrecision guard;
  const auto real = torch::randn({8, 4}), noise = torch::randn({8, 2});
  const auto loss_sum = [](const Tensor& score, double target) {
    return F::binary_cross_entropy_with_logits(score, torch::full_like(score, target),
                                               F::BinaryCrossEntropyWithLogitsFuncOptions().reduction(torch::kSum));
  };
  const auto generator = made<Generator>(), generator_start = made<Generator>();
  const auto critic = made<Critic>(6);
  auto generator_optimizer = sgd(generator), critic_optimizer = sgd(critic);
  for (int step = 0; step < 2; ++step) {
    critic_optimizer.zero_grad();
    ((loss_sum(critic->forward(real), 1) + loss_sum(critic->forward(generator->forward(noise).detach()), 0)) / 8)
        .backward();
    critic_optimizer.step();
    generator_optimizer.zero_grad();
    (loss_sum(critic->forward(generator->forward(noise)), 1) / 8).backward();
    generator_optimizer.step();
  }
  check_ranks(2, [&](ap::World& world) {
    const auto z = mine(noise, world.rank()), x = mine(real, world.rank());
    ap::AutoParallel<Generator> g(world, made<Generator>(), kPipeline);
    ap::AutoParallel<Critic> c(world, made<Critic>(6), kReplicas);
    auto g_optimizer = sgd(g);
    auto c_optimizer = sgd(c);
    for (int step = 0; step < 2; ++step) {
      c_optimizer.zero_grad();
      const auto fake = g(z).detach();
      ap::global_mean(world, loss_sum(c(x), 1) + loss_sum(c(fake), 0), x.size(0)).backward();
      c_optimizer.step();
      g_optimizer.zero_grad();
      ap::global_mean(world, loss_sum(c(g(z)), 1), x.size(0)).backward();
      g_optimizer.step();
    }
    check_parameters(g, *generator, "generator");
    check_parameters(c, *critic, "critic");
  });
}

struct LossInside : Mlp {
  Tensor forward(const Tensor& x, const Tensor& y) { return F::mse_loss(Mlp::forward(x), y); }
};

TEST_CASE("join: continues with empty batches until all loaders end") {
  const DoublePrecision guard;
  using Batch = std::tuple<Tensor, Tensor>;
  std::vector<std::vector<Batch>> loaders(2);
  for (const int64_t n : {4, 2, 3}) loaders[0].emplace_back(torch::randn({n, 4}), torch::randn({n, 3}));
  loaders[1].emplace_back(torch::randn({5, 4}), torch::randn({5, 3}));
  const auto reference = made<LossInside>();
  auto reference_optimizer = sgd(reference);
  for (size_t step = 0; step < 3; ++step) {
    auto [x, y] = loaders[0][step];
    if (step == 0) x = torch::cat({x, std::get<0>(loaders[1][0])}), y = torch::cat({y, std::get<1>(loaders[1][0])});
    reference_optimizer.zero_grad();
    reference->forward(x, y).backward();
    reference_optimizer.step();
  }
  check_ranks(2, [&](ap::World& world) {
    ap::AutoParallel<LossInside> model(world, made<LossInside>(), kPipeline);
    auto optimizer = sgd(model);
    int steps = 0;
    for (const auto& [x, y] : ap::join(world, loaders[static_cast<size_t>(world.rank())])) {
      optimizer.zero_grad();
      model(x, y).backward();
      optimizer.step();
      ++steps;
    }
    if (steps != 3) throw numerics::Failure("join made " + std::to_string(steps) + " steps instead of 3");
    check_parameters(model, *reference, "join");
  });
}

TEST_CASE("capture: repeats when parameters are frozen or unfrozen") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 3});
  const auto freeze = [](Mlp& net, bool on) {
    for (auto& parameter : net.first->parameters()) parameter.set_requires_grad(!on);
  };
  const auto reference = made<LossInside>();
  auto reference_optimizer = sgd(reference);
  for (const bool frozen : {true, false, true, false}) {
    freeze(*reference, frozen);
    reference_optimizer.zero_grad();
    reference->forward(x, y).backward();
    reference_optimizer.step();
  }
  for (const auto& options : {kPipeline, kReplicas}) {
    check_ranks(2, [&](ap::World& world) {
      ap::AutoParallel<LossInside> model(world, made<LossInside>(), options);
      auto optimizer = sgd(model);
      for (const bool frozen : {true, false, true, false}) {
        freeze(model->module(), frozen);
        optimizer.zero_grad();
        model(mine(x, world.rank()), mine(y, world.rank())).backward();
        optimizer.step();
      }
      check_parameters(model, *reference, "unfrozen");
    });
  }
}

struct NormNet : nets::CrossEntropy<nets::BatchNormed> {
  NormNet() : CrossEntropy(4, nn::BatchNorm1dOptions(6).momentum(0.3), 3) {}
};

TEST_CASE("batch_norm = microbatch: local norm, pooled running stats") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}) + 3, y = torch::randint(3, {8}, torch::kLong);
  const std::vector<int64_t> even{4, 4};
  using Shares = std::vector<std::vector<int64_t>>;  // samples of each
  const std::pair<ap::Options, Shares> plans[] = {
      {{.stages = 1, .microbatches = 2, .replicas = {2}}, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
      {{.stages = 2, .microbatches = 2, .replicas = {1, 1}}, {{0, 1, 4, 5}, {2, 3, 6, 7}}}};
  for (const auto& [options, shares] : plans) {
    const auto reference = made<NormNet>();
    auto optimizer = sgd(reference);
    auto running_mean = torch::zeros({6}), running_var = torch::ones({6});
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      Tensor loss = torch::zeros({});
      std::vector<Tensor> hidden;
      for (const auto& samples : shares) {
        const auto index = torch::tensor(samples, torch::kLong);
        const auto h = reference->a(x.index_select(0, index));
        hidden.push_back(h.detach());
        const auto normalised = (h - h.mean(0)) / torch::sqrt(h.var(0, false) + 1e-5);
        const auto z = torch::relu(normalised * reference->norm->weight + reference->norm->bias);
        loss = loss + F::cross_entropy(reference->b(z), y.index_select(0, index),
                                       F::CrossEntropyFuncOptions().reduction(torch::kSum)) /
                          8;
      }
      loss.backward();
      optimizer.step();
      const auto all = torch::cat(hidden);
      running_mean = running_mean * 0.7 + all.mean(0) * 0.3;
      running_var = running_var * 0.7 + all.var(0, true) * 0.3;
    }
    check_ranks(2, [&, &plan = options](ap::World& world) {
      ap::AutoParallel<NormNet> model(world, made<NormNet>(), plan);
      auto mine_optimizer = sgd(model);
      for (int step = 0; step < 2; ++step) {
        mine_optimizer.zero_grad();
        model(mine(x, world.rank(), even), mine(y, world.rank(), even)).backward();
        mine_optimizer.step();
      }
      check_parameters(model, *reference, "batch norm");
      const auto state = model->gather_state();
      if (world.rank() != 0) return;
      check_close(state["norm.running_mean"], running_mean, kTolerance, "running mean");
      check_close(state["norm.running_var"], running_var, kTolerance, "running variance");
      check_close(state["norm.num_batches_tracked"], torch::tensor(2, torch::kLong), kTolerance, "batches tracked");
    });
  }
}

struct FrozenNorm : NormNet {
  FrozenNorm() { norm->eval(); }
};

TEST_CASE("child in eval mode: stays so inside a training model") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), y = torch::randint(3, {8}, torch::kLong);
  const auto reference = made<FrozenNorm>();
  reference->forward(x, y).backward();
  check_ranks(2, [&](ap::World& world) {
    ap::AutoParallel<FrozenNorm> model(world, made<FrozenNorm>(), kReplicas);
    model(mine(x, world.rank()), mine(y, world.rank())).backward();
    check_parameters(model, *reference, "frozen norm");
  });
}

struct Masks : nn::Module {
  Masks() {
    register_module("drop", drop);
    weight = register_parameter("weight", torch::ones({64}));
  }
  Tensor forward(const Tensor& x) { return drop(x * weight) * 1.0; }
  nn::Dropout drop{0.5};
  Tensor weight;
};

/// The same in the norm of a sum, as one operator.
struct MasksOfNorm : Masks {
  MasksOfNorm() { register_module("norm", norm); }
  Tensor forward(const Tensor& x) {
    const auto sum = x + drop(x * weight), normed = norm(sum);
    return sum - x + 0 * normed;
  }
  nn::LayerNorm norm{nn::LayerNormOptions({64})};
};

/// Masks that two calls apply to all samples (one row each), gathered over the ranks.
template <class Net>
std::vector<Tensor> masks_of(int ranks, const ap::Options& options) {
  std::mutex mutex;
  std::vector<std::vector<Tensor>> parts(2, std::vector<Tensor>(static_cast<size_t>(ranks)));
  check_ranks(ranks, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made<Net>(), options);
    for (auto& call : parts) {
      const auto x = torch::ones({6, 64}).requires_grad_();
      const auto out = model(x);
      out.sum().backward();
      check_close(x.grad(), out.detach(), kTolerance, "gradient through the mask");
      const std::lock_guard lock(mutex);
      call[static_cast<size_t>(world.rank())] = out.detach();
    }
  });
  return {torch::cat(parts[0]), torch::cat(parts[1])};
}

void check_masks(std::vector<Tensor> (*masks_of)(int, const ap::Options&)) {
  const DoublePrecision guard;
  const ap::Options plans[] = {{.stages = 1, .microbatches = 3, .fusion = ap::Switch::kOn, .replicas = {2}},
                               {.stages = 1, .microbatches = 6, .fusion = ap::Switch::kOn, .replicas = {1}}};
  for (const auto& options : plans) {
    const auto masks = masks_of(2, options), again = masks_of(2, options);
    std::set<std::string> distinct;
    for (size_t call = 0; call < 2; ++call) {
      CHECK(torch::equal(masks[call], again[call]));
      CHECK(masks[call].eq(0).logical_or(masks[call].eq(2)).all().item<bool>());
      for (int64_t row = 0; row < masks[call].size(0); ++row) {
        std::string bits;
        for (int64_t i = 0; i < 64; ++i) bits += masks[call][row][i].item<double>() > 0 ? '1' : '0';
        distinct.insert(bits);
      }
    }
    CHECK(distinct.size() == 24);
  }
}

TEST_CASE("dropout: own mask per micro-batch, replica, call, repeatable") {
  check_masks(&masks_of<Masks>);
  check_masks(&masks_of<MasksOfNorm>);
}

/// Layers of transformers, the first normed behind the sum, the second before its layer; also gives the sums.
struct DroppingBlocks : nn::Module {
  DroppingBlocks() { nets::register_all(*this, "first", first, "second", second, "behind", behind, "last", last); }
  /// @param masks  of what is added; empty: by draws
  std::vector<Tensor> run(const Tensor& x, const std::vector<Tensor>& masks) {
    const auto dropped = [&](const Tensor& h, std::size_t i) {
      return masks.empty() ? torch::dropout(h, 0.25, /*train=*/true) : h * masks[i];
    };
    const auto h = dropped(first(x), 0) + x, y = behind(h);
    const auto z = y + dropped(second(torch::gelu(y)), 1);
    return {last(z), h, y, z};
  }
  std::vector<Tensor> forward(const Tensor& x) { return run(x, {}); }
  nn::Linear first{6, 6}, second{6, 6};
  nn::LayerNorm behind{nn::LayerNormOptions({6})}, last{nn::LayerNormOptions({6})};
};

/// What a plan for two ranks makes of it, and the gradients of a loss of its results.
struct DroppedRun {
  std::vector<Tensor> results;
  std::map<std::string, Tensor> gradients;
};
Tensor loss_of_blocks(const std::vector<Tensor>& results) { return (results[0].sin() + results[3].pow(2)).sum(); }

DroppedRun dropped_run(const Tensor& x, const ap::Options& options) {
  std::mutex mutex;
  std::vector<std::vector<Tensor>> parts(4, std::vector<Tensor>(kLocal.size()));
  DroppedRun out;
  check_ranks(2, [&](ap::World& world) {
    ap::AutoParallel<DroppingBlocks> model(world, made<DroppingBlocks>(), options);
    const auto results = model(mine(x, world.rank()));
    loss_of_blocks(results).backward();
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < parts.size(); ++i)
      parts[i][static_cast<std::size_t>(world.rank())] = results[i].detach();
    for (const auto& item : model->named_parameters()) {
      if (model->owns(item.value())) out.gradients[item.key()] = item.value().grad().clone();
    }
  });
  for (const auto& part : parts) out.results.push_back(torch::cat(part));
  return out;
}

TEST_CASE("fused dropout + norm: gradient and recompute use one mask") {
  const DoublePrecision guard;
  torch::manual_seed(6);
  const auto x = torch::randn({8, 3, 6});
  const ap::Options plans[] = {{.stages = 1, .microbatches = 2, .fusion = ap::Switch::kOn, .replicas = {2}},
                               {.stages = 2, .microbatches = 3, .fusion = ap::Switch::kOn, .replicas = {1}}};
  for (auto options : plans) {
    options.recompute = ap::Recompute::kNever;
    const auto kept = dropped_run(x, options);
    const auto net = made<DroppingBlocks>();
    const auto mask = [](const Tensor& added) { return added.ne(0).to(torch::kDouble) / 0.75; };
    const std::vector<Tensor> masks{mask(kept.results[1] - x), mask(kept.results[3] - kept.results[2])};
    CHECK(masks[0].gt(0).to(torch::kDouble).mean().item<double>() == Approx(0.75).margin(0.12));
    const auto wanted = net->run(x, masks);
    loss_of_blocks(wanted).backward();
    for (std::size_t i = 0; i < wanted.size(); ++i)
      CHECK_NOTHROW(check_close(kept.results[i], wanted[i], kTolerance, "result"));
    for (const auto& item : net->named_parameters())
      CHECK_NOTHROW(check_close(kept.gradients.at(item.key()), item.value().grad(), kTolerance, item.key()));
    options.recompute = ap::Recompute::kAlways;
    const auto again = dropped_run(x, options);
    for (const auto& [name, gradient] : kept.gradients) CHECK(torch::equal(again.gradients.at(name), gradient));
  }
}

struct Arguments : nets::TwoLinears {
  Arguments() : TwoLinears(4, 5, 2) {}
  Tensor forward(const std::vector<Tensor>& parts, const std::optional<Tensor>& mask, const Tensor& scale) {
    auto h = torch::tanh(a(torch::cat(parts, 1)));
    if (mask) h = h * *mask;
    return b(h * scale).pow(2).mean();
  }
};

TEST_CASE("list, optional and shared arguments: get their gradients") {
  const DoublePrecision guard;
  const auto one = torch::randn({8, 1}), three = torch::randn({8, 3}), mask = torch::rand({8, 5});
  const auto scale = torch::linspace(0.5, 2, 5).requires_grad_();
  const auto reference = made<Arguments>();
  const auto whole = three.clone().requires_grad_();
  reference->forward({one, whole}, std::nullopt, scale).backward();
  for (auto options : {kPipeline, kReplicas}) {
    check_ranks(2, [&](ap::World& world) {
      options.batch_dims = {0, 0, ap::kShared};
      ap::AutoParallel<Arguments> model(world, made<Arguments>(), options);
      const auto x = mine(three, world.rank()).requires_grad_();
      const auto s = scale.detach().clone().requires_grad_();
      model(std::vector<Tensor>{mine(one, world.rank()), x}, std::optional<Tensor>(), s).backward();
      check_close(x.grad(), mine(whole.grad(), world.rank()), kTolerance, "gradient in a list");
      check_close(s.grad(), scale.grad(), kTolerance, "gradient of a shared argument");
      check_parameters(model, *reference, "arguments");
    });
  }
}

TEST_CASE("AutoParallel: accepts Sequential and a module pointer") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4});
  const auto seeded = [] {
    const std::lock_guard lock(numerics::generator_mutex());
    torch::manual_seed(5);
    return nn::Sequential(nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 3));
  };
  auto reference = seeded();
  const auto expected = reference->forward(x);
  expected.pow(2).sum().backward();
  check_ranks(2, [&](ap::World& world) {
    ap::AutoParallel<nn::Sequential> model(world, seeded(), kPipeline);
    const auto out = model(mine(x, world.rank()));
    out.pow(2).sum().backward();
    check_close(out, mine(expected, world.rank()), kTolerance, "Sequential");
    check_parameters(model, *reference, "Sequential");
    ap::AutoParallel<std::shared_ptr<Mlp>> pointed(world, made<Mlp>(), kPipeline);
    check_close(pointed(mine(x, world.rank())), mine(made<Mlp>()->forward(x), world.rank()), kTolerance, "shared_ptr");
  });
}

TEST_CASE("linear layer: is one operator in plan and run") {
  const DoublePrecision guard;
  const auto [x, target] = zoo::HandLinears::batch(8);
  const auto reference = made<zoo::HandLinears>();
  const auto expected = reference->forward(x, target);
  expected.backward();
  const auto file =
      (std::filesystem::temp_directory_path() / ("autopar_contract_" + std::to_string(::getpid()) + ".dot")).string();
  for (auto options : {kPipeline, kReplicas}) {
    options.graph_file = file;
    check_ranks(2, [&, &x = x, &target = target](ap::World& world) {
      ap::AutoParallel<zoo::HandLinears> model(world, made<zoo::HandLinears>(), options);
      const auto loss = model(mine(x, world.rank()), mine(target, world.rank()));
      loss.backward();
      check_close(loss, expected, kTolerance, "loss");
      check_parameters(model, *reference, "linear layers");
    });
    std::ifstream in(file);
    const std::string graph((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    CHECK(graph.find("linear") != std::string::npos);
    for (const auto* operation : {"matmul", "addmm", "add"}) {
      CAPTURE(operation);
      CHECK(graph.find(operation) == std::string::npos);
    }
    std::filesystem::remove(file);
  }
}

// ---------------------------------------------------------------- operators registered by a user

struct CubeFunction : torch::autograd::Function<CubeFunction> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const std::string& name) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x});
    return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "").typed<Tensor(const Tensor&)>().call(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradient) {
    return {gradient[0] * 3 * context->get_saved_variables()[0].pow(2), Tensor()};
  }
};
Tensor cube(const Tensor& x) { return x * x * x; }
Tensor cube_form(const Tensor& x) { return torch::empty_like(x); }
Tensor cube_with_gradient(const Tensor& x) { return CubeFunction::apply(x, "autopar_contract::cube"); }
Tensor hidden_with_gradient(const Tensor& x) { return CubeFunction::apply(x, "autopar_contract::hidden_cube"); }
Tensor composite(const Tensor& x) { return x.sin() * x; }

TORCH_LIBRARY_FRAGMENT(autopar_contract, library) {
  library.def("cube(Tensor x) -> Tensor", {at::Tag::pointwise});
  library.def("hidden_cube(Tensor x) -> Tensor");  // no shapes, and says nothing on samples
  library.def("composite(Tensor x) -> Tensor", composite);
}
TORCH_LIBRARY_IMPL(autopar_contract, CPU, library) {
  library.impl("cube", cube);
  library.impl("hidden_cube", cube);
}
TORCH_LIBRARY_IMPL(autopar_contract, Meta, library) { library.impl("cube", cube_form); }
TORCH_LIBRARY_IMPL(autopar_contract, Autograd, library) {
  library.impl("cube", cube_with_gradient);
  library.impl("hidden_cube", hidden_with_gradient);
}

Tensor call_operator(const char* name, const Tensor& x) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Tensor(const Tensor&)>().call(x);
}

template <bool kHidden>
struct CustomOperators : nets::TwoLinears {
  CustomOperators() : TwoLinears(4, 5, 2) {}
  Tensor forward(const Tensor& x) {
    const auto h = call_operator(kHidden ? "autopar_contract::hidden_cube" : "autopar_contract::cube", a(x));
    return b(call_operator("autopar_contract::composite", h)).pow(2).mean();
  }
};

TEST_CASE("registered operators: split if pointwise or composite") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4});
  const auto check = [&]<class Net>(std::type_identity<Net>, const ap::Options& options) {
    const auto reference = made<Net>();
    reference->forward(x).backward();
    check_ranks(2, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made<Net>(), options);
      model(mine(x, world.rank())).backward();
      check_parameters(model, *reference, "custom operators");
    });
  };
  check(std::type_identity<CustomOperators<false>>(), kPipeline);
  check(std::type_identity<CustomOperators<false>>(), kReplicas);
  const ap::Options whole{.stages = 2, .microbatches = 1, .replicas = {1, 1}};
  check(std::type_identity<CustomOperators<true>>(), whole);
  std::string message;
  try {
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<CustomOperators<true>> model(world, made<CustomOperators<true>>(), kPipeline);
      model(mine(x, world.rank())).backward();
    });
  } catch (const ap::CaptureError& error) {
    message = error.what();
  }
  CHECK(message.find("autopar_contract::hidden_cube") != std::string::npos);
}

/// Nearly all of it are parameters.
struct Heavy : nets::Linears {
  Heavy() : Linears(512, {{"first", 512}, {"second", 512}}, torch::relu) {}
  Tensor forward(const Tensor& x) { return Linears::forward(x).square().mean(); }
};

// On GPUs any factor takes this way, as looking at it would wait for the device.
TEST_CASE("loss scaled outside: needs no second set of gradients") {
  check_ranks(1, [&](ap::World& world) {
    ap::AutoParallel<Heavy> model(world, made<Heavy>(), {.stages = 1, .microbatches = 1, .replicas = {1}});
    const auto x = torch::ones({2, 512});
    const auto peak = [&](double factor) {
      for (const auto& parameter : model->parameters()) parameter.mutable_grad().reset();
      auto& ledger = RankMemory::install().open();
      const RankMemory::Scope scope(ledger);
      (model(x) * factor).backward();
      return ledger.peak();
    };
    peak(1);  // what the first call makes stays
    const auto plain = peak(1);
    const auto gradients = model->owned_parameters()[0].nbytes();
    CHECK(plain > static_cast<std::int64_t>(gradients));
    CHECK(peak(0.5) < plain + static_cast<std::int64_t>(gradients) / 4);
  });
}

struct ReturnsTwice : nets::TwoLinears {
  ReturnsTwice() : TwoLinears(4, 6, 3) {}
  std::vector<Tensor> forward(const Tensor& x) {
    const auto h = torch::tanh(a(x)), y = b(h), total = y.pow(2).sum();
    return {y, y, total, y * 2, total};
  }
};

TEST_CASE("result returned twice: is two results with own gradients") {
  const DoublePrecision guard;
  const auto whole = torch::linspace(-1, 1, 32).sin().view({8, 4});
  const auto loss_of = [](const std::vector<Tensor>& results) {
    return (results[0] * 2 + results[1].sin() + results[3]).sum() + results[2] * 3 + results[4].log();
  };
  const auto reference = made<ReturnsTwice>();
  const auto wanted = reference->forward(whole);
  loss_of(wanted).backward();
  // Sums are the same on every rank: their gradients, not their losses, are those of one process.
  for (const int stages : {1, 2}) {
    check_ranks(2, [&](ap::World& world) {
      ap::AutoParallel<ReturnsTwice> model(world, made<ReturnsTwice>(), {.stages = stages});
      const auto got = model(mine(whole, world.rank()));
      for (const std::size_t i : {0, 1, 3}) check_close(got[i], mine(wanted[i], world.rank()), kTolerance, "result");
      for (const std::size_t i : {2, 4}) check_close(got[i], wanted[i], kTolerance, "sum");
      loss_of(got).backward();
      check_parameters(model, *reference, "returned twice");
    });
  }
}

struct ComplexNet : nn::Module {
  ComplexNet() {
    register_module("in", in);
    filter = register_parameter("filter", torch::complex(torch::linspace(-1, 1, 5), torch::linspace(0, 2, 5)));
  }
  Tensor forward(const Tensor& x) { return torch::fft::irfft(torch::fft::rfft(in(x)) * filter, 8).pow(2).mean(); }
  nn::Linear in{4, 8};
  Tensor filter;
};

TEST_CASE("gradient norm: complex gradients count by absolute value") {
  const DoublePrecision guard;
  for (const double p : {1.0, 2.0, 3.0}) {
    const auto whole = torch::linspace(-1, 1, 32).sin().view({8, 4});
    auto reference = made<ComplexNet>();
    reference->forward(whole).backward();
    const auto expected = torch::nn::utils::clip_grad_norm_(reference->parameters(), 0.1, p);
    for (const int stages : {1, 2}) {
      check_ranks(2, [&](ap::World& world) {
        ap::AutoParallel<ComplexNet> model(world, made<ComplexNet>(), {.stages = stages});
        model(mine(whole, world.rank())).backward();
        check_close(model->clip_grad_norm_(0.1, p), torch::tensor(expected, torch::kDouble), kTolerance, "norm");
        for (const auto& item : model->named_parameters()) {
          if (!model->owns(item.value())) continue;
          const auto want = reference->named_parameters()[item.key()].grad();
          const auto apart = torch::abs(item.value().grad() - want);
          check_close(apart, torch::zeros_like(apart), kTolerance, item.key());
        }
      });
    }
  }
}

}  // namespace contract_test
