#include "on_ranks.hpp"

#include <catch_shim.hpp>
#include <nets.hpp>
#include <says.hpp>

#include <autopar/shard/collectives.hpp>
#include <autopar/shard/convert.hpp>
#include <autopar/shard/cross_entropy.hpp>
#include <autopar/shard/embedding.hpp>
#include <autopar/shard/gradients.hpp>
#include <autopar/shard/linear.hpp>
#include <autopar/shard/state.hpp>

#include <cmath>
#include <limits>

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using ap::Placed;
using ap::Split;
using namespace shard_test;

namespace {

/// A backbone and a head, as a user writes it: dense until it is converted.
struct Net : nn::Module {
  explicit Net(int classes = 7) {
    body = register_module("body", nn::Sequential(nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 5)));
    scale = register_buffer("scale", torch::full({1}, 2.0));
    fc = register_module("fc", ap::ParallelLinear(5, classes));
  }
  Tensor features(const Tensor& x) { return torch::tanh(body->forward(x)) * scale; }
  Placed forward(const Tensor& x) { return fc(features(x)); }

  nn::Sequential body{nullptr};
  Tensor scale;
  ap::ParallelLinear fc{nullptr};
};

/// A net of the same values on each rank, of which the default generator has no part.
std::shared_ptr<Net> copy_of(const Net& net) {
  auto made = std::make_shared<Net>();
  const torch::NoGradGuard no_grad;
  for (const auto& item : net.named_parameters()) made->named_parameters()[item.key()].copy_(item.value());
  return made;
}

/// libtorch's Sequential takes another only with a forward of known types.
struct BlockImpl : nn::SequentialImpl {
  using nn::SequentialImpl::SequentialImpl;
  Tensor forward(const Tensor& x) { return nn::SequentialImpl::forward(x); }
};
TORCH_MODULE(Block);

nn::Sequential nested_net() {
  torch::manual_seed(67);
  return nn::Sequential(Block(nn::Linear(4, 3), nn::ReLU()), nn::Linear(3, 5));
}

struct Sample {
  Tensor x, target;
};

Sample samples_of(int count, int classes) {
  auto target = torch::randint(classes, {count});
  target[1] = -100;
  return {torch::randn({count, 4}), target};
}

}  // namespace

// TorchShard, faults 1 and 2: groups smaller than the world did not exist, and the backbone's gradient was 1/P.
TEST_CASE("recipe: data-parallel body, sharded head, dense gradients") {
  const DoublePrecision doubles;
  torch::manual_seed(43);
  const Net dense_net;
  const auto dense = copy_of(dense_net);
  const auto [x, target] = samples_of(10, 7);
  F::cross_entropy(Tensor(dense->forward(x)), target).backward();
  double norm = 0;
  for (const auto& parameter : dense->parameters()) norm += parameter.grad().pow(2).sum().item<double>();
  struct Layout {
    int ranks, group;
  };
  for (const auto [ranks, group] :
       {Layout{1, 1}, Layout{2, 2}, Layout{4, 4}, Layout{4, 2}, Layout{4, 1}, Layout{3, 3}}) {
    std::mutex making;
    on_ranks(
        ranks,
        [&](ap::World&, const ap::Groups& groups) {
          std::shared_ptr<Net> net;
          {
            const std::lock_guard lock(making);
            net = copy_of(dense_net);
          }
          (void)ap::convert_parallel_linear(*net, groups.tensor, {{"fc", 1}});
          const auto mine = part_of(x, groups.world, 0);
          const auto features = ap::gather(Placed::shard(net->features(mine), groups.tensor, 0));
          const Tensor own_targets = part_of(target, groups.world, 0);
          const Tensor targets = ap::gather(Placed::shard(own_targets, groups.tensor, 0));
          ap::ParallelCrossEntropyLoss loss(ap::ParallelCrossEntropyOptions().replicas(groups.replicas));
          const auto got = loss(net->fc(features), targets);
          must_equal(got, F::cross_entropy(Tensor(dense->forward(x)), target), "loss");
          got.backward();
          ap::sum_gradients(*net, groups);
          const auto wanted = dense->named_parameters();
          for (const auto& item : net->named_parameters()) {
            const bool is_head = item.key().starts_with("fc.");
            must_equal(item.value().grad(),
                       is_head ? part_of(wanted[item.key()].grad(), groups.tensor, 0) : wanted[item.key()].grad(),
                       item.key());
          }
          // TorchShard, fault 7: norms of what each rank had
          const double got_norm = ap::clip_grad_norm_(*net, 0.1);
          must_be(std::abs(got_norm - std::sqrt(norm)) < 1e-12, "norm");
          must_be(std::abs(ap::clip_grad_norm_(*net, 1e9) - 0.1) < 1e-5, "clipped");
        },
        group);
  }
}

