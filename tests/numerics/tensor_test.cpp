#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <says.hpp>
#include <temp_folder.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Stages with several tensor shards, against one process: programs as people write them, none of which knows of shards.
namespace tensor_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::Setup;
using torch::Tensor;

/// A gated layer, a plain pair and a residual in place.
struct FeedForward : nn::Module {
  nn::Linear up{nullptr}, down{nullptr}, gate_and_up{nullptr}, out{nullptr};
  nn::LayerNorm norm{nullptr};
  FeedForward() {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
    up = register_module("up", nn::Linear(6, 10));
    down = register_module("down", nn::Linear(10, 6));
    gate_and_up = register_module("gate_and_up", nn::Linear(6, 16));
    out = register_module("out", nn::Linear(nn::LinearOptions(8, 6).bias(false)));
  }
  Tensor forward(Tensor x, const Tensor& y) {
    auto h = down(torch::gelu(up(norm(x))));
    h += x;
    const auto halves = gate_and_up(h).chunk(2, -1);
    h = h + out(torch::silu(halves[0]) * halves[1]);
    return F::mse_loss(h, y);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {torch::randn({n, 3, 6}), torch::randn({n, 3, 6})}; }
};

/// Several pairs, of which some lie whole in each of two stages wherever these are cut.
struct Deep : nn::Module {
  std::vector<nn::Linear> layers;
  Deep() {
    for (int i = 0; i < 8; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i), i % 2 == 0 ? nn::Linear(6, 12) : nn::Linear(12, 6)));
    }
  }
  Tensor forward(Tensor x, const Tensor& y) {
    for (std::size_t i = 0; i < layers.size(); i += 2) x = x + layers[i + 1](torch::tanh(layers[i](x)));
    return F::mse_loss(x, y);
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {torch::randn({n, 6}), torch::randn({n, 6})}; }
};

/// A language model: fused projections, causal attention, a table that the first and the last operators read.
struct Gpt : nn::Module {
  static constexpr int kHeads = 4, kWidth = 8, kWords = 11, kTime = 5;
  nn::Embedding words{nullptr}, places{nullptr};
  nn::Linear qkv{nullptr}, proj{nullptr}, fc{nullptr}, back{nullptr};
  nn::LayerNorm first{nullptr}, second{nullptr}, last{nullptr};
  Gpt() {
    words = register_module("words", nn::Embedding(kWords, kWidth));
    places = register_module("places", nn::Embedding(kTime, kWidth));
    first = register_module("first", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", nn::Linear(kWidth, 3 * kWidth));
    proj = register_module("proj", nn::Linear(kWidth, kWidth));
    second = register_module("second", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    fc = register_module("fc", nn::Linear(kWidth, 4 * kWidth));
    back = register_module("back", nn::Linear(4 * kWidth, kWidth));
    last = register_module("last", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  }
  Tensor attention(const Tensor& x) {
    const auto b = x.size(0), t = x.size(1);
    auto parts = qkv(x).view({b, t, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    return proj(mixed.transpose(1, 2).reshape({b, t, kWidth}));
  }
  Tensor forward(const Tensor& tokens, const Tensor& next) {
    auto x = words(tokens) + places(torch::arange(tokens.size(1)));
    x = x + attention(first(x));
    x = x + back(torch::gelu(fc(second(x)), "tanh"));
    const auto logits = torch::matmul(last(x), words->weight.t());
    return F::cross_entropy(logits.view({-1, kWords}), next.reshape({-1}));
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) {
    return {torch::randint(kWords, {n, kTime}), torch::randint(kWords, {n, kTime})};
  }
};

/// libtorch's own layers, time first, with a mask; loss outside.
struct Encoder : nn::Module {
  nn::MultiheadAttention attention{nn::MultiheadAttentionOptions(8, 4)};
  nn::Linear up{nullptr}, down{nullptr};
  Encoder() {
    register_module("attention", attention);
    up = register_module("up", nn::Linear(8, 12));
    down = register_module("down", nn::Linear(12, 8));
  }
  Tensor forward(const Tensor& x) {
    const auto in = x.transpose(0, 1);
    const auto mixed = std::get<0>(attention(in, in, in));
    return down(torch::relu(up(in + mixed))).transpose(0, 1);
  }
  static std::tuple<Tensor> batch(std::int64_t n) { return {torch::randn({n, 4, 8}).requires_grad_()}; }
};

/// Layers of their own for queries, keys and values, scores written out with a bias for each head.
struct Separate : nn::Module {
  nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr};
  Tensor bias;
  Separate() {
    for (auto* layer : {&q, &k, &v, &o}) *layer = nn::Linear(8, 8);
    register_module("q", q);
    register_module("k", k);
    register_module("v", v);
    register_module("o", o);
    bias = register_parameter("bias", torch::randn({4, 1, 5}));
  }
  Tensor heads(const Tensor& x) { return x.view({x.size(0), x.size(1), 4, 2}).transpose(1, 2); }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto scores = torch::matmul(heads(q(x)), heads(k(x)).transpose(-2, -1)) / std::sqrt(2.0) + bias;
    const auto mixed = torch::einsum("bhij,bhjd->bhid", {torch::softmax(scores, -1), heads(v(x))});
    return F::mse_loss(o(mixed.transpose(1, 2).contiguous().view_as(x)), y, F::MSELossFuncOptions(torch::kSum));
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) { return {torch::randn({n, 5, 8}), torch::randn({n, 5, 8})}; }
};

/// A convolutional network with a head of ten classes, some of which count more, some not at all.
struct Classifier : nn::Module {
  nn::Conv2d conv{nullptr};
  nn::BatchNorm2d norm{nullptr};
  nn::Linear head{nullptr};
  Tensor weight;
  Classifier() {
    conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)));
    norm = register_module("norm", nn::BatchNorm2d(4));
    head = register_module("head", nn::Linear(4, 10));
    weight = register_buffer("weight", torch::rand({10}) + 0.5);
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto h = torch::relu(norm(conv(x))).mean({2, 3});
    return F::cross_entropy(head(h), y,
                            F::CrossEntropyFuncOptions().weight(weight).ignore_index(3).label_smoothing(0.1));
  }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) {
    return {torch::randn({n, 2, 4, 4}), torch::randint(10, {n})};
  }
};

