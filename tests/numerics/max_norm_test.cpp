#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <memory>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Embeddings whose rows are kept short: what the refusal of Embedding(max_norm) names instead.
namespace max_norm_test {

namespace ap = autopar;
namespace nn = torch::nn;
using numerics::Failure;
using torch::Tensor;

constexpr int kSteps = 3;
constexpr double kLongest = 0.5;

struct Words : nets::Tabled {
  explicit Words(bool keeps_norms) : Tabled(options(keeps_norms), 1, {{"head", 5, false}}) {}
  static nn::EmbeddingOptions options(bool keeps_norms) {
    nn::EmbeddingOptions options(12, 64);
    if (keeps_norms) options.max_norm(kLongest);
    return options;
  }
  Tensor forward(const Tensor& tokens, const Tensor& y) {
    return (Linears::forward(torch::tanh(table(tokens))) - y).pow(2).mean();
  }
};

std::shared_ptr<Words> made(bool keeps_norms) { return nets::made<Words>(4, keeps_norms); }

Tensor tokens() { return torch::arange(8, torch::kLong).mul(5).remainder(12); }
Tensor targets() { return torch::linspace(-2, 1, 40).cos().view({8, 5}); }
Tensor mine(const Tensor& whole, ap::World& world) {
  return whole.chunk(world.size())[static_cast<std::size_t>(world.rank())].clone();
}

std::vector<Tensor> one_process() {
  const auto net = made(false);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  for (int k = 0; k < kSteps; ++k) {
    optimizer.zero_grad();
    net->forward(tokens(), targets()).backward();
    optimizer.step();
    const torch::NoGradGuard no_grad;
    net->table->weight.renorm_(2, 0, kLongest);
  }
  return net->parameters();
}

TEST_CASE("Embedding(max_norm): refused, renorm between steps is exact") {
  std::vector<Tensor> expected;
  {
    const DoublePrecision guard;
    expected = one_process();
  }
  const auto plan = [](int stages, int zero, int tensor, std::vector<int> replicas) {
    ap::Options options{.stages = stages, .microbatches = 1, .zero = zero, .replicas = std::move(replicas)};
    options.tensor_parallel = tensor;
    return options;
  };
  const std::vector<std::pair<ap::Options, int>> plans{
      {plan(1, 0, 1, {2}), 2}, {plan(1, 1, 1, {2}), 2}, {plan(1, 2, 1, {2}), 2},   {plan(1, 3, 1, {2}), 2},
      {plan(1, 0, 2, {1}), 2}, {plan(1, 1, 2, {2}), 4}, {plan(2, 0, 1, {1, 1}), 2}};
  for (const auto& [options, ranks] : plans) {
    const DoublePrecision guard;
    torch::set_num_threads(1);
    ap::loopback::run(ranks, [&, &options = options](ap::World& world) {
      {
        ap::AutoParallel<Words> refused(world, made(true), options);
        torch::optim::SGD optimizer(refused->parameters(), 0.5);
        refused->attach(optimizer);
        try {
          refused->prepare(mine(tokens(), world), mine(targets(), world));
          throw Failure("Embedding(max_norm) is captured");
        } catch (const ap::CaptureError& error) {
          if (std::string(error.what()).find("ap::for_whole_parameters(model, fn)") == std::string::npos)
            throw Failure(std::string("the way out is not in: ") + error.what());
        }
      }
      ap::AutoParallel<Words> model(world, made(false), options);
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
      model->attach(optimizer);
      for (int k = 0; k < kSteps; ++k) {
        optimizer.zero_grad();
        model(mine(tokens(), world), mine(targets(), world)).backward();
        optimizer.step();
        ap::for_whole_parameters(model, [](const std::string& name, Tensor& value, Tensor&, auto&) {
          if (name == "table.weight") value.renorm_(2, 0, kLongest);
        });
      }
      const auto handles = model->parameters();
      for (std::size_t i = 0; i < handles.size(); ++i)
        numerics::check_close(model->gather(handles[i]), expected[i], 1e-12, "parameter " + std::to_string(i));
    });
  }
}

}  // namespace max_norm_test