TEST_CASE("sum_gradients: missing gradients, and other norms") {
  const DoublePrecision doubles;
  on_ranks(3, [](ap::World& world, const ap::Groups& groups) {
    auto a = leaf(torch::ones({2})), b = leaf(torch::ones({3})), c = leaf(torch::ones({1}));
    a.mutable_grad() = torch::full({2}, world.rank() + 1.0);
    if (world.rank() == 1) b.mutable_grad() = torch::full({3}, 5.0);
    ap::sum_gradients({a, b, c}, groups.world);
    must_equal(a.grad(), torch::full({2}, 6.0), "sum");
    must_equal(b.grad(), torch::full({3}, 5.0), "of one");
    must_be(!c.grad().defined(), "of none");

    nn::Linear dense(4, 7);
    ap::ParallelLinear layer(*dense, 1, groups.tensor);
    layer->weight.mutable_grad() = part_of(torch::arange(28.).view({7, 4}) - 3, groups.tensor, 0).clone();
    layer->bias.mutable_grad() = part_of(torch::arange(7.), groups.tensor, 0).clone();
    const auto all = torch::cat({torch::arange(28.) - 3, torch::arange(7.)});
    for (const double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
      must_be(std::abs(ap::clip_grad_norm_(*layer, 1e9, p) / all.norm(p).item<double>() - 1) < 1e-12, "norm");
    }
    layer->bias.mutable_grad().mul_(std::numeric_limits<double>::quiet_NaN());
    must_be(std::isnan(ap::clip_grad_norm_(*layer, 1e9)), "NaN is not hidden");
  });
}

TEST_CASE("sharded state: round trip to another number of ranks") {
  const DoublePrecision doubles;
  struct Model : nn::Module {
    Model(const ap::Group& group) {
      words = register_module("words", ap::ParallelEmbedding(ap::ParallelEmbeddingOptions(5, 3).dim(0).group(group)));
      first = register_module("first", ap::ParallelLinear(ap::ParallelLinearOptions(3, 2).dim(1).group(group)));
      second = register_module("second", ap::ParallelLinear(ap::ParallelLinearOptions(2, 3).dim(0).group(group)));
      norm = register_module("norm", nn::BatchNorm1d(3));
    }
    ap::ParallelEmbedding words{nullptr};
    ap::ParallelLinear first{nullptr}, second{nullptr};
    nn::BatchNorm1d norm{nullptr};
  };
  torch::manual_seed(47);
  ap::StateDict state;
  const Model whole{ap::Group()};
  on_ranks(1, [&](ap::World&, const ap::Groups& groups) { state = ap::collect_state(whole, groups.tensor); });
  REQUIRE(state.size() == 10);
  REQUIRE(torch::equal(state["first.weight"], whole.first->weight));
  for (const int ranks : {2, 3, 4}) {
    on_ranks(ranks, [&](ap::World&, const ap::Groups& groups) {
      const auto& g = groups.tensor;
      Model model(g);
      ap::StateDict faulty = g.place() == 0 ? state : ap::StateDict();
      const auto before = model.first->weight.clone();
      if (g.place() == 0) faulty["first.weight"] = torch::zeros({3, 3});
      check_says({"first.weight", "[3, 3]", "[2, 3]"}, [&] { ap::relocate_state(model, faulty, g); });
      must_equal(model.first->weight, before, "unchanged", 0);
      if (g.place() == 0) {
        faulty = state;
        faulty.insert("third", torch::zeros({1}));
      }
      check_says({"no 'third'"}, [&] { ap::relocate_state(model, faulty, g); });
      if (g.place() == 0) {
        faulty = state;
        faulty.erase("norm.bias");
      }
      check_says({"no 'norm.bias'"}, [&] { ap::relocate_state(model, faulty, g); });

      ap::relocate_state(model, g.place() == 0 ? state : ap::StateDict(), g);
      must_equal(model.words->weight, part_of(whole.words->weight, g, 0), "words", 0);
      must_equal(model.first->bias, part_of(whole.first->bias, g, 0), "bias", 0);
      must_equal(model.second->weight, part_of(whole.second->weight, g, 1), "row", 0);
      const auto back = ap::collect_state(model, g);
      must_be(back.size() == (g.place() == 0 ? state.size() : 0), "on the first rank");
      for (const auto& item : back) must_be(torch::equal(item.value(), state[item.key()]), item.key());
      if (!g.is_alone()) check_says({"another group"}, [&] { (void)ap::collect_state(model, groups.world); });
    });
  }
}

