// What a forward does, without running it: `capture` prints the operators of a small network with sizes in the batch
// size B, and runs the program at another batch size than it was captured with.
#include <iostream>

#include <torch/nn.h>
#include <torch/types.h>

#include <autopar/capture/capture.hpp>

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("body", body);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) { return head(torch::relu(body(x.flatten(1)))); }

  torch::nn::Linear body{28 * 28, 128}, head{128, 10};
};
TORCH_MODULE(Net);

int main() {
  Net net;
  const auto program = autopar::capture(net, torch::zeros({4, 28, 28}));

  const auto& graph = program.graph();
  for (const auto& op : graph.ops) {
    std::cout << op.op.schema().name();
    for (const auto& slot : op.outputs)
      for (const auto value : slot.values) std::cout << ' ' << autopar::describe_form(graph.value(value));
    std::cout << '\n';
  }

  const auto x = torch::rand({100, 28, 28});
  const auto difference = (program.replay(x) - net(x)).abs().max().item<double>();
  std::cout << "100 samples: " << (difference == 0 ? "equal to forward" : "unlike forward") << '\n';
  return difference == 0 ? 0 : 1;
}
