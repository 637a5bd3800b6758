// Cost of replaying a captured model of about a thousand tiny operators against plain libtorch, forward and backward,
// where nothing but the call of an operator takes time. One JSON line; the ratio is of medians of interleaved runs.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/nn.h>
#include <torch/types.h>

#include <autopar/torch/capture.hpp>
#include <autopar/torch/replay.hpp>
#include <autopar/torch/rewrite/linear_fold.hpp>

namespace {

struct ManyTinyLayers : torch::nn::Module {
  torch::nn::ModuleList layers;
  explicit ManyTinyLayers(int count) {
    for (int i = 0; i < count; ++i) layers->push_back(torch::nn::Linear(4, 4));
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : *layers) x = torch::relu(layer->as<torch::nn::Linear>()->forward(x));
    return x.sum();
  }
};

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  using namespace autopar;
  const int runs = argc > 1 ? std::atoi(argv[1]) : 20;
  constexpr int kLayers = 333, kCallsInARun = 20;
  constexpr std::int64_t kBatch = 2;
  at::set_num_threads(1);

  ManyTinyLayers model(kLayers);
  const auto x = torch::randn({kBatch, 4});
  const auto graph = fold_linear(
      capture(model, {input_spec(x)}, [&](const std::vector<at::Tensor>& in) { return std::vector{model.forward(in[0])}; }));
  Replayer replayer(graph, all_ops(graph), graph.outputs, at::kCPU);

  auto bound = replayer.environment();
  bind_state(graph, model, bound);

  const auto eager = [&] { model.forward(x).backward(); };
  const auto replayed = [&] {
    auto environment = bound;
    environment[graph.inputs[0].index()] = x;
    replayer.run(environment, {kBatch, kBatch});
    environment[graph.outputs[0].index()].backward();
  };
  const auto repeat = [&](const auto& step) {
    return seconds([&] {
      for (int i = 0; i < kCallsInARun; ++i) step();
    });
  };
  repeat(eager);
  repeat(replayed);
  std::vector<double> eager_times, replay_times;
  for (int i = 0; i < runs; ++i) {
    eager_times.push_back(repeat(eager) / kCallsInARun);
    replay_times.push_back(repeat(replayed) / kCallsInARun);
  }
  std::printf("{\"benchmark\": \"replay_overhead\", \"operators\": %zu, \"eager_us\": %.1f, \"replay_us\": %.1f, "
              "\"ratio\": %.4f}\n",
              static_cast<std::size_t>(3 * kLayers + 1), 1e6 * median(eager_times), 1e6 * median(replay_times),
              median(replay_times) / median(eager_times));
}
