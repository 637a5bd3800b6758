#include <torch/torch.h>

#include <catch_shim.hpp>

#include <autopar/shard/collectives.hpp>
#include <autopar/shard/cross_entropy.hpp>
#include <autopar/shard/gradients.hpp>
#include <autopar/shard/linear.hpp>
#include <autopar/shard/linear_cross_entropy.hpp>
#include <autopar/shard/state.hpp>

#include "double_precision.hpp"
#include "refusal.hpp"

// The layers over MPI: what loopback's threads cannot show, processes with a generator each.
namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using ap::Placed;
using at::Tensor;

namespace {
void check_equal(const Tensor& got, const Tensor& want) {
  REQUIRE(got.sizes() == want.sizes());
  if (want.numel() > 0) CHECK((got - want).abs().max().item<double>() <= 1e-12 * (1 + want.abs().max().item<double>()));
}
}  // namespace

TEST_CASE("sharded head: trains with its backbone as one process") {
  const DoublePrecision doubles;
  ap::World world(0, nullptr);
  for (const int size : {1, world.size()}) {
    const auto groups = ap::init_groups(world, size, torch::kCPU);
    const auto& g = groups.tensor;
    torch::manual_seed(3);
    nn::Linear backbone(4, 6), dense(6, 9);
    torch::manual_seed(3 + world.rank());  // the layer takes the first rank's
    ap::ParallelLinear drawn(ap::ParallelLinearOptions(6, 9).dim(0).group(groups.world));
    const Tensor biases = ap::gather(Placed::shard(drawn->bias.detach().unsqueeze(0), groups.world, 0));
    check_equal(biases, drawn->bias.detach().expand_as(biases));

    torch::manual_seed(7);
    const auto x = torch::randn({8, 4});
    const auto target = torch::randint(9, {8});
    F::cross_entropy(dense(torch::tanh(backbone(x))), target).backward();
    const auto wanted = backbone->weight.grad().clone();
    backbone->zero_grad();

    ap::ParallelLinear head(*dense, 1, g);
    const auto split = ap::Split::even(8, world.size());
    const auto own = [&](const Tensor& of) {
      return of.narrow(0, split.begin(world.rank()), split.length(world.rank()));
    };
    const auto options = ap::ParallelCrossEntropyOptions().replicas(groups.replicas);
    for (const bool fused : {false, true}) {
      backbone->zero_grad();
      head->zero_grad();
      const auto features = Placed::shard(torch::tanh(backbone(own(x))), g, 0);
      const Tensor targets = ap::gather(Placed::shard(own(target), g, 0));
      const auto loss = fused && !g.is_alone() ? ap::linear_cross_entropy(features, head, targets, options)
                                               : ap::parallel_cross_entropy(head(features), targets, options);
      check_equal(loss, F::cross_entropy(dense(torch::tanh(backbone(x))), target));
      loss.backward();
      ap::sum_gradients(backbone->parameters(), groups.world);
      ap::sum_gradients(head->parameters(), groups.replicas);
      check_equal(backbone->weight.grad(), wanted);
      const auto rows = g.is_alone() ? ap::Split({9}) : ap::Split::even(9, g.size());
      check_equal(head->weight.grad(), dense->weight.grad().narrow(0, rows.begin(g.place()), rows.length(g.place())));
    }
    const auto state = ap::collect_state(*head, g);
    if (g.place() == 0) check_equal(state["weight"], dense->weight.detach());
    ap::relocate_state(*head, state, g);
  }
}

TEST_CASE("sharded cross entropy: invalid target on one rank fails all") {
  ap::World world(0, nullptr);
  const auto groups = ap::init_groups(world, world.size(), torch::kCPU);
  if (groups.tensor.is_alone()) return;
  const auto logits = ap::scatter(torch::zeros({2, 5}), groups.tensor, 1);
  const auto target = torch::tensor({0, world.rank() == 1 ? 5 : 1});
  CHECK(
      contains(refusal([&] { (void)ap::parallel_cross_entropy(logits, target); }), "target 5 at position 1 on rank 1"));
  CHECK(contains(refusal([&] { (void)ap::init_groups(world, world.size() + 1, torch::kCPU); }), "do not tile"));
}
