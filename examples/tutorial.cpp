// A stack of linear layers, however large: what fits one device is replicated, what does not is cut into stages.
//
//   mpiexec -n 2 tutorial 64 512 10
//   tutorial 64 5000 100 --plan-only --cluster examples/clusters/a100-40x8.toml --optimizer-state-factor 2

#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <autopar/autopar.hpp>

#include "command_line/command_line.hpp"

namespace ap = autopar;

struct NetImpl : torch::nn::Module {
  NetImpl(int64_t hidden, int64_t layers) {
    for (int64_t i = 0; i < layers; ++i) layers_->push_back(torch::nn::Linear(hidden, hidden));
    register_module("layers", layers_);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers_) x = layer->as<torch::nn::Linear>()->forward(x);
    return x;
  }
  torch::nn::ModuleList layers_;
};
TORCH_MODULE(Net);

/// An optimizer that keeps so many tensors of a parameter's size.
std::unique_ptr<torch::optim::Optimizer> optimizer_of(double state_factor,
                                                      const std::vector<torch::Tensor>& parameters) {
  constexpr double kRate = 0.01;
  if (state_factor >= 2) return std::make_unique<torch::optim::Adam>(parameters, kRate);
  const auto options = torch::optim::SGDOptions(kRate).momentum(state_factor > 0 ? 0.9 : 0.0);
  return std::make_unique<torch::optim::SGD>(parameters, options);
}

int main(int argc, char** argv) try {
  ap::World world(argc, argv);

  int64_t batch = 64, hidden = 512, layers = 10;
  int steps = 1;
  ap::Options options;
  CLI::App app("Trains `layers` linear layers of `hidden` x `hidden`; each rank brings `batch` samples.");
  app.add_option("batch", batch)->check(CLI::PositiveNumber);
  app.add_option("hidden", hidden)->check(CLI::PositiveNumber);
  app.add_option("layers", layers)->check(CLI::PositiveNumber);
  app.add_option("--steps", steps)->check(CLI::NonNegativeNumber);
  app.add_option("--stages", options.stages, "force the number of stages");
  app.add_option("--replicas", options.replicas, "force the replicas of each stage")->delimiter(',');
  app.add_option("--optimizer-state-factor", options.optimizer_state_factor, "0: SGD, 1: with momentum, 2: Adam");
  app.add_option("--cluster", options.cluster_file, "plan for this cluster instead of the devices at hand");
  app.add_flag("--plan-only", options.plan_only, "print the plan and stop");
  options.optimizer_state_factor = 0;
  if (const auto status = command_line::ended_by(app, argc, argv, world.rank() == 0)) return *status;

  torch::manual_seed(1);
  ap::AutoParallel<Net> model(
      world, [&] { return Net(hidden, layers); }, options);
  if (world.rank() == 0) std::cout << "#Parameters=" << model->parameter_count() << std::endl;

  const auto device = ap::device(world);
  auto x = torch::randn({batch, hidden}, torch::TensorOptions(device).requires_grad(true));
  const auto optimizer = optimizer_of(options.optimizer_state_factor, model->parameters());
  model->attach(*optimizer);
  model->prepare(x);
  if (world.rank() == 0) std::cout << model->plan() << std::endl;
  if (options.plan_only) return 0;

  using Clock = std::chrono::steady_clock;
  const auto time_when_done = [&] {
    x.grad().sum().item<float>();  // waits for the device
    world.barrier();
    return Clock::now();
  };
  Clock::time_point start;
  for (int step = 0; step < steps; ++step) {
    if (step == 1) start = time_when_done();  // the first step allocates and loads kernels
    optimizer->zero_grad();
    auto out = model(x);
    out.backward(torch::randn_like(out));
    optimizer->step();
  }
  if (steps > 1) {
    const std::chrono::duration<double, std::milli> spent = time_when_done() - start;
    if (world.rank() == 0) std::cout << "Step: " + std::to_string(spent.count() / (steps - 1)) + " ms\n" << std::flush;
  }
  std::cout << "Finished on rank " + std::to_string(world.rank()) + "\n"
            << std::flush;  // at once: ranks share the output
  return 0;
} catch (const ap::PlanOnly&) {
  return 0;
} catch (const std::exception& error) {
  std::cerr << "tutorial: " << error.what() << std::endl;
  return 1;
}