/// The planner's plan for one rank of each replica, whose operators `shards` ranks share.
struct ShardedPlanner {
  static inline thread_local int shards = 1;
  ap::Plan plan(const ap::ModelProfile& profile, const ap::ProfiledCost& costs, const ap::Cluster& cluster,
                ap::PlanRequest request, const ap::PlanObserver& = {}) const {
    request.world /= shards;
    auto few = cluster;
    few.devices = request.world;
    auto plan = numerics::plan_of(Setup{}, profile, costs, few, request);
    plan.world *= shards;
    for (auto& stage : plan.stages) {
      std::vector<ap::Rank> ranks;
      for (const auto rank : stage.mesh.ranks()) {
        for (int s = 0; s < shards; ++s) ranks.emplace_back(rank.value() * shards + s);
      }
      stage.mesh = ap::Mesh(ranks, shards);
    }
    std::vector<std::vector<ap::ComputeAction>> orders;
    for (const auto& order : plan.orders) orders.insert(orders.end(), static_cast<std::size_t>(shards), order);
    plan.orders = orders;
    return plan;
  }
};

template <class Net>
void check(int shards, std::vector<int> replicas, int microbatches, Setup setup = {}, numerics::Traits traits = {}) {
  INFO(shards << " shards");
  int ranks = 0;
  for (const int r : replicas) ranks += r * shards;
  setup.options.stages = static_cast<int>(replicas.size());
  setup.options.replicas = replicas;
  setup.options.microbatches = microbatches;
  if (setup.options.zero < 0) setup.options.zero = 0;
  setup.local.assign(2, std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 2));
  setup.local.back().front() = 4;
  std::function<std::shared_ptr<Net>()> make = [] { return std::make_shared<Net>(); };
  const auto reference = numerics::run_reference<Net>(make, setup, 7);
  std::atomic<bool> any_slices = false;
  ap::loopback::run(ranks, [&](ap::World& world) {
    const auto net = [&] {
      const std::lock_guard lock(numerics::generator_mutex());
      torch::manual_seed(7);
      return make();
    }();
    ShardedPlanner::shards = shards;
    ap::AutoParallel<Net, ShardedPlanner> model(world, net, setup.options);
    numerics::check_rank<Net>(world, model, reference, setup, traits);
    for (const auto& parameter : model->parameters()) {
      if (model->owns(parameter) && model->shard(parameter).dim >= 0) any_slices = true;
    }
  });
  CHECK(any_slices);
}

TEST_CASE("a pair of linear layers on two and four shards") {
  const DoublePrecision fp64;
  check<FeedForward>(2, {1}, 1);
  check<FeedForward>(4, {1}, 2);
  check<FeedForward>(2, {2}, 1);
}

TEST_CASE("a language model whose table is the head") {
  const DoublePrecision fp64;
  check<Gpt>(2, {1}, 1);
  check<Gpt>(4, {1}, 2);
}

