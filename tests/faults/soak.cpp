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

#include <torch/torch.h>
#include <unistd.h>

#include <autopar/autopar.hpp>
#include <autopar/io/config.hpp>
#include <autopar/io/supervision.hpp>
#include <autopar/training/training.hpp>

#include "../support/long_training.hpp"

namespace ap = autopar;
namespace training = ap::training;

namespace {

using long_training::Net;

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
  const auto data = long_training::data(1000);
  const auto supervised = ap::supervision(ap::process_environment());
  const auto start = supervised ? supervised->start : 0;
  training::Run run(world, options, model, optimizer);
  if (world.rank() == 0) std::cout << "start " << start << " after step " << run.step() << std::endl;
  while (run.next()) {
    const bool is_killed = start > 0 && kill_every > 0 && run.step() == start * kill_every &&
                           world.rank() == static_cast<int>(start % world.size());
    if (is_killed) kill_soon(start);
    optimizer.zero_grad();
    const auto loss = model(long_training::rows_of(data, order.share(24)));
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
