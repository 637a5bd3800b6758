// One rank of a job that trains with trace_file = "trace.json", every two steps; trace.sh starts it and looks at what
// it leaves. usage: trace FOLDER KILLED    rank KILLED is killed in the fifth step; -1: nobody
//        trace FOLDER apart     each rank in a folder of its own, FOLDER/RANK, as on hosts without a common disk

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>

#include <torch/nn.h>
#include <torch/types.h>

#include <autopar/autopar.hpp>

#include <unistd.h>

namespace {

namespace ap = autopar;

struct Net : torch::nn::Module {
  Net() : a(register_module("a", torch::nn::Linear(4, 4))), b(register_module("b", torch::nn::Linear(4, 4))) {}
  torch::Tensor forward(const torch::Tensor& x) { return b(torch::relu(a(x))).pow(2).mean(); }
  torch::nn::Linear a, b;
};

int train(ap::World& world, int killed) {
  ap::AutoParallel<Net> model(world, [] { return Net(); }, {.trace_file = "trace.json", .trace_every = 2});
  ap::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01));
  model->attach(optimizer);
  for (int step = 1; step <= 7; ++step) {
    if (step == 5 && world.rank() == killed) ::kill(::getpid(), SIGKILL);
    optimizer.zero_grad();
    model(torch::ones({4, 4})).backward();
    optimizer.step();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::filesystem::path folder = argv[1];
  const std::string mode = argv[2];
  try {
    ap::World world(argc, argv);
    const auto own = mode == "apart" ? folder / std::to_string(world.rank()) : folder;
    std::filesystem::create_directories(own);
    std::filesystem::current_path(own);
    return train(world, mode == "apart" ? -1 : std::stoi(mode));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 3;
  }
}
