#include <cstddef>
#include <memory>
#include <vector>

#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <autopar/autopar.hpp>
#include <autopar/torch/device.hpp>

// Convolutions with weights so large that their gradients are computed as products.
namespace gpu_mpi_convolution_test {

namespace ap = autopar;
namespace nn = torch::nn;
using torch::Tensor;

constexpr int kChannels = 1024, kLayers = 4;
constexpr int kSteps = 7, kBefore = 4;  ///< steps until the first replay

struct Net : nn::Module {
  Net() {
    for (int i = 0; i < kLayers; ++i)
      layers->push_back(nn::Conv2d(nn::Conv2dOptions(kChannels, kChannels, 1).bias(i % 2 == 0)));
    register_module("layers", layers);
  }
  Tensor forward(const Tensor& input) {
    auto x = input;
    for (const auto& layer : *layers) x = torch::tanh(layer->as<nn::Conv2d>()->forward(x));
    return x.to(torch::kFloat).square().mean();
  }
  nn::ModuleList layers;
};

std::vector<Tensor> trained(ap::World& world, ap::ScheduleKind schedule) {
  torch::manual_seed(3);
  ap::Options options{.stages = 2, .microbatches = 4, .tensor_parallel = 1, .replicas = {world.size() / 2}};
  options.schedule = schedule;
  options.precision = ap::Precision::kBf16;
  options.costs = ap::CostChoice::kRoofline;
  ap::AutoParallel<std::shared_ptr<Net>> model(world, std::make_shared<Net>(), options);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  model->attach(optimizer);
  torch::manual_seed(4 + world.rank());
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    model(torch::randn({8, kChannels, 4, 4}).to(ap::device(world))).backward();
    optimizer.step();
  }
  CHECK(model->stats().replayed == kSteps - kBefore);
  constexpr bool kSetToNone = false;
  CHECK_NOTHROW(optimizer.zero_grad(kSetToNone));
  std::vector<Tensor> parameters;
  for (const auto& item : model->gather_state()) parameters.push_back(item.value().cpu());
  return parameters;
}

TEST_CASE("convolutions as products on GPUs: split backwards train as whole ones", "[gpu]") {
  ap::World world(0, nullptr);
  const auto expected = trained(world, ap::ScheduleKind::kOneFOneB);
  for (const auto schedule : {ap::ScheduleKind::kZbH1, ap::ScheduleKind::kZbV, ap::ScheduleKind::kSynthesised}) {
    const auto own = trained(world, schedule);
    REQUIRE(own.size() == expected.size());
    for (std::size_t i = 0; i < own.size(); ++i) {
      INFO(ap::option_text(schedule) << ", parameter " << i);
      CHECK((own[i] - expected[i]).norm().item<double>() <= 1e-4 * expected[i].norm().item<double>());
    }
  }
}

}  // namespace gpu_mpi_convolution_test
