#include <torch/torch.h>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>
#include <nets.hpp>

namespace auto_parallel_mlp_test {

namespace ap = autopar;

struct MlpImpl : nets::Linears {
  explicit MlpImpl(int64_t hidden = 6) : Linears(4, {{"first", hidden}, {"second", hidden}, {"third", 3}}) {
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y) {
    return torch::mse_loss(layers[2](torch::relu(layers[1](torch::tanh(layers[0](x))))), y);
  }
};
TORCH_MODULE(Mlp);

TEST_CASE("AutoParallel on one rank: MLP trains as plain libtorch", "[auto_parallel]") {
  ap::loopback::run(1, [](ap::World& world) {
    torch::manual_seed(1);
    Mlp reference;
    torch::manual_seed(1);
    Mlp net;
    ap::AutoParallel<Mlp> model(world, net);
    torch::optim::SGD opt(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD ref_opt(reference->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      const auto x = torch::randn({8, 4}, torch::kDouble), y = torch::randn({8, 3}, torch::kDouble);
      opt.zero_grad();
      ref_opt.zero_grad();
      auto loss = model(x, y);
      auto expected = reference(x, y);
      loss.backward();
      expected.backward();
      CHECK(torch::allclose(loss, expected, 1e-12, 1e-12));
      opt.step();
      ref_opt.step();
    }
    for (const auto& item : reference->named_parameters()) {
      CHECK(torch::allclose(model->named_parameters()[item.key()], item.value(), 1e-12, 1e-12));
    }
  });
}

}  // namespace auto_parallel_mlp_test
