#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <says.hpp>
#include <temp_folder.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/plan/plan_with_defaults.hpp>
#include <autopar/runtime/loopback.hpp>

#include "tensor_models.hpp"

// Stages with several tensor shards, against one process.
namespace tensor_test {

template <class Net>
void check(int shards, const std::vector<int>& replicas, int microbatches, const Setup& given = {}) {
  const auto setup = setup_of(shards, replicas, microbatches, given);
  INFO(shards << " shards, " << setup.describe());
  const auto reference = numerics::run_reference<Net>([] { return std::make_shared<Net>(); }, setup, 7);
  std::atomic<bool> any_slices = false;
  ap::loopback::run(static_cast<int>(setup.local.front().size()), [&](ap::World& world) {
    if (check_on<Net>(world, reference, setup, 7)) any_slices = true;
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

TEST_CASE("replicas of tensor shards share states, gradients and parameters") {
  const DoublePrecision fp64;
  for (const int zero : {1, 2, 3}) {
    Setup setup;
    setup.options.zero = zero;
    check<FeedForward>(2, {2}, 1, setup);
    check<Separate>(2, {2}, 1, setup);
    check<Scaled>(2, {2}, 1, setup);
    setup.optimizer = numerics::Optimizer::kAdamW;
    setup.clip_norm = 2;
    check<Deep>(2, {1, 2}, 2, setup);
    setup.accumulate = 2;
    setup.options.recompute = "full";
    check<Gpt>(2, {2}, 2, setup);
    setup.options.schedule = "zb-h1";
    check<Deep>(2, {2, 1}, 2, setup);
    Setup exact;
    exact.options.zero = zero;
    exact.options.batch_norm = "exact";
    check<Classifier>(3, {2}, 1, exact);  // slices that are not equal
  }
  Setup setup;
  setup.options.zero = 2;
  setup.options.offload = "optimizer";
  check<Gpt>(2, {2}, 1, setup);
}

/// Two stages of two replicas each, on six ranks: each replica of the second is two tensor shards.
struct SecondInShards {
  [[nodiscard]] ap::Plan plan(const ap::ModelProfile& profile, const ap::ProfiledCost& costs,
                              const ap::Cluster& cluster, const ap::PlanRequest& request) const {
    auto of_four = request;
    of_four.world = 4;
    auto plan = ap::plan_with_defaults(profile, costs, cluster, of_four);
    plan.world = 6;
    plan.stages.back().mesh = ap::Mesh({ap::Rank(2), ap::Rank(3), ap::Rank(4), ap::Rank(5)}, 2);
    return plan;
  }
};

TEST_CASE("stages of replicas and of tensor shards share side by side") {
  const DoublePrecision fp64;
  for (const int zero : {0, 1, 2, 3}) {
    Setup setup;
    setup.options.zero = zero;
    setup.options.tensor_parallel = 1;
    setup.options.stages = 2;
    setup.options.replicas = {2, 2};
    setup.options.schedule = "1f1b";
    setup.options.microbatches = 2;
    setup.optimizer = numerics::Optimizer::kAdamW;
    setup.clip_norm = 2;
    setup.local = {{2, 1, 2, 3, 2, 2}, {4, 2, 0, 2, 2, 2}};
    INFO(setup.describe());
    const auto reference = numerics::run_reference<Deep>([] { return std::make_shared<Deep>(); }, setup, 7);
    std::atomic<bool> any_slices = false;
    ap::loopback::run(6, [&](ap::World& world) {
      const auto net = [] {
        const std::lock_guard lock(numerics::generator_mutex());
        torch::manual_seed(7);
        return std::make_shared<Deep>();
      }();
      ap::AutoParallel<Deep, SecondInShards> model(world, net, setup.options);
      numerics::check_rank<Deep>(world, model, reference, setup, {});
      for (const auto& parameter : model->parameters())
        if (model->owns(parameter) && model->shard(parameter).of_slice) any_slices = true;
    });
    CHECK(any_slices == (zero > 0));
  }
}

TEST_CASE("checkpoints of tensor shards are read by others, and by one process") {
  const DoublePrecision fp64;
  const TempFolder folder;
  const auto path = (folder / "checkpoint").string();
  torch::manual_seed(5);
  const auto [tokens, next] = Gpt::batch(4);
  std::mutex mutex;
  struct Layout {
    int shards, replicas, zero;
  };
  // Trains a step, saves or loads in front of it, and says what the parameters are.
  const auto run = [&](const Layout& layout, bool loads) {
    numerics::Snapshot out;
    ap::loopback::run(layout.shards * layout.replicas, [&, tokens = tokens, next = next](ap::World& world) {
      const auto net = [&] {
        const std::lock_guard lock(numerics::generator_mutex());
        torch::manual_seed(loads ? 99 : 5);
        return std::make_shared<Gpt>();
      }();
      ap::Options options;
      options.tensor_parallel = layout.shards, options.stages = 1, options.microbatches = 1;
      options.replicas = {layout.replicas}, options.zero = layout.zero;
      ap::AutoParallel<Gpt> model(world, net, options);
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
  const std::vector<Layout> layouts{{1, 1, 0}, {2, 1, 0}, {4, 1, 0}, {2, 2, 1}, {2, 2, 3}, {1, 2, 3}};
  for (const Layout& from : {Layout{2, 1, 0}, Layout{2, 2, 3}, Layout{1, 1, 0}}) {
    const auto wanted = run(from, false);
    for (const Layout& to : layouts) {
      INFO(from.shards << " shards x " << from.replicas << ", zero " << from.zero << " to " << to.shards << " x "
                       << to.replicas << ", zero " << to.zero);
      const auto got = run(to, true);
      REQUIRE(got.size() == wanted.size());
      for (const auto& [name, value] : wanted) numerics::check_close(numerics::find(got, name), value, 1e-12, name);
    }
  }
}

TEST_CASE("a class or a word that is none is named on every shard, and no rank waits") {
  const auto train = [](const Tensor& tokens, const Tensor& next) {
    ap::loopback::run(2, [&](ap::World& world) {
      ap::Options options;
      options.tensor_parallel = 2, options.stages = 1, options.microbatches = 1;
      ap::AutoParallel<Gpt> model(world, std::make_shared<Gpt>(), options);
      static_cast<void>(model(tokens, next));
    });
  };
  const auto good = torch::zeros({2, Gpt::kTime}, torch::kLong);
  CHECK_NOTHROW(check_says({"target 11", "11 classes"}, [&] { train(good, torch::full_like(good, 11)); }));
  CHECK_NOTHROW(check_says({"index -1", "11 rows"}, [&] { train(torch::full_like(good, -1), good); }));
}

}  // namespace tensor_test
