#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <autopar/autopar.hpp>

namespace gpu_dropout_test {

struct DroppingImpl : nets::Linears {
  DroppingImpl() : Linears(256, {{"layer", 256}}) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::dropout(Linears::forward(x).tanh(), 0.25, is_training()).sum(1);
  }
};
TORCH_MODULE(Dropping);

struct Passes {
  std::vector<torch::Tensor> results, gradients;
};

/// Two calls with the same values.
Passes passes(autopar::World& world, autopar::Recompute recompute) {
  torch::manual_seed(7);
  Dropping net;
  {
    const torch::NoGradGuard no_grad;
    net->layers[0]->weight.zero_();
    net->layers[0]->bias.fill_(1);
  }
  autopar::Options options;
  options.recompute = recompute;
  options.stages = 1;
  options.replicas = {world.size()};
  options.microbatches = 1;
  autopar::AutoParallel<Dropping> model(world, net, options);
  Passes out;
  for (int i = 0; i < 2; ++i) {
    model->zero_grad();
    const auto y = model(torch::zeros({64, 256}, autopar::device(world)));
    y.sum().backward();
    out.results.push_back(y.detach().cpu());
    out.gradients.push_back(net->layers[0]->bias.grad().cpu().clone());
  }
  return out;
}

// One kernel a direction on GPUs; the draws are those of the call's key, whenever the operator runs.
TEST_CASE("dropout: keep rate and scale hold, mask is reproducible", "[gpu]") {
  autopar::World world(0, nullptr);
  REQUIRE(autopar::device(world).is_cuda());
  const auto plain = passes(world, autopar::Recompute::kNever), again = passes(world, autopar::Recompute::kAlways);
  const double unit = std::tanh(1.0) / 0.75;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto kept = plain.results[i] / unit;
    CHECK(at::allclose(kept, kept.round(), 0, 1e-3));
    CHECK(kept.mean().item<double>() / 256 == Approx(0.75).epsilon(0.02));
    CHECK(torch::equal(plain.results[i], again.results[i]));
    CHECK(torch::equal(plain.gradients[i], again.gradients[i]));
    // Each element that is kept has the same gradient, so their number is in the sum.
    const double slope = (1 - std::tanh(1.0) * std::tanh(1.0)) / 0.75;
    if (world.size() == 1)
      CHECK(plain.gradients[i].sum().item<double>() / slope == Approx(kept.sum().item<double>()).epsilon(1e-3));
  }
  CHECK_FALSE(torch::equal(plain.results[0], plain.results[1]));
}

}  // namespace gpu_dropout_test
