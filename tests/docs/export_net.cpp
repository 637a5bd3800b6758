// export_net FILE: exports a small net with tied weights, a batch norm and a counter, saves it in the folder FILE.d,
// and prints what it makes of a fixed input. python_load.py reads the files with the lines of docs/guide.md.
#include <cstdio>
#include <string>

#include <torch/nn.h>
#include <torch/types.h>

#include <autopar/autopar.hpp>

namespace ap = autopar;

/// A linear layer with the weights of another.
struct TiedLinearImpl : torch::nn::Module {
  TiedLinearImpl(const torch::Tensor& tied, int64_t outputs)
      : weight(register_parameter("weight", tied)), bias(register_parameter("bias", torch::rand({outputs}))) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight, bias); }
  torch::Tensor weight, bias;
};
TORCH_MODULE(TiedLinear);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("words", words);
    register_module("norm", norm);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return head(norm(words(tokens))); }
  torch::nn::Embedding words{10, 4};
  torch::nn::BatchNorm1d norm{4};
  TiedLinear head{words->weight, 10};
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
  ap::World world(argc, argv);
  if (argc != 2) return std::puts("export_net FILE"), 2;
  torch::manual_seed(5);
  ap::AutoParallel<Net> model(world, Net(), ap::Options{.device = ap::DeviceChoice::kCpu});
  const auto tokens = torch::arange(8) % 7;
  model(tokens).sum().backward();  // the running statistics move
  model->eval();
  const torch::NoGradGuard no_grad;
  const auto made = model(tokens).to(torch::kDouble);
  model->export_weights(argv[1]);
  model->save(std::string(argv[1]) + ".d", {.format = ap::single_file()});
  if (world.rank() != 0) return 0;
  for (int i = 0; i < made.numel(); ++i) std::printf("%.9g\n", made.view({-1})[i].item<double>());
}
