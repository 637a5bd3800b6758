// What autopar adds to a call on one rank: `model(x)` and `loss.backward()` of about a thousand tiny operators, where
// nothing but the call of an operator takes time, through AutoParallel and through plain libtorch. One JSON line; the
// ratio is the median of those of runs in which the two take turns step by step.
//
//   replay_overhead [runs]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/nn.h>
#include <torch/types.h>

#include <autopar/autopar.hpp>

namespace {

struct ManyTinyLayersImpl : torch::nn::Module {
  torch::nn::ModuleList layers;
  explicit ManyTinyLayersImpl(int count) {
    for (int i = 0; i < count; ++i) layers->push_back(torch::nn::Linear(4, 4));
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& input) {
    auto x = input;
    for (auto& layer : *layers) x = torch::relu(layer->as<torch::nn::Linear>()->forward(x));
    return x.sum();
  }
};
TORCH_MODULE(ManyTinyLayers);

double median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

/// Seconds of one step: forward, backward and the end of the graph; letting go of the gradients is not timed.
template <class Model>
double seconds_of_step(Model& model, const at::Tensor& x) {
  model->zero_grad();
  const auto start = std::chrono::steady_clock::now();
  model(x).backward();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  autopar::World world(argc, argv);
  const int runs = argc > 1 ? std::atoi(argv[1]) : 20;
  constexpr int kLayers = 333, kStepsInARun = 20;
  at::set_num_threads(1);

  ManyTinyLayers plain(kLayers);
  autopar::AutoParallel<ManyTinyLayers> model(world, ManyTinyLayers(kLayers), autopar::Options{.microbatches = 1});
  const auto x = torch::randn({2, 4});
  std::vector<double> plain_times, model_times, ratios;
  for (int i = -1; i < runs; ++i) {  // the first run warms up
    double plain_time = 0, model_time = 0;
    for (int step = 0; step < kStepsInARun; ++step) {
      plain_time += seconds_of_step(plain, x) / kStepsInARun;
      model_time += seconds_of_step(model, x) / kStepsInARun;
    }
    if (i < 0) continue;
    plain_times.push_back(plain_time);
    model_times.push_back(model_time);
    ratios.push_back(model_time / plain_time);
  }
  std::printf(
      "{\"benchmark\": \"replay_overhead\", \"operators\": %d, \"plain_us\": %.1f, \"autopar_us\": %.1f, "
      "\"ratio\": %.4f}\n",
      3 * kLayers + 1, 1e6 * median(plain_times), 1e6 * median(model_times), median(ratios));
}
