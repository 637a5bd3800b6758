#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <says.hpp>
#include <temp_folder.hpp>
#include <tensor_forms.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
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

/// @return whether what lies between the shards' parts was cut by tokens
template <class Net>
bool check(const std::function<std::shared_ptr<Net>()>& make, int shards, const std::vector<int>& replicas,
           int microbatches, const Setup& given = {}, int least_slices = 1) {
  const auto setup = setup_of(shards, replicas, microbatches, given);
  INFO(shards << " shards, " << setup.describe());
  const auto reference = numerics::run_reference<Net>(make, setup, 7);
  std::atomic<int> slices = 0;
  std::atomic<bool> by_tokens = false;
  ap::loopback::run(static_cast<int>(setup.local.front().size()), [&](ap::World& world) {
    const auto own = check_on<Net>(world, make, reference, setup, 7);
    for (int most = slices; own.slices > most && !slices.compare_exchange_weak(most, own.slices);) continue;
    if (own.by_tokens) by_tokens = true;
  });
  CHECK(slices >= least_slices);
  return by_tokens;
}
template <class Net>
void check(int shards, const std::vector<int>& replicas, int microbatches, const Setup& given = {}) {
  const bool by_tokens = check<Net>([] { return std::make_shared<Net>(); }, shards, replicas, microbatches, given);
  CHECK(by_tokens == (given.options.sequence_parallel == ap::Switch::kOn));
}

/// Each on two shards, on three, which have unequal parts of it, and on four, as far as it can be cut in so many; the
/// last also on two replicas. And once recomputed, clipped and, where tokens are, cut by these.
void check_forms(const std::vector<tensor_forms::Form>& forms) {
  const DoublePrecision fp64;
  for (const auto& form : forms) {
    INFO(form.name);
    const auto make = [&] { return std::make_shared<tensor_forms::Net>(form); };
    const auto parameters = static_cast<int>(std::ranges::count(form.cut, '/'));
    for (int shards = 2; shards <= std::min(4, std::stoi(form.cut)); ++shards) {
      check<tensor_forms::Net>(make, shards, {1}, shards == 4 ? 2 : 1, {}, parameters);
    }
    Setup again;
    again.options.recompute = ap::Recompute::kAlways;
    again.options.sequence_parallel = ap::Switch::kOn;
    again.optimizer = numerics::Optimizer::kAdamW;
    again.clip_norm = 2;
    check<tensor_forms::Net>(make, 2, {1}, 2, again, parameters);
    if (&form == &forms.back()) check<tensor_forms::Net>(make, 2, {2}, 1, {}, parameters);
  }
}

TEST_CASE("tensor parallel: all forms of attention equal one process") { check_forms(tensor_forms::attention()); }
TEST_CASE("tensor parallel: all forms of feed-forward equal one process") { check_forms(tensor_forms::feed_forward()); }
TEST_CASE("tensor parallel: two-operator class heads equal one process") { check_forms(tensor_forms::class_heads()); }
TEST_CASE("row-parallel single layers: equal one process") { check_forms(tensor_forms::single_layers()); }

TEST_CASE("row-parallel layers: go with token slices, stages, replicas") {
  const DoublePrecision fp64;
  check<Singles>(2, {1}, 1);
  check<Singles>(3, {1, 1}, 2);  // 10 inputs: slices that are not equal
  Setup setup;
  setup.options.sequence_parallel = ap::Switch::kOn;
  check<Singles>(2, {1}, 2, setup);
  check<Singles>(3, {1}, 1, setup);
  setup.options.zero = 3;
  setup.options.recompute = ap::Recompute::kAlways;
  setup.optimizer = numerics::Optimizer::kAdamW;
  setup.clip_norm = 2;
  check<Singles>(2, {2}, 1, setup);
}

TEST_CASE("tensor parallel: a linear pair equals one process") {
  const DoublePrecision fp64;
  check<FeedForward>(2, {1}, 1);
  check<FeedForward>(4, {1}, 2);
  check<FeedForward>(2, {2}, 1);
}

TEST_CASE("tensor parallel: many words, in whole packs") {
  const DoublePrecision fp64;
  check<ManyWords>(2, {1}, 1);
  check<ManyWords>(2, {2}, 2);
  check<ManyWords>(4, {1}, 1);
  Setup setup;
  setup.options.zero = 3;
  setup.optimizer = numerics::Optimizer::kAdamW;
  setup.clip_norm = 2;
  check<ManyWords>(2, {2}, 1, setup);
}

TEST_CASE("tensor parallel: tied embedding head equals one process") {
  const DoublePrecision fp64;
  check<Gpt>(2, {1}, 1);
  check<Gpt>(4, {1}, 2);
}

TEST_CASE("tensor parallel: libtorch attention, outside loss are exact") {
  const DoublePrecision fp64;
  check<Encoder>(2, {1}, 1);
  check<Encoder>(2, {2}, 1);
}

TEST_CASE("tensor parallel: separate Q, K, V equal one process") {
  const DoublePrecision fp64;
  check<Separate>(2, {1}, 1);
  check<Separate>(4, {1}, 1);
}

