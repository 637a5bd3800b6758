#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <autopar/autopar.hpp>

namespace gpu_side_stream_test {

constexpr std::int64_t kWidth = 2000, kLayers = 30, kRows = 16;
constexpr int kSteps = 4;

/// Products of few rows with large weights, whose weight gradients are made beside those of their inputs.
struct Chain : nets::LayerList {
  explicit Chain(bool has_bias) : LayerList(kLayers, kWidth, has_bias) {}
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& wanted) {
    for (auto& layer : layers) x = x + 0.3 * layer(x.relu());
    return torch::mse_loss(x, wanted);
  }
};

/// A weight that two products read, one that another operator reads too, and one that is an input's gradient as well.
struct Sharing : Chain {
  Sharing() : Chain(true) {}
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& wanted) {
    x = torch::nn::functional::linear(x, layers[0]->weight, layers[1]->bias) +
        torch::nn::functional::linear(x.tanh(), layers[0]->weight);
    x = torch::nn::functional::linear(x, layers[2]->weight, layers[2]->bias);
    x = torch::nn::functional::linear(torch::nn::functional::linear(x, layers[3]->weight), layers[3]->weight.t());
    return torch::mse_loss(Chain::forward(x, x).expand_as(x) + x, wanted) + layers[2]->weight.square().mean();
  }
};

struct Setting {
  autopar::Precision precision = autopar::Precision::kModule;
  autopar::Recompute recompute = autopar::Recompute::kNever;
  int microbatches = 1;
};

/// The parameters after some steps of SGD with momentum.
template <class Net>
std::vector<torch::Tensor> train(autopar::World& world, const std::function<std::shared_ptr<Net>()>& make,
                                 const Setting* setting) {
  torch::manual_seed(5);
  const auto device = autopar::device(world);
  const auto net = make();
  if (setting == nullptr) net->to(device);
  std::shared_ptr<autopar::AutoParallel<std::shared_ptr<Net>>> model;
  if (setting != nullptr) {
    autopar::Options options;
    options.stages = 1;
    options.replicas = {1};
    options.precision = setting->precision;
    options.recompute = setting->recompute;
    options.microbatches = setting->microbatches;
    options.fusion = autopar::Switch::kOff;  // joined sums round once
    model = std::make_shared<autopar::AutoParallel<std::shared_ptr<Net>>>(world, net, options);
  }
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9));
  if (model) (*model)->attach(optimizer);
  torch::manual_seed(6);
  for (int step = 0; step < kSteps; ++step) {
    const auto x = torch::randn({kRows, kWidth}).to(device), wanted = torch::randn({kRows, kWidth}).to(device);
    optimizer.zero_grad();
    auto loss = model ? (*model)(x, wanted) : net->forward(x, wanted);
    loss.backward();
    optimizer.step();
  }
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : net->parameters()) parameters.push_back(parameter.detach().cpu());
  return parameters;
}

void check_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO("parameter " << i << ", largest difference " << (a[i] - b[i]).abs().max().item<double>());
    CHECK(torch::equal(a[i], b[i]));
  }
}

TEST_CASE("weight gradients on a side stream: equal one process bitwise", "[gpu]") {
  autopar::World world(0, nullptr);
  const Setting setting;
  const std::function<std::shared_ptr<Chain>()> make = [] { return std::make_shared<Chain>(false); };
  check_equal(train(world, make, &setting), train(world, make, nullptr));
}

TEST_CASE("side stream: bias sums have the library's own fixed order", "[gpu]") {
  autopar::World world(0, nullptr);
  const Setting setting;
  const std::function<std::shared_ptr<Chain>()> make = [] { return std::make_shared<Chain>(true); };
  const auto wrapped = train(world, make, &setting), again = train(world, make, &setting),
             plain = train(world, make, nullptr);
  check_equal(wrapped, again);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    INFO("parameter " << i << ", largest difference " << (wrapped[i] - plain[i]).abs().max().item<double>());
    CHECK(torch::allclose(wrapped[i], plain[i], 1e-5, 1e-7));
  }
}

TEST_CASE("side stream: shared gradients are summed before any read", "[gpu]") {
  autopar::World world(0, nullptr);
  const Setting setting;
  const std::function<std::shared_ptr<Sharing>()> make = [] { return std::make_shared<Sharing>(); };
  const auto wrapped = train(world, make, &setting), plain = train(world, make, nullptr);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    INFO("parameter " << i);
    CHECK(torch::allclose(wrapped[i], plain[i], 1e-4, 1e-6));
  }
}

TEST_CASE("side stream: no bit changes in 16 bits, with micro-batches", "[gpu]") {
  autopar::World world(0, nullptr);
  const std::function<std::shared_ptr<Chain>()> make = [] { return std::make_shared<Chain>(true); };
  for (const autopar::Precision precision : {autopar::Precision::kBf16, autopar::Precision::kModule}) {
    for (const int microbatches : {1, 2}) {
      INFO(autopar::option_text(precision) << ", " << microbatches << " micro-batches");
      const Setting beside{precision, autopar::Recompute::kNever, microbatches},
          again{precision, autopar::Recompute::kAlways, microbatches};  // runs without
      check_equal(train(world, make, &beside), train(world, make, &again));
    }
  }
}

}  // namespace gpu_side_stream_test
