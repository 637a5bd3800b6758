#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>
#include <autopar/torch/optim/fused.hpp>

// Weights in 8 bits that are kept across calls and written by the optimizer: the bits of weights that each call casts.
namespace fp8_kept_weights_test {

namespace ap = autopar;
namespace nn = torch::nn;
using torch::Tensor;

constexpr std::int64_t kWidth = 64, kBatch = 48;

/// The layers between the first and the last run in 8 bits; the third runs twice.
struct NetImpl : nn::Module {
  NetImpl() {
    for (int i = 0; i < 3; ++i) layers->push_back(nn::Linear(kWidth, kWidth));
    nets::register_all(*this, "first", first, "layers", layers, "last", last);
  }
  Tensor forward(const Tensor& x) {
    auto h = torch::relu(first(x));
    for (const int i : {0, 1, 2, 2}) h = h + torch::tanh(layers[i]->as<nn::Linear>()->forward(h));
    return last(h);
  }
  nn::Linear first{24, kWidth}, last{kWidth, 8};
  nn::ModuleList layers;
};
TORCH_MODULE(Net);

/// With its loss.
struct ClosedNetImpl : NetImpl {
  Tensor forward(const Tensor& x, const Tensor& y) { return nn::functional::mse_loss(NetImpl::forward(x), y); }
};
TORCH_MODULE(ClosedNet);

Tensor waves(std::int64_t columns, double phase) {
  return (torch::arange(kBatch * columns, torch::kFloat) * 0.37 + phase).sin().view({kBatch, columns});
}

struct Way {
  std::string name;
  ap::Options options;
  std::vector<std::int64_t> local;
};

std::vector<Way> ways() {
  return {
      {"one rank", {.microbatches = 1}, {48}},
      {"one rank, recomputed", {.microbatches = 3, .recompute = ap::Recompute::kAlways}, {48}},
      {"2 replicas", {.stages = 1, .microbatches = 2, .zero = 0, .replicas = {2}}, {20, 28}},
      {"2 stages of zero-bubble",
       {.stages = 2, .microbatches = 4, .replicas = {1, 1}, .schedule = ap::ScheduleKind::kZbH1},
       {24, 24}},
      {"2 slices", {.stages = 1, .tensor_parallel = 2, .replicas = {1}}, {24, 24}},
  };
}

/// What a program does to parameters of a rank before a step's calls.
using Change = std::function<void(std::vector<Tensor>& owned, nn::Module& module, int step)>;

/// Writes without another value: weights are cast again.
void touch(std::vector<Tensor>& owned, nn::Module&, int) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : owned) parameter.mul_(1);
}

struct Program {
  std::string name;
  int calls_of_step = 1;
  bool evaluates = false;  ///< between backward and step
  Change change = [](std::vector<Tensor>&, nn::Module&, int) {};
};

std::vector<Program> programs() {
  return {
      {"a step a call"},
      {"two calls a step", 2},
      {"evaluations", 1, true},
      {"weights are clamped", 1, false,
       [](std::vector<Tensor>& owned, nn::Module&, int) {
         const torch::NoGradGuard no_grad;
         for (auto& parameter : owned) parameter.clamp_(-0.1, 0.1);
       }},
      {"a layer is frozen for a while", 1, true,
       [](std::vector<Tensor>&, nn::Module& module, int step) {
         for (auto& item : module.named_parameters())
           if (item.key() == "layers.1.weight") item.value().requires_grad_(step < 2 || step > 3);
       }},
  };
}

constexpr int kSteps = 6;

template <class Optimizer, class Options, class Made, class Loss>
std::vector<Tensor> trained(const Way& way, const Program& program, const Change& before, const Options& settings,
                            const Made& make, const Loss& loss_of) {
  std::vector<Tensor> seen;
  ap::loopback::run(static_cast<int>(way.local.size()), [&](ap::World& world) {
    auto options = way.options;
    options.precision = ap::Precision::kFp8;
    options.log_level = "error";
    ap::AutoParallel model(world, make(), options);
    Optimizer optimizer(model->parameters(), settings);
    model->attach(optimizer);
    const auto self = static_cast<std::size_t>(world.rank());
    std::int64_t first = 0;
    for (std::size_t r = 0; r < self; ++r) first += way.local[r];
    std::vector<Tensor> losses;
    for (int step = 0; step < kSteps; ++step) {
      auto owned = model->owned_parameters();
      program.change(owned, *model, step);
      optimizer.zero_grad();
      for (int call = 0; call < program.calls_of_step; ++call) {
        before(owned, *model, step);
        const auto x = waves(24, step + 10 * call).narrow(0, first, way.local[self]);
        const auto y = waves(8, 0.5 * step + call).narrow(0, first, way.local[self]);
        const auto loss = loss_of(model, x, y);
        loss.backward();
        losses.push_back(loss.detach().clone());
        if (!program.evaluates) continue;
        const torch::NoGradGuard evaluation;
        losses.push_back(loss_of(model, x, y).detach().clone());
      }
      optimizer.step();
    }
    const auto state = model->gather_state();
    if (world.rank() != 0) return;
    seen = losses;
    for (const auto& item : state) seen.push_back(item.value());
  });
  return seen;
}

template <class Optimizer, class Options, class Made, class Loss>
void check(const Options& settings, const Made& make, const Loss& loss_of) {
  torch::set_num_threads(1);
  const Change nothing = [](std::vector<Tensor>&, nn::Module&, int) {};
  for (const auto& way : ways()) {
    for (const auto& program : programs()) {
      INFO(way.name << ", " << program.name);
      const auto kept = trained<Optimizer>(way, program, nothing, settings, make, loss_of);
      const auto cast = trained<Optimizer>(way, program, touch, settings, make, loss_of);
      REQUIRE(kept.size() == cast.size());
      for (std::size_t i = 0; i < kept.size(); ++i) CHECK(torch::equal(kept[i], cast[i]));
    }
  }
}

TEST_CASE("fp8: weights that the optimizer writes have the bits of weights cast in each call") {
  const auto make = [] { return nets::seeded(5, [] { return ClosedNet(); }); };
  const auto loss = [](auto& model, const Tensor& x, const Tensor& y) { return model(x, y); };
  check<ap::optim::AdamW>(torch::optim::AdamWOptions(1e-2), make, loss);
  check<ap::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9), make, loss);
}

TEST_CASE("fp8: weights that the optimizer writes, with a loss outside the model") {
  const auto make = [] { return nets::seeded(5, [] { return Net(); }); };
  const auto loss = [](auto& model, const Tensor& x, const Tensor& y) { return (model(x) - y).pow(2).sum(); };
  check<ap::optim::AdamW>(torch::optim::AdamWOptions(1e-2), make, loss);
}

TEST_CASE("fp8: costs are measured with weights in 8 bits, those of frozen layers in 16") {
  torch::set_num_threads(1);
  const auto make = [] {
    auto net = nets::seeded(5, [] { return ClosedNet(); });
    net->layers[1]->as<nn::Linear>()->weight.requires_grad_(false);
    return net;
  };
  ap::loopback::run(1, [&](ap::World& world) {
    ap::Options options{.microbatches = 2, .precision = ap::Precision::kFp8};
    options.costs = ap::CostChoice::kProfiled;
    options.cost_file = "none";
    options.log_level = "error";
    ap::AutoParallel model(world, make(), options);
    for (int step = 0; step < 3; ++step) {
      const auto loss = model(waves(24, step), waves(8, step));
      loss.backward();
      CHECK(std::isfinite(loss.item<double>()));
    }
  });
}

}  // namespace fp8_kept_weights_test
