// Two hosts of 2 ranks, each with a /dev/shm of its own. A training is left in the middle, and one host loses its
// snapshots, as a new one has none. The next start goes on from the copies of the other host, bit-equal. usage:
// two_hosts_snapshots FOLDER

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <unistd.h>

#include <autopar/autopar.hpp>
#include <autopar/training/training.hpp>

#include "../support/long_training.hpp"

namespace ap = autopar;
namespace fs = std::filesystem;
namespace training = ap::training;

namespace {

using long_training::Net;

struct Trained {
  std::int64_t first = 0;
  std::vector<double> losses;
};

/// @param left_at  the step in which it is left, as by a killed process; -1: none
Trained train(ap::World& world, const fs::path& folder, std::int64_t left_at, int snapshot_every) {
  torch::manual_seed(1);
  ap::AutoParallel<Net> model(world, [] { return Net(); }, {.snapshot_every = snapshot_every});
  ap::optim::AdamW optimizer(model->parameters(), ap::optim::AdamWOptions(1e-2));
  model->attach(optimizer);
  training::Epochs order(world, 100);
  model->keep("order", order);
  const auto data = long_training::data(100);
  training::Run run(world, {.folder = folder, .steps = 20, .save_every = 1000, .log_every = 1000}, model, optimizer);
  Trained out{run.step(), {}};
  while (run.next() && run.step() != left_at) {
    optimizer.zero_grad();
    const auto loss = model(long_training::rows_of(data, order.share(8)));
    loss.backward();
    optimizer.step();
    out.losses.push_back(loss.item<double>());
  }
  return out;
}

std::vector<fs::path> snapshot_folders() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().starts_with("autopar-" + std::to_string(::geteuid()))) found.push_back(entry);
  }
  return found;
}

void require(bool is_so, const std::string& what) {
  if (!is_so) throw std::logic_error(what);
}

void lose_and_go_on(ap::World& world, const fs::path& folder, const Trained& whole, int leader) {
  const auto first = train(world, folder, 13, 5);
  require(first.first == 0 && first.losses.size() == 13, "the first start ends in step 13");
  require(snapshot_folders().size() == 1, "each host has the snapshots of one job");
  world.barrier();
  if (world.rank() == leader) fs::remove_all(snapshot_folders().front());
  world.barrier();
  const auto second = train(world, folder, -1, 5);
  require(second.first == 10, "the second start goes on after step 10, not " + std::to_string(second.first));
  require(second.losses == std::vector<double>(whole.losses.begin() + 10, whole.losses.end()), "bit-equal losses");
  world.barrier();
  require(snapshot_folders().empty(), "nothing is left of the snapshots");
  world.barrier();
}

}  // namespace

int main(int argc, char** argv) try {
  ap::World world(argc, argv);
  require(argc == 2, "usage: two_hosts_snapshots FOLDER");
  require(world.size() == 4 && world.local_size() == 2, "two hosts of two ranks");
  const fs::path folder = argv[1];
  if (world.rank() == 0) fs::remove_all(folder);
  world.barrier();
  const auto whole = train(world, {}, -1, 0);
  for (const int leader : {0, 2}) lose_and_go_on(world, folder / std::to_string(leader), whole, leader);
  std::cout << "what one host lost, the other had" << std::endl;
  return 0;
} catch (const std::exception& error) {
  std::cerr << "two_hosts_snapshots: " << error.what() << std::endl;
  return 1;
}
