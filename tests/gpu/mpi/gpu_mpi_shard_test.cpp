#include <torch/torch.h>

#include <catch_shim.hpp>

#include <autopar/shard/collectives.hpp>
#include <autopar/shard/cross_entropy.hpp>
#include <autopar/shard/embedding.hpp>
#include <autopar/shard/gradients.hpp>
#include <autopar/shard/linear.hpp>
#include <autopar/shard/linear_cross_entropy.hpp>
#include <autopar/shard/top_k.hpp>
#include <autopar/torch/device.hpp>

#include "double_precision.hpp"

// The parallel layers on GPUs over NCCL equal the dense ones on the same device.
namespace gpu_shard_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using ap::Placed;
using at::Tensor;

void check_equal(const Tensor& got, const Tensor& want) {
  REQUIRE(got.device().type() == want.device().type());
  REQUIRE(got.sizes() == want.sizes());
  if (want.numel() > 0) CHECK((got - want).abs().max().item<double>() <= 1e-12 * (1 + want.abs().max().item<double>()));
}

Tensor own(const Tensor& whole, int dim, const ap::Group& group) {
  const auto split = ap::Split::even(whole.size(dim), group.size());
  return whole.narrow(dim, split.begin(group.place()), split.length(group.place()));
}

TEST_CASE("sharded head on GPUs: trains as on one GPU, any sharding") {
  const DoublePrecision doubles;
  ap::World world(0, nullptr);
  const auto device = ap::device(world);
  REQUIRE(device.is_cuda());
  const auto groups = ap::init_groups(world, world.size());
  const auto& g = groups.tensor;
  for (const int64_t classes : {7, 1031}) {
    torch::manual_seed(3);
    nn::Linear backbone(8, 33), dense(33, classes);
    backbone->to(device);
    dense->to(device);
    const auto x = torch::randn({12, 8}).to(device);
    auto target = torch::randint(classes, {12}).to(device);
    target[5] = -100;

    const auto reference =
        F::cross_entropy(dense(torch::tanh(backbone(x))), target, F::CrossEntropyFuncOptions().label_smoothing(0.1));
    reference.backward();
    const auto wanted = backbone->weight.grad().clone();
    const auto options = ap::ParallelCrossEntropyOptions().label_smoothing(0.1);

    for (const int dim : {0, 1}) {
      for (const bool chunked : {false, true}) {
        if (chunked && dim == 0) continue;  // its logits are on all ranks
        CAPTURE(classes, dim, chunked);
        ap::ParallelLinear head(*dense, dim, g);
        backbone->zero_grad();
        const auto features = Placed::shard(torch::tanh(backbone(own(x, 0, g))), g, 0);
        const auto loss = chunked    ? ap::linear_cross_entropy(features, head, target, options)
                          : dim == 0 ? ap::parallel_cross_entropy(
                                           head(ap::gather(features, ap::Placement::replicate())), target, options)
                                     : ap::parallel_cross_entropy(head(features), target, options);
        check_equal(loss, reference.detach());
        loss.backward();
        ap::sum_gradients(backbone->parameters(), groups.world);
        check_equal(backbone->weight.grad(), wanted);
        check_equal(head->weight.grad(), own(dense->weight.grad(), dim == 0 ? 1 : 0, g));
      }
    }
    const auto logits = dense(torch::tanh(backbone(x))).detach();
    const auto [values, indices] = ap::top_k(ap::scatter(logits, g, 1), 5);
    check_equal(values, std::get<0>(logits.topk(5, 1)));
  }
}

TEST_CASE("sharded embedding, column, row layers: equal dense layers") {
  const DoublePrecision doubles;
  ap::World world(0, nullptr);
  const auto device = ap::device(world);
  const auto groups = ap::init_groups(world, world.size());
  const auto& g = groups.tensor;
  torch::manual_seed(5);
  nn::Embedding words(101, 24);
  nn::Linear up(24, 51), down(51, 24);
  for (nn::Module* module : {static_cast<nn::Module*>(words.get()), static_cast<nn::Module*>(up.get()),
                             static_cast<nn::Module*>(down.get())})
    module->to(device);
  const auto indices = torch::randint(101, {4, 9}).to(device);
  const auto result = down(torch::gelu(up(words(indices))));
  result.square().sum().backward();

  ap::ParallelEmbedding table(ap::ParallelEmbeddingOptions(101, 24).dim(0).group(g));
  {
    const torch::NoGradGuard no_grad;
    table->to(device);
    table->weight.copy_(own(words->weight, 0, g));
  }
  ap::ParallelLinear column(*up, 1, g), row(*down, 0, g);
  for (int i = 0; i < 20; ++i) {  // what one call leaves must not reach the next
    column->zero_grad();
    row->zero_grad();
    table->zero_grad();
    const Tensor out = row(column(table(indices)).map([](const Tensor& t) { return torch::gelu(t); }));
    check_equal(out, result.detach());
    out.square().sum().backward();
    check_equal(table->weight.grad(), own(words->weight.grad(), 0, g));
    check_equal(column->weight.grad(), own(up->weight.grad(), 0, g));
    check_equal(row->weight.grad(), own(down->weight.grad(), 1, g));
    check_equal(row->bias.grad(), down->bias.grad());
  }
}

}  // namespace gpu_shard_test
