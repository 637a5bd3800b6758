// Trains with a planner whose staging policy is the user's own, on 2 ranks, and checks that the plan is that policy's
// and that the training is that of one process.
#include "halves_staging.hpp"

#include <autopar/autopar.hpp>

#include <torch/torch.h>

#include <cstdio>

namespace ap = autopar;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 4; ++i) layers_->push_back(torch::nn::Linear(8, 8));
    register_module("layers", layers_);
    to(torch::kDouble);
  }
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& y) {
    for (const auto& layer : *layers_) x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return torch::mse_loss(x, y);
  }
  torch::nn::ModuleList layers_;
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
  ap::World world(argc, argv);
  torch::manual_seed(3);  // the same samples on every rank
  const auto x = torch::randn({8, 8}, torch::kDouble);
  const auto y = torch::zeros({8, 8}, torch::kDouble);

  torch::manual_seed(5);
  Net reference;
  const auto expected = reference(x, y).item<double>();

  torch::manual_seed(5);
  ap::AutoParallel<Net, ap::Planner<HalvesStaging>> model(world, [] { return Net(); });
  auto loss = model(x, y);  // the global batch is x twice, so that its mean is that of x
  loss.backward();

  ap::AutoParallel<Net, ap::Planner<HalvesStaging>> finer(world, Net(), ap::Options{},
                                                          ap::Planner{HalvesStaging{.microbatches = 4}});
  finer(x, y);

  const bool halves =
      model->plan().stages.size() == 2 && model->plan().microbatches == 2 && finer->plan().microbatches == 4;
  const double difference = loss.item<double>() - expected;
  if (world.rank() == 0) std::printf("halves: %d, difference of the losses: %g\n", halves, difference);
  return halves && difference < 1e-12 && difference > -1e-12 ? 0 : 1;
}
