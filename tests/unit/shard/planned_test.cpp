#include "on_ranks.hpp"

#include <catch_shim.hpp>

#include <autopar/autopar.hpp>
#include <autopar/shard/cross_entropy.hpp>
#include <autopar/shard/embedding.hpp>
#include <autopar/shard/linear.hpp>

#include <mutex>

// The layers without a group, within AutoParallel: ordinary dense ones, which its planner places.
namespace ap = autopar;
namespace nn = torch::nn;
using namespace shard_test;

namespace {

struct PlannedNet : nn::Module {
  PlannedNet() {
    words = register_module("words", ap::ParallelEmbedding(ap::ParallelEmbeddingOptions(11, 6).padding_idx(0)));
    first = register_module("first", ap::ParallelLinear(ap::ParallelLinearOptions(6, 8).dim(1)));
    second = register_module("second", ap::ParallelLinear(8, 9));
    loss = register_module("loss", ap::ParallelCrossEntropyLoss());
  }
  Tensor forward(const Tensor& x, const Tensor& target) {
    const Tensor vectors = words(x);
    const auto h = first(vectors.sum(1));
    return loss(second(h.map([](const Tensor& t) { return at::gelu(t); })), target);
  }
  ap::ParallelEmbedding words{nullptr};
  ap::ParallelLinear first{nullptr}, second{nullptr};
  ap::ParallelCrossEntropyLoss loss{nullptr};
};

}  // namespace

TEST_CASE("ParallelLinear: dense within AutoParallel") {
  const DoublePrecision doubles;
  torch::manual_seed(73);
  PlannedNet dense;
  const auto x = torch::randint(11, {6, 3}), target = torch::randint(9, {6});
  const auto wanted = dense.forward(x, target);
  wanted.backward();
  std::mutex making;
  for (const int stages : {1, 2}) {
    ap::loopback::run(2, [&](ap::World& world) {
      std::shared_ptr<PlannedNet> net;
      {
        const std::lock_guard lock(making);
        torch::manual_seed(73);
        net = std::make_shared<PlannedNet>();
      }
      ap::AutoParallel<PlannedNet> model(world, net, {.stages = stages, .microbatches = 2});
      const auto mine = [&](const Tensor& of) { return of.narrow(0, world.rank() * 3, 3); };
      const Tensor got = model(mine(x), mine(target));
      must_equal(got, wanted, "loss");
      got.backward();
      for (const auto& item : model->named_parameters()) {
        if (!model->owns(item.value())) continue;
        must_equal(item.value().grad(), dense.named_parameters()[item.key()].grad(), item.key());
      }
    });
  }
}
