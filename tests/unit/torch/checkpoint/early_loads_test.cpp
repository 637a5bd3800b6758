#include "torch/checkpoint/early_loads.hpp"

#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <autopar/core/error.hpp>
#include <autopar/runtime/loopback.hpp>

#include "capture/trace/fake_tensor.hpp"
#include "torch/parameters/hyper_parameters.hpp"

// Loads before anybody knows which rank holds what. `a` will lie in shards of both ranks, `b` on the last, `c` has
// memory.
namespace early_loads_test {

using namespace autopar;
using torch::optim::Adam;
using torch::optim::AdamOptions;

std::mutex mutex;  // of Catch's macros

const std::vector<parameters::ShardSlices> kShards{Interval{0, 2}, Interval{2, 6}};

/// Recorded, but for `c`.
struct Recorded {
  explicit Recorded(const World& world)
      : rank(world.rank()),
        record(InitRecord::record([&] {
          a = torch::zeros({2, 3});
          b = torch::ones({3});
        })),
        c(torch::full({2}, 9.0F)) {
    for (auto* each : {&a, &b, &c}) each->set_requires_grad(true);
    optimizer = std::make_unique<Adam>(std::vector<at::Tensor>{a, b, c}, AdamOptions(0.5));
  }

  std::vector<checkpoint::ShardedTensorMetadata> unplaced() const { return {{"a", a, {}}, {"b", b, {}}, {"c", c, {}}}; }
  std::vector<checkpoint::ShardedTensorMetadata> placed() const {
    const std::vector<Rank> both{Rank(0), Rank(1)};
    return {{"a", a, both, {2, 3}, kShards}, {"b", b, {Rank(1)}}, {"c", c, both}};
  }
  /// As a session does between `bring` and `take_over`.
  void make() {
    record.materialise({a});
    const torch::NoGradGuard no_grad;
    a.set_data(kShards[static_cast<std::size_t>(rank)].of(a.detach()).clone());
    if (rank == 1) record.materialise({b});
  }
  void add(World& world, checkpoint::EarlyLoads& loads, const std::filesystem::path& folder) {
    loads.add(world, folder, unplaced(), {optimizer.get()}, {}, &record);
  }
  std::optional<checkpoint::CheckpointInfo> deploy(World& world, checkpoint::EarlyLoads& loads) {
    loads.bring(world, placed(), &record);
    make();
    return loads.take_over(&record);
  }

  int rank;
  at::Tensor a, b;
  InitRecord record;
  at::Tensor c;
  std::unique_ptr<Adam> optimizer;
};

at::Tensor values_of_a(float first) { return torch::arange(6, torch::kFloat).add(first).view({2, 3}); }

/// Of one rank after a step with gradients of ones.
void make_checkpoint(const std::filesystem::path& folder, float first) {
  loopback::run(1, [&](World& world) {
    const auto a = values_of_a(first).requires_grad_(), b = torch::full({3}, first + 7).requires_grad_(),
               c = torch::full({2}, first + 8).requires_grad_();
    Adam adam(std::vector<at::Tensor>{a, b, c}, AdamOptions(0).betas({0.5, 0.5}));
    (a.sum() + b.sum() + c.sum()).backward();
    adam.step();
    const std::vector<Rank> me{Rank(0)};
    checkpoint::save_checkpoint(world, single_file(), folder, {{"a", a, me}, {"b", b, me}, {"c", c, me}}, {&adam},
                                {7, 42});
  });
}

at::Tensor mine(const at::Tensor& whole, const World& world) {
  return kShards[static_cast<std::size_t>(world.rank())].of(whole);
}

TEST_CASE("EarlyLoads: placed state is loaded at once, the rest later") {
  const TempFolder folder;
  make_checkpoint(folder / "one", 0);
  make_checkpoint(folder / "two", 100);
  loopback::run(2, [&](World& world) {
    Recorded model(world);
    checkpoint::EarlyLoads loads;
    const torch::NoGradGuard no_grad;
    model.add(world, loads, folder / "one");
    const auto first = model.c.clone();
    const auto kept = model.b.clone();  // of the first file
    model.add(world, loads, folder / "two");
    model.b.add_(kept);
    model.a.data()[0].mul_(2);
    const auto rate = model.optimizer->param_groups()[0].options().get_lr();
    const bool has_state = !parameters::state_of(*model.optimizer, model.a).empty();
    const auto info = model.deploy(world, loads);
    auto a = values_of_a(100);
    a[0].mul_(2);
    const auto state = parameters::state_of(*model.optimizer, model.a);
    const std::lock_guard lock(mutex);
    CHECK(torch::equal(first, torch::full({2}, 8.0F)));
    CHECK(torch::equal(model.c, torch::full({2}, 108.0F)));
    CHECK(rate == 0);
    CHECK_FALSE(has_state);
    CHECK(torch::equal(model.a, mine(a, world)));
    if (world.rank() == 1) CHECK(torch::equal(model.b, torch::full({3}, 114.0F)));
    REQUIRE(state.size() == 3);
    CHECK(state[0].second.item<int64_t>() == 1);
    CHECK(torch::equal(state[1].second, torch::full_like(state[1].second, 0.5F)));
    CHECK(state[1].second.numel() == mine(a, world).numel());
    CHECK(loads.empty());
    REQUIRE(info);
    CHECK(info->calls == 42);
  });
}

TEST_CASE("EarlyLoads: state changed after the load is kept") {
  const TempFolder folder;
  make_checkpoint(folder / "one", 0);
  for (const bool clears : {true, false}) {
    loopback::run(2, [&](World& world) {
      Recorded model(world);
      checkpoint::EarlyLoads loads;
      model.add(world, loads, folder / "one");
      if (clears) model.optimizer->state().clear();
      if (!clears) parameters::set_state(*model.optimizer, model.c, {{"step", torch::full({}, 5, torch::kLong)}});
      static_cast<void>(model.deploy(world, loads));
      const auto of_a = parameters::state_of(*model.optimizer, model.a),
                 of_c = parameters::state_of(*model.optimizer, model.c);
      const std::lock_guard lock(mutex);
      CAPTURE(clears);
      CHECK(of_a.empty() == clears);
      if (clears) CHECK(of_c.empty());
      if (!clears) CHECK(of_c.front().second.item<int64_t>() == 5);
      CHECK_FALSE(parameters::refuses_to_save(*model.optimizer));
    });
  }
}

TEST_CASE("EarlyLoads: an optimizer with new groups is refused") {
  const TempFolder folder;
  make_checkpoint(folder / "one", 0);
  loopback::run(2, [&](World& world) {
    Recorded model(world);
    checkpoint::EarlyLoads loads;
    model.add(world, loads, folder / "one");
    Adam other(std::vector<at::Tensor>{torch::ones({2}).requires_grad_()});
    const std::vector<at::Tensor> more{torch::ones({2}).requires_grad_()};
    model.optimizer->add_param_group(torch::optim::OptimizerParamGroup(more));
    const std::lock_guard lock(mutex);
    CHECK_NOTHROW(loads.require_same_groups(other));
    CHECK_THROWS_AS(loads.require_same_groups(*model.optimizer), CheckpointError);
  });
}

}  // namespace early_loads_test
