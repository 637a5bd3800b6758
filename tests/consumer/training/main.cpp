// A user of the component training: a run ends after three steps, another one in its folder goes on with the fourth.

#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>

#include <torch/torch.h>
#include <autopar/autopar.hpp>
#include <autopar/training/training.hpp>

namespace ap = autopar;
namespace training = ap::training;

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return layer(x).pow(2).mean(); }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(3, 2));
};
TORCH_MODULE(Net);

/// @return the steps that were done before and after
std::pair<std::int64_t, std::int64_t> train(ap::World& world, std::int64_t steps) {
  ap::AutoParallel<Net> model(world, [] { return Net(); });
  ap::optim::SGD optimizer(model->parameters(), ap::optim::SGDOptions(0.1));
  model->attach(optimizer);
  training::Epochs order(world, 20);
  model->keep("order", order);
  training::Run run(world, {.folder = "run", .steps = steps}, model, optimizer);
  const auto before = run.step();
  while (run.next()) {
    optimizer.zero_grad();
    const auto picked = order.next(2);
    model(torch::full({2, 3}, static_cast<double>(picked[0]))).backward();
    optimizer.step();
    if (run.is_due()) run.log({{"picked", static_cast<double>(picked[0])}});
  }
  require(order.taken() == steps * 2 * world.size(), "the place in the data was not kept");
  return {before, run.step()};
}

int main(int argc, char** argv) try {
  ap::World world(argc, argv);
  if (world.rank() == 0) std::filesystem::remove_all("run");
  world.barrier();
  require(train(world, 3) == std::pair<std::int64_t, std::int64_t>(0, 3), "the first run has not made three steps");
  require(train(world, 4) == std::pair<std::int64_t, std::int64_t>(3, 4), "the second run did not go on");
  for (const std::string file : {"metrics.jsonl", "metrics.csv", "step-00000004/place.json"})
    require(std::filesystem::exists("run/" + file), file.c_str());
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
