#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <tuple>

#include <ATen/DeviceAccelerator.h>

#include <autopar/autopar.hpp>

// What stages hold on a GPU, where kernels keep and work with other memory than on CPUs, against what plans say.
namespace gpu_memory_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

constexpr int kSteps = 3;

int64_t allocated(c10::Device device) {
  at::accelerator::synchronizeDevice(device.index());
  return at::accelerator::getDeviceStats(device.index()).allocated_bytes[0].current;
}

/// What cuBLAS works in on this thread's stream, forward and backward: each plan counts it, but of a process's models
/// only the first one takes it. In a process of its own, as ctest runs each file: after others, streams have it
/// already.
int64_t taken_by_products(c10::Device device) {
  const auto x = torch::ones({64, 64}, at::TensorOptions().device(device).requires_grad(true));
  const auto before = allocated(device);
  torch::addmm(x[0], x, x).sum().backward();
  x.mutable_grad().reset();
  return allocated(device) - before;
}

struct Attending : nn::Module {
  Attending() {
    for (int i = 0; i < 4; ++i) blocks->push_back(nn::Linear(kWidth, 3 * kWidth));
    nets::register_all(*this, "table", table, "blocks", blocks, "last", last);
  }
  Tensor forward(const Tensor& ids, const Tensor& y) {
    auto x = torch::dropout(table(ids), 0.1, is_training());
    for (const auto& block : *blocks) {
      const auto heads =
          block->as<nn::Linear>()->forward(x).view({x.size(0), x.size(1), 3, 8, -1}).permute({2, 0, 3, 1, 4});
      const auto attended =
          torch::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, is_training() ? 0.1 : 0.0);
      x = x + torch::dropout(attended.transpose(1, 2).flatten(2), 0.1, is_training());
    }
    return F::cross_entropy(last(x.mean(1)), y);
  }
  static constexpr int64_t kWidth = 512;
  static constexpr bool kMultiplies = true;
  static auto batch() {
    return std::tuple(torch::randint(500, {32, 512}, torch::kLong), torch::randint(200, {32}, torch::kLong));
  }
  nn::Embedding table{500, kWidth};
  nn::ModuleList blocks;
  nn::Linear last{kWidth, 200};
};

struct Convolving : nn::Module {
  Convolving() { register_module("layers", layers); }
  static nn::Conv2d conv(int64_t in, int64_t out) {
    return nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
  }
  Tensor forward(const Tensor& x, const Tensor& y) { return F::cross_entropy(layers->forward(x).mean({2, 3}), y); }
  static constexpr bool kMultiplies = false;
  static auto batch() { return std::tuple(torch::randn({32, 8, 64, 64}), torch::randint(64, {32}, torch::kLong)); }
  nn::Sequential layers{conv(8, 64), nn::BatchNorm2d(64), nn::ReLU(),          conv(64, 64), nn::BatchNorm2d(64),
                        nn::ReLU(),  conv(64, 64),        nn::BatchNorm2d(64), nn::ReLU(),   conv(64, 64)};
};

/// A recurrent layer between a table and a linear layer.
template <class Layer, class LayerOptions>
struct Recurrent : nets::CrossEntropy<nets::Recurrent<Layer, LayerOptions>> {
  Recurrent() : Recurrent::CrossEntropy(500, LayerOptions(256, 512).num_layers(2).batch_first(true), 200) {}
  static auto batch() {
    return std::tuple(torch::randint(500, {64, 256}, torch::kLong), torch::randint(200, {64}, torch::kLong));
  }
  static constexpr bool kMultiplies = true;
};

int64_t predicted_here(const ap::Plan& plan, ap::Rank rank) {
  int64_t bytes = 0;
  for (const auto& stage : plan.stages) {
    if (stage.mesh.contains(rank)) bytes += stage.peak_memory.value();
  }
  return bytes;
}

/// Prints what is predicted and held. @return their ratio
/// @param before_all  what products of other models have taken
template <class Net>
double predicted_over_held(ap::World& world, const std::string& name, ap::Precision precision, int64_t before_all) {
  torch::manual_seed(3);
  const auto device = ap::device(world);
  const auto [x, y] = Net::batch();
  const auto own_x = x.to(device), own_y = y.to(device);
  at::accelerator::emptyCache();
  const auto before = allocated(device) - (Net::kMultiplies ? before_all : 0);
  ap::AutoParallel<Net> model(world, [] { return std::make_shared<Net>(); },
                              {.stages = 1,
                               .microbatches = 1,
                               .recompute = ap::Recompute::kNever,
                               .precision = precision,
                               .costs = ap::CostChoice::kRoofline});
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  model->attach(optimizer);
  for (int step = 0; step < kSteps; ++step) {
    if (step == 1) at::accelerator::resetPeakStats(device.index());
    optimizer.zero_grad();
    model(own_x, own_y).backward();
    optimizer.step();
  }
  at::accelerator::synchronizeDevice(device.index());
  const auto held = at::accelerator::getDeviceStats(device.index()).allocated_bytes[0].peak - before;
  const auto predicted = predicted_here(model->plan(), world.rank_id());
  const auto ratio = static_cast<double>(predicted) / static_cast<double>(held);
  if (world.rank() == 0) {
    std::cout << "{\"model\": \"" << name << "\", \"precision\": \"" << ap::option_text(precision)
              << "\", \"predicted_mib\": " << (predicted >> 20) << ", \"held_mib\": " << (held >> 20)
              << ", \"ratio\": " << ratio << "}" << std::endl;
  }
  return ratio;
}

template <class Net>
void check(ap::World& world, const std::string& name, ap::Precision precision, int64_t before_all) {
  const auto ratio = predicted_over_held<Net>(world, name, precision, before_all);
  CAPTURE(name, ap::option_text(precision), ratio);
  CHECK(ratio >= 0.95);
  CHECK(ratio <= 1.25);
}

TEST_CASE("stage memory on a GPU: equals the plan's prediction", "[gpu]") {
  ap::World world(0, nullptr);
  REQUIRE(ap::device(world).is_cuda());
  const auto before = taken_by_products(ap::device(world));
  std::cout << "{\"before_mib\": " << (before >> 20) << "}" << std::endl;
  check<Attending>(world, "attention that drops", ap::Precision::kBf16, before);
  check<Attending>(world, "attention that drops", ap::Precision::kBf16Compute, before);
  check<Attending>(world, "attention that drops", ap::Precision::kTf32, before);
  check<Convolving>(world, "convolutions", ap::Precision::kBf16, before);
  check<Convolving>(world, "convolutions", ap::Precision::kBf16Compute, before);
  check<Convolving>(world, "convolutions", ap::Precision::kTf32, before);
  check<Recurrent<nn::LSTM, nn::LSTMOptions>>(world, "LSTM", ap::Precision::kModule, before);
  check<Recurrent<nn::GRU, nn::GRUOptions>>(world, "GRU", ap::Precision::kModule, before);
  check<Recurrent<nn::RNN, nn::RNNOptions>>(world, "RNN", ap::Precision::kModule, before);
}

}  // namespace gpu_memory_test