TEST_CASE("tensor parallel: ten-class head equals one process") {
  const DoublePrecision fp64;
  check<Classifier>(2, {1}, 1);
  check<Classifier>(3, {1}, 1);
  Setup exact;
  exact.options.batch_norm = ap::BatchNorm::kExact;
  check<Classifier>(2, {2}, 1, exact);
}

TEST_CASE("tensor parallel: consecutive stages equal one process") {
  const DoublePrecision fp64;
  check<Deep>(2, {1, 1}, 2);
  check<Deep>(2, {1, 2}, 2);
}

TEST_CASE("tensor parallel: works with schedules, recompute, clipping") {
  const DoublePrecision fp64;
  for (const ap::ScheduleKind schedule :
       {ap::ScheduleKind::kGPipe, ap::ScheduleKind::kOneFOneB, ap::ScheduleKind::kZbH1}) {
    Setup setup;
    setup.options.schedule = schedule;
    check<Deep>(2, {1, 1}, 2, setup);
  }
  Setup setup;
  setup.options.recompute = ap::Recompute::kAlways;
  setup.optimizer = numerics::Optimizer::kAdamW;
  setup.clip_norm = 2;
  setup.accumulate = 2;
  check<Gpt>(2, {1}, 2, setup);
  check<FeedForward>(2, {2}, 1, setup);
}

TEST_CASE("sequence parallel: norms and residuals are split by tokens") {
  const DoublePrecision fp64;
  Setup setup;
  setup.options.sequence_parallel = ap::Switch::kOn;
  check<FeedForward>(2, {1}, 1, setup);
  check<FeedForward>(2, {2}, 1, setup);
  check<Gpt>(2, {1}, 1, setup);
  check<Gpt>(4, {1}, 2, setup);
  check<Encoder>(2, {1}, 1, setup);
  check<Blocks>(2, {1}, 2, setup);
  check<Blocks>(3, {1}, 1, setup);
  setup.options.schedule = ap::ScheduleKind::kOneFOneB;
  check<Blocks>(2, {1, 2}, 2, setup);
  setup.options.recompute = ap::Recompute::kAlways;
  setup.optimizer = numerics::Optimizer::kAdamW;
  setup.clip_norm = 2;
  setup.accumulate = 2;
  check<Gpt>(2, {1}, 2, setup);
  for (const ap::ScheduleKind schedule :
       {ap::ScheduleKind::kGPipe, ap::ScheduleKind::kOneFOneB, ap::ScheduleKind::kZbH1}) {
    setup.options.schedule = schedule;
    check<Blocks>(2, {1, 1}, 2, setup);
  }
}