TEST_CASE("sharded state: ranks of different seeds start alike") {
  const DoublePrecision doubles;
  torch::manual_seed(53);
  nn::Linear dense(4, 6);
  on_ranks(
      4,
      [&](ap::World& world, const ap::Groups& groups) {
        nn::Sequential model(nn::BatchNorm1d(4), ap::GatheredLinear(*dense, 1, groups.tensor));
        const torch::NoGradGuard no_grad;
        for (auto& parameter : model->parameters()) parameter.add_(world.rank());
        for (auto& buffer : model->buffers()) buffer.add_(world.rank());
        const auto head = model->parameters()[2].clone();
        ap::broadcast_state(*model, groups);
        must_equal(model->parameters()[0], torch::ones({4}), "backbone: the world's first rank", 0);
        must_equal(model->buffers()[2], torch::zeros({}), "a buffer of integers", 0);
        must_equal(model->parameters()[2], head - (world.rank() - groups.tensor.place()), "head: the first replica");
      },
      2);
}

// TorchShard, faults 3 and 8: nested linear layers, and what conversion made of an embedding's sizes.
TEST_CASE("convert_parallel_linear: nested Sequential, declared members") {
  const DoublePrecision doubles;
  torch::manual_seed(59);
  const auto x = torch::randn({3, 4});
  for (const int dim : {0, 1}) {
    std::mutex making;
    on_ranks(2, [&](ap::World&, const ap::Groups& groups) {
      std::shared_ptr<Net> net, dense;
      nn::Sequential nested, nested_dense;
      {
        const std::lock_guard lock(making);
        torch::manual_seed(61);
        net = std::make_shared<Net>();
        dense = copy_of(*net);
        nested = nested_net();
        nested_dense = nested_net();
      }
      const auto handle = net->fc->weight;
      const auto paths = ap::convert_parallel_linear(*net, groups.tensor, dim);
      must_be(paths == std::vector<std::string>{"body.0", "body.2", "fc"}, "paths");
      must_be(handle.is_same(net->fc->weight) && handle.is_same(net->named_parameters()["fc.weight"]), "handles stay");
      must_be(net->named_parameters().keys() == dense->named_parameters().keys(), "names stay");
      const auto y = net->forward(x);
      must_equal(y.placement().is_shard() ? ap::gather(y) : y, dense->forward(x), "net");
      must_be(ap::sharded_parameters(*net).size() == (dim == 1 ? 6 : 3), "shards");
      check_says({"fc", "cut already"}, [&] { ap::convert_parallel_linear(*net, groups.tensor, {{"fc", 1}}); });

      (void)ap::convert_parallel_linear(*nested, groups.tensor, dim);
      must_equal(nested->forward(x), nested_dense->forward(x), "nested");
      const auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(
          nn::Sequential(nested->ptr<ap::GatheredLinearImpl>(1))->clone());
      const auto input = torch::ones({2, 3});
      must_equal(copy->forward(input), nn::Sequential(nested->ptr<ap::GatheredLinearImpl>(1))->forward(input),
                 "a copy");
      must_be(!copy->parameters()[0].is_same(nested->ptr(1)->parameters()[0]), "its own parameters");
      const auto state = ap::collect_state(*nested, groups.tensor);
      for (const auto& item : state)
        must_equal(item.value(), nested_dense->named_parameters()[item.key()], item.key(), 0);
    });
  }
}

TEST_CASE("convert_parallel_linear: stale pointers are refused") {
  struct Plain : nn::Module {
    Plain() { nets::register_all(*this, "body", body, "fc", fc); }
    nn::Sequential body{nn::Linear(4, 4)};
    nn::Linear fc{4, 4};
  };
  on_ranks(2, [](ap::World&, const ap::Groups& groups) {
    const auto& g = groups.tensor;
    Plain plain;
    check_says({"'fc'", "ap::ParallelLinear", "Sequential"}, [&] { ap::convert_parallel_linear(plain, g, 1); });
    must_be(ap::sharded_parameters(plain).empty(), "nothing changed");
    must_be(ap::convert_parallel_linear(plain, g, {{"body.0", 1}}).size() == 1, "others can be chosen");
    check_says({"'fd'", "named_modules"}, [&] { ap::convert_parallel_linear(plain, g, {{"fd", 1}}); });
    nn::Linear alone(2, 2);
    check_says({"the model itself"}, [&] { ap::convert_parallel_linear(*alone, g, 1); });
    nn::Sequential holds(alone);
    check_says({"held elsewhere"}, [&] { ap::convert_parallel_linear(*holds, g, 1); });
    nn::ModuleList list(nn::Linear(2, 2));
    check_says({"by its type"}, [&] { ap::convert_parallel_linear(*list, g, 1); });
    nn::Sequential good(nn::Linear(2, 2));
    check_says({"dim 3"}, [&] { ap::convert_parallel_linear(*good, g, 3); });
  });
}
