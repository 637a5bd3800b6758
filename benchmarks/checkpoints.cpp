// How long a save keeps a training waiting, at once and in the background, and how long a load takes. One JSON line of
// rank 0; medians. Steps between saves make every parameter new. Files go to FOLDER, which must be on a real disk.
//
//   mpiexec -n N checkpoints FOLDER [MiB of parameters] [runs]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include <autopar/autopar.hpp>

namespace {

namespace ap = autopar;

struct NetImpl : torch::nn::Module {
  NetImpl(int width, int layers) {
    for (int i = 0; i < layers; ++i) parts->push_back(torch::nn::Linear(width, width));
    register_module("parts", parts);
  }
  at::Tensor forward(const at::Tensor& input) {
    auto x = input;
    for (auto& part : *parts) x = torch::relu(part->as<torch::nn::Linear>()->forward(x));
    return x.mean();
  }
  torch::nn::ModuleList parts;
};
TORCH_MODULE(Net);

double median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  ap::World world(argc, argv);
  if (argc < 2) return std::puts("checkpoints FOLDER [MiB] [runs]"), 2;
  const std::string folder = argv[1];
  const int mebibytes = argc > 2 ? std::atoi(argv[2]) : 256, runs = argc > 3 ? std::atoi(argv[3]) : 5;
  constexpr int kWidth = 1024;  // 4 MiB a layer
  ap::AutoParallel<Net> model(world, Net(kWidth, std::max(1, mebibytes / 4)));
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));
  model->attach(optimizer);
  const auto x = torch::ones({4, kWidth});
  const auto step = [&] {
    optimizer.zero_grad();
    model(x).backward();
    optimizer.step();
    world.barrier();
  };
  const auto seconds_of = [&](const auto& work) {
    std::vector<double> times;
    for (int run = 0; run <= runs; ++run) {
      step();
      const auto start = std::chrono::steady_clock::now();
      work();
      if (run > 0) times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      model->wait();
    }
    return median(times);
  };
  const double whole = seconds_of([&] { model->save(folder, optimizer); });
  const double blocked = seconds_of([&] { model->save(folder, optimizer, {.wait = false}); });
  const double loaded = seconds_of([&] { model->load(folder, optimizer); });
  if (world.rank() != 0) return 0;
  std::printf(
      "{\"benchmark\": \"checkpoints\", \"ranks\": %d, \"parameters_mib\": %d, \"with_adam_mib\": %d, \"save_s\": "
      "%.4f, "
      "\"blocked_s\": %.4f, \"blocked_part\": %.4f, \"load_s\": %.4f}\n",
      world.size(), mebibytes, 3 * mebibytes, whole, blocked, blocked / whole, loaded);
}
