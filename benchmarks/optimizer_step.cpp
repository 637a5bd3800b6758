// What it costs an optimizer that its parameters are parts: `opt.step()` on the parameters of a GPT that ranks hold in
// shards (ZeRO), and of the same optimizer on plain tensors of the same sizes, in turns. One JSON line an optimizer, of
// rank 0; the ratio is the median of the runs'. On GPUs the device is waited for after the steps of a run.
//
//   mpiexec -n 2 optimizer_step [width] [layers] [zero] [runs]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <autopar/autopar.hpp>

namespace {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int width)
      : first(torch::nn::LayerNormOptions({width})),
        second(torch::nn::LayerNormOptions({width})),
        mix(width, 3 * width),
        back(3 * width, width),
        up(width, 4 * width),
        down(4 * width, width) {
    register_module("first", first);
    register_module("second", second);
    register_module("mix", mix);
    register_module("back", back);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto mixed = x + back(torch::gelu(mix(first(x))));
    return mixed + down(torch::gelu(up(second(mixed))));
  }
  torch::nn::LayerNorm first, second;
  torch::nn::Linear mix, back, up, down;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl(int width, int layers) {
    for (int i = 0; i < layers; ++i) blocks->push_back(Block(width));
    register_module("blocks", blocks);
  }
  at::Tensor forward(const at::Tensor& input) {
    auto x = input;
    for (auto& block : *blocks) x = block->as<Block>()->forward(x);
    return x.pow(2).mean();
  }
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Net);

double median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

double seconds_of_steps(torch::optim::Optimizer& optimizer, c10::Device device, int steps) {
  const auto wait = [&] {
    if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  };
  wait();
  const auto start = std::chrono::steady_clock::now();
  for (int k = 0; k < steps; ++k) optimizer.step();
  wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / steps;
}

/// Tensors of their own with the sizes of the handles that this rank has, and gradients.
std::vector<at::Tensor> plain_like(const std::vector<at::Tensor>& handles) {
  std::vector<at::Tensor> plain;
  for (const auto& handle : handles) {
    auto& made = plain.emplace_back(torch::rand(handle.sizes(), handle.options().requires_grad(false)));
    made.set_requires_grad(true);
    made.mutable_grad() = torch::rand(handle.sizes(), handle.options().requires_grad(false));
  }
  return plain;
}

template <class Optimizer>
void measure(autopar::World& world, const std::string& name, int width, int layers, int zero, int runs) {
  constexpr double kRate = 1e-6;
  autopar::Options options{.stages = 1, .microbatches = 1, .zero = zero, .replicas = {world.size()}};
  autopar::AutoParallel<Net> model(world, Net(width, layers), options);
  Optimizer optimizer(model->parameters(), kRate);
  model->attach(optimizer);
  const auto device = autopar::device(world);
  model(torch::randn({2, width}).to(device)).backward();

  Optimizer plain(plain_like(model->owned_parameters()), kRate);
  constexpr int kSteps = 5;
  std::vector<double> guarded_times, plain_times, ratios;
  for (int r = 0; r < runs; ++r) {
    guarded_times.push_back(seconds_of_steps(optimizer, device, kSteps));
    plain_times.push_back(seconds_of_steps(plain, device, kSteps));
    ratios.push_back(guarded_times.back() / plain_times.back());
  }
  if (world.rank() != 0) return;
  std::printf(
      "{\"optimizer\": \"%s\", \"device\": \"%s\", \"zero\": %d, \"tensors\": %zu, \"step_ms\": %.3f, "
      "\"plain_ms\": %.3f, \"ratio\": %.3f}\n",
      name.c_str(), device.is_cuda() ? "cuda" : "cpu", zero, model->owned_parameters().size(),
      1e3 * median(guarded_times), 1e3 * median(plain_times), median(ratios));
}

}  // namespace

int main(int argc, char** argv) {
  autopar::World world(argc, argv);
  const auto number = [&](int at, int otherwise) { return argc > at ? std::atoi(argv[at]) : otherwise; };
  const int width = number(1, 512), layers = number(2, 12), zero = number(3, 1), runs = number(4, 11);
  at::set_num_threads(1);
  measure<torch::optim::AdamW>(world, "torch::optim::AdamW", width, layers, zero, runs);
  measure<autopar::optim::AdamW>(world, "ap::optim::AdamW", width, layers, zero, runs);
}