TEST_CASE("libtorch's attention, loss outside") {
  const DoublePrecision fp64;
  check<Encoder>(2, {1}, 1);
  check<Encoder>(2, {2}, 1);
}

TEST_CASE("queries, keys and values of their own") {
  const DoublePrecision fp64;
  check<Separate>(2, {1}, 1);
  check<Separate>(4, {1}, 1);
}

TEST_CASE("a class head of ten classes") {
  const DoublePrecision fp64;
  check<Classifier>(2, {1}, 1);
  check<Classifier>(3, {1}, 1);
  Setup exact;
  exact.options.batch_norm = "exact";
  check<Classifier>(2, {2}, 1, exact);
}

TEST_CASE("stages of tensor shards, one behind the other") {
  const DoublePrecision fp64;
  check<Deep>(2, {1, 1}, 2);
  check<Deep>(2, {1, 2}, 2);
}

TEST_CASE("tensor shards with every schedule, recomputation, clipping and accumulation") {
  const DoublePrecision fp64;
  for (const auto* schedule : {"gpipe", "1f1b", "zb-h1"}) {
    Setup setup;
    setup.options.schedule = schedule;
    check<Deep>(2, {1, 1}, 2, setup);
  }
  Setup setup;
  setup.options.recompute = "full";
  setup.optimizer = numerics::Optimizer::kAdamW;
  setup.clip_norm = 2;
  setup.accumulate = 2;
  check<Gpt>(2, {1}, 2, setup);
  check<FeedForward>(2, {2}, 1, setup);
}

TEST_CASE("checkpoints of tensor shards are read by others, and by one process") {
  const DoublePrecision fp64;
  const TempFolder folder;
  const auto path = (folder / "checkpoint").string();
  torch::manual_seed(5);
  const auto [tokens, next] = Gpt::batch(4);
  std::mutex mutex;
  // Trains a step, saves or loads in front of it, and says what the parameters are.
  const auto run = [&](int shards, bool loads) {
    numerics::Snapshot out;
    ap::loopback::run(shards, [&, tokens = tokens, next = next](ap::World& world) {
      const auto net = [&] {
        const std::lock_guard lock(numerics::generator_mutex());
        torch::manual_seed(loads ? 99 : 5);
        return std::make_shared<Gpt>();
      }();
      ShardedPlanner::shards = shards;
      ap::Options options;
      options.stages = 1, options.replicas = {1}, options.microbatches = 1, options.zero = 0;
      ap::AutoParallel<Gpt, ShardedPlanner> model(world, net, options);
      torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.01).eps(1e-3));
      model->attach(optimizer);
      const auto mine = [&](const Tensor& whole) { return world.rank() == 0 ? whole : whole.slice(0, 0, 0); };
      const auto step = [&] {
        optimizer.zero_grad();
        model(mine(tokens), mine(next)).backward();
        optimizer.step();
      };
      step();
      if (loads) model->load(path, optimizer);
      if (!loads) model->save(path, optimizer);
      step();
      const auto state = model->gather_state();
      if (world.rank() != 0) return;
      const std::lock_guard lock(mutex);
      for (const auto& item : state) out.emplace_back(item.key(), item.value());
    });
    return out;
  };
  const auto wanted = run(2, false);
  for (const int shards : {1, 2, 4}) {
    INFO(shards << " shards");
    const auto got = run(shards, true);
    REQUIRE(got.size() == wanted.size());
    for (const auto& [name, value] : wanted) numerics::check_close(numerics::find(got, name), value, 1e-12, name);
  }
}

TEST_CASE("a class or a word that is none is named on every shard, and no rank waits") {
  const auto train = [](const Tensor& tokens, const Tensor& next) {
    ap::loopback::run(2, [&](ap::World& world) {
      ShardedPlanner::shards = 2;
      ap::Options options;
      options.stages = 1, options.replicas = {1}, options.microbatches = 1, options.zero = 0;
      ap::AutoParallel<Gpt, ShardedPlanner> model(world, std::make_shared<Gpt>(), options);
      static_cast<void>(model(tokens, next));
    });
  };
  const auto good = torch::zeros({2, Gpt::kTime}, torch::kLong);
  CHECK_NOTHROW(check_says({"target 11", "11 classes"}, [&] { train(good, torch::full_like(good, 11)); }));
  CHECK_NOTHROW(check_says({"index -1", "11 rows"}, [&] { train(torch::full_like(good, -1), good); }));
}

}  // namespace tensor_test