TEST_CASE("tensor parallel with ZeRO 1-3: equals one process") {
  const DoublePrecision fp64;
  for (const int zero : {1, 2, 3}) {
    Setup setup;
    setup.options.zero = zero;
    check<Grouped>(2, {2}, 1, setup);
    check<FeedForward>(2, {2}, 1, setup);
    check<Separate>(2, {2}, 1, setup);
    check<Scaled>(2, {2}, 1, setup);
    check<Parallel>(2, {2}, 1, setup);
    setup.optimizer = numerics::Optimizer::kAdamW;
    setup.clip_norm = 2;
    check<Deep>(2, {1, 2}, 2, setup);
    setup.accumulate = 2;
    setup.options.recompute = ap::Recompute::kAlways;
    check<Gpt>(2, {2}, 2, setup);
    setup.options.sequence_parallel = ap::Switch::kOn;
    check<Gpt>(2, {2}, 2, setup);
    setup.options.sequence_parallel = ap::Switch::kAuto;
    setup.options.schedule = ap::ScheduleKind::kZbH1;
    check<Deep>(2, {2, 1}, 2, setup);
    Setup exact;
    exact.options.zero = zero;
    exact.options.batch_norm = ap::BatchNorm::kExact;
    check<Classifier>(3, {2}, 1, exact);  // slices that are not equal
  }
  Setup setup;
  setup.options.zero = 2;
  setup.options.offload = ap::Offload::kOptimizer;
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

TEST_CASE("ZeRO 0-3: replicated and tensor-parallel stages can mix") {
  const DoublePrecision fp64;
  for (const int zero : {0, 1, 2, 3}) {
    Setup setup;
    setup.options.zero = zero;
    setup.options.tensor_parallel = 1;
    setup.options.stages = 2;
    setup.options.replicas = {2, 2};
    setup.options.schedule = ap::ScheduleKind::kOneFOneB;
    setup.options.microbatches = 2;
    setup.optimizer = numerics::Optimizer::kAdamW;
    setup.clip_norm = 2;
    setup.local = {{2, 1, 2, 3, 2, 2}, {4, 2, 0, 2, 2, 2}};
    INFO(setup.describe());
    const auto reference = numerics::run_reference<Deep>([] { return std::make_shared<Deep>(); }, setup, 7);
    std::atomic<bool> any_slices = false;
    ap::loopback::run(6, [&](ap::World& world) {
      const auto net = nets::made<Deep>(7);
      ap::AutoParallel<Deep, SecondInShards> model(world, net, setup.options);
      numerics::check_rank<Deep>(world, model, reference, setup, {});
      for (const auto& parameter : model->parameters())
        if (model->owns(parameter) && model->shard(parameter).of_slice) any_slices = true;
    });
    CHECK(any_slices == (zero > 0));
  }
}

struct Layout {
  int shards, replicas, zero;
};

/// What is saved in one of these layouts goes on in every other as it does there.
template <class Net>
void check_checkpoints(const std::vector<Layout>& saving) {
  const DoublePrecision fp64;
  const TempFolder folder;
  const auto path = (folder / "checkpoint").string();
  torch::manual_seed(5);
  const auto [x, y] = Net::batch(4);
  std::mutex mutex;
  // Trains a step, saves or loads in front of the next one, and says what the parameters are.
  const auto run = [&](const Layout& layout, bool loads) {
    numerics::Snapshot out;
    ap::loopback::run(layout.shards * layout.replicas, [&, x = x, y = y](ap::World& world) {
      const auto net = nets::made<Net>(loads ? 99 : 5);
      ap::Options options;
      options.tensor_parallel = layout.shards, options.stages = 1, options.microbatches = 1;
      options.replicas = {layout.replicas}, options.zero = layout.zero;
      ap::AutoParallel<Net> model(world, net, options);
      torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.01).eps(1e-3));
      model->attach(optimizer);
      const auto mine = [&](const Tensor& whole) { return world.rank() == 0 ? whole : whole.slice(0, 0, 0); };
      const auto step = [&] {
        optimizer.zero_grad();
        model(mine(x), mine(y)).backward();
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
  for (const Layout& from : saving) {
    const auto wanted = run(from, false);
    for (const Layout& to : {Layout{1, 1, 0}, {2, 1, 0}, {4, 1, 0}, {2, 2, 1}, {2, 2, 3}, {1, 2, 3}}) {
      if (to.shards > Net::kMostShards) continue;
      INFO(from.shards << " shards x " << from.replicas << ", zero " << from.zero << " to " << to.shards << " x "
                       << to.replicas << ", zero " << to.zero);
      const auto got = run(to, true);
      REQUIRE(got.size() == wanted.size());
      for (const auto& [name, value] : wanted) numerics::check_close(numerics::find(got, name), value, 1e-12, name);
    }
  }
}

TEST_CASE("tensor-parallel checkpoint: loads elsewhere, in one process") {
  check_checkpoints<Gpt>({{2, 1, 0}, {2, 2, 3}, {1, 1, 0}});
  check_checkpoints<Grouped>({{2, 1, 0}, {2, 2, 3}});
}

/// A step of a form on so many shards.
void train_form(const tensor_forms::Form& form, int shards, const Tensor& y) {
  ap::loopback::run(shards, [&](ap::World& world) {
    ap::Options options;
    options.tensor_parallel = shards, options.stages = 1, options.microbatches = 1;
    ap::AutoParallel<tensor_forms::Net> model(world, std::make_shared<tensor_forms::Net>(form), options);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    model->attach(optimizer);
    static_cast<void>(model(torch::ones_like(y), y));
  });
}

TEST_CASE("invalid class or token: named on every shard, no rank waits") {
  const auto train = [](const Tensor& tokens, const Tensor& next) {
    ap::loopback::run(2, [&](ap::World& world) {
      ap::Options options;
      options.tensor_parallel = 2, options.stages = 1, options.microbatches = 1;
      ap::AutoParallel<Gpt> model(world, std::make_shared<Gpt>(), options);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      model->attach(optimizer);
      static_cast<void>(model(tokens, next));
    });
  };
  const auto good = torch::zeros({2, Gpt::kTime}, torch::kLong);
  CHECK_NOTHROW(check_says({"target 11", "11 classes"}, [&] { train(good, torch::full_like(good, 11)); }));
  CHECK_NOTHROW(check_says({"index -1", "11 rows"}, [&] { train(torch::full_like(good, -1), good); }));
  const tensor_forms::Form head{"",
                                {{"head", 24, 13}},
                                [](tensor_forms::Net& net, const Tensor& x, const Tensor& y) {
                                  return F::nll_loss(F::log_softmax(net("head", x), 1),
                                                     y.select(1, 0).to(torch::kLong));
                                },
                                ""};
  CHECK_NOTHROW(check_says({"target 13", "13 classes"}, [&] { train_form(head, 2, torch::full({2, 24}, 13.0)); }));
}

TEST_CASE("too few KV heads for the shards: refused on every rank") {
  for (const auto& form : tensor_forms::attention()) {
    if (form.name != "grouped") continue;
    CHECK_NOTHROW(check_says({"tensor_parallel = 4", "nearest that can be is 2"}, [&] {
      train_form(form, 4, torch::randn({2, 5, 24}));
    }));
  }
}

}  // namespace tensor_test
