// What autopar adds to a call on one rank: `model(x)` and `loss.backward()` of about a thousand tiny operators, where
// nothing but the call of an operator takes time, through AutoParallel and through plain libtorch. One JSON line; the ratio
// is of medians of interleaved runs.
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

/// Seconds of `calls` steps: forward, backward and the end of the graph; letting go of the gradients is not timed.
template <class Model>
double seconds_of(Model& model, const at::Tensor& x, int calls) {
  using Clock = std::chrono::steady_clock;
  Clock::duration spent{};
  for (int i = 0; i < calls; ++i) {
    model->zero_grad();
    const auto start = Clock::now();
    model(x).backward();
    spent += Clock::now() - start;
  }
  return std::chrono::duration<double>(spent).count() / calls;
}

}  // namespace

int main(int argc, char** argv) {
  autopar::World world(argc, argv);
  const int runs = argc > 1 ? std::atoi(argv[1]) : 20;
  constexpr int kLayers = 333, kCallsInARun = 20;
  at::set_num_threads(1);

  ManyTinyLayers plain(kLayers);
  autopar::AutoParallel<ManyTinyLayers> model(world, ManyTinyLayers(kLayers), autopar::Options{.microbatches = 1});
  const auto x = torch::randn({2, 4});
  seconds_of(plain, x, kCallsInARun);
  seconds_of(model, x, kCallsInARun);
  std::vector<double> plain_times, model_times;
  for (int i = 0; i < runs; ++i) {
    plain_times.push_back(seconds_of(plain, x, kCallsInARun));
    model_times.push_back(seconds_of(model, x, kCallsInARun));
  }
  std::printf("{\"benchmark\": \"replay_overhead\", \"operators\": %d, \"plain_us\": %.1f, \"autopar_us\": %.1f, "
              "\"ratio\": %.4f}\n",
              3 * kLayers + 1, 1e6 * median(plain_times), 1e6 * median(model_times),
              median(model_times) / median(plain_times));
}
