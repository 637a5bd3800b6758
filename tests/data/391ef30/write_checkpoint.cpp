// The program that wrote this folder, with autopar of 391ef30: write_checkpoint FOLDER STAGES
#include <string>

#include <torch/torch.h>

#include <autopar/autopar.hpp>

namespace ap = autopar;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
    const torch::NoGradGuard no_grad;
    double phase = 0;
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::sin(torch::arange(parameter.numel()) + ++phase).view(parameter.sizes()));
    }
  }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y) {
    const auto hidden = torch::dropout(torch::relu(norm(first(x))), 0.25, is_training());
    return torch::mse_loss(second(hidden), y);
  }
  torch::nn::Linear first{6, 8};
  torch::nn::BatchNorm1d norm{8};
  torch::nn::Linear second{8, 3};
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
  ap::World world(argc, argv);
  const std::string folder = argv[1];
  ap::Options options;
  options.stages = std::stoi(argv[2]);
  options.microbatches = 2;
  options.device = "cpu";
  options.costs = "roofline";
  options.cost_file = "none";
  options.plan_file = folder + "/plan.json";
  torch::manual_seed(7);
  ap::AutoParallel<Net> model(world, Net(), options);
  torch::optim::Adam optimizer(model->parameters(),
                               torch::optim::AdamOptions(0.01).betas({0.8, 0.9}).eps(1e-6).weight_decay(0.1));
  model->attach(optimizer);
  for (int step = 0; step < 3; ++step) {
    const auto x = torch::cos(torch::arange(8 * 6, torch::kFloat) + step).view({8, 6});
    const auto y = torch::cos(torch::arange(8 * 3, torch::kFloat) - step).view({8, 3});
    optimizer.zero_grad();
    model(x, y).backward();
    optimizer.step();
  }
  model->save(folder, optimizer);
}
