// A long training whose starts under `autopar run` are killed within a step; soak.sh compares it with one that is left
// alone. usage: soak FOLDER STEPS SAVE_EVERY KILL_EVERY: start k is killed about step k * KILL_EVERY, in rank k modulo
// ranks

#include <chrono>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>
#include <unistd.h>

#include <autopar/autopar.hpp>
#include <autopar/io/config.hpp>
#include <autopar/io/supervision.hpp>
#include <autopar/training/training.hpp>

namespace ap = autopar;
namespace training = ap::training;

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() { to(torch::kDouble); }
  torch::Tensor forward(const torch::Tensor& x) { return out(drop(torch::tanh(in(x)))).pow(2).mean(); }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(16, 32));
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(0.3));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, 4));
};
TORCH_MODULE(Net);

/// Kills this process some time within the next step.
void kill_soon(std::int64_t start) {
  std::mt19937_64 random(static_cast<std::uint64_t>(start));
  const std::chrono::microseconds until(random() % 3000);
  std::thread([until] {
    std::this_thread::sleep_for(until);
    ::kill(::getpid(), SIGKILL);
  }).detach();
}

int train(ap::World& world, const training::RunOptions& options, std::int64_t kill_every) {
  torch::manual_seed(1);
  ap::AutoParallel<Net> model(world, [] { return Net(); });
  ap::optim::AdamW optimizer(model->parameters(), ap::optim::AdamWOptions(1e-3));
  model->attach(optimizer);
  training::Epochs order(world, 1000);
  model->keep("order", order);
  const auto data = torch::sin(torch::arange(16'000, torch::kDouble)).reshape({1000, 16});
  const auto supervised = ap::supervision(ap::process_environment());
  const auto start = supervised ? supervised->start : 0;
  training::Run run(world, options, model, optimizer);
  if (world.rank() == 0) std::cout << "start " << start << " after step " << run.step() << std::endl;
  while (run.next()) {
    const bool is_killed = start > 0 && kill_every > 0 && run.step() == start * kill_every &&
                           world.rank() == static_cast<int>(start % world.size());
    if (is_killed) kill_soon(start);
    optimizer.zero_grad();
    const auto picked = order.share(24);
    const std::vector<std::int64_t> rows(picked.begin(), picked.end());
    const auto loss = model(data.index_select(0, torch::tensor(rows, torch::kLong)));
    loss.backward();
    optimizer.step();
    if (is_killed) std::this_thread::sleep_for(std::chrono::seconds(10));  // it dies before another step
    if (run.is_due()) run.log({{"loss", loss.item<double>()}});
  }
  return run.exit_status();
}

}  // namespace

int main(int argc, char** argv) try {
  ap::World world(argc, argv);
  if (argc != 5) throw std::invalid_argument("usage: soak FOLDER STEPS SAVE_EVERY KILL_EVERY");
  const auto number = [&](int i) { return static_cast<std::int64_t>(std::stoll(argv[i])); };
  return train(world, {.folder = argv[1], .steps = number(2), .save_every = number(3), .log_every = 50}, number(4));
} catch (const std::exception& error) {
  std::cerr << "soak: " << error.what() << std::endl;
  return 1;
}
