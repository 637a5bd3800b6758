#include "torch/checkpoint/checkpoint.hpp"

#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>

#include <torch/torch.h>
#include <autopar/core/error.hpp>
#include <autopar/runtime/loopback.hpp>

#include "torch/parameters/hyper_parameters.hpp"

using namespace autopar;

namespace {

/// Two tensors on two ranks, the first on rank 0 and rank 1, the second on rank 1 only.
struct Fixture {
  std::vector<at::Tensor> tensors;
  std::vector<checkpoint::ShardedTensorMetadata> placed;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  Fixture(int rank, int ranks, double value, bool adam = true) {
    const Rank last(ranks - 1);
    tensors = {torch::full({2, 3}, value, torch::kDouble), torch::full({4}, value + 1)};
    for (auto& tensor : tensors) tensor.set_requires_grad(true);
    if (rank != last.value()) torch::NoGradGuard(), tensors[1].detach().fill_(-1);
    std::vector<Rank> all;
    for (int r = 0; r < ranks; ++r) all.emplace_back(r);
    placed = {{"a", tensors[0], all}, {"b", tensors[1], {last}}};
    if (adam) {
      optimizer = std::make_unique<torch::optim::Adam>(tensors, torch::optim::AdamOptions(0.1).amsgrad(true));
    } else {
      optimizer = std::make_unique<torch::optim::SGD>(tensors, torch::optim::SGDOptions(0.1).momentum(0.9));
    }
  }
  void step(int rank, int ranks) {
    optimizer->zero_grad();
    (tensors[0] * 2).sum().backward();
    if (rank == ranks - 1) tensors[1].pow(2).sum().backward();
    optimizer->step();
  }
};

void set_rate(torch::optim::Optimizer& optimizer, double rate) { optimizer.param_groups()[0].options().set_lr(rate); }
double rate_of(const torch::optim::Optimizer& optimizer) { return optimizer.param_groups()[0].options().get_lr(); }

}  // namespace

TEST_CASE("checkpoint: saved on two ranks, resumes on one and three") {
  const TempFolder folder;
  std::vector<at::Tensor> after;
  std::mutex mutex;
  loopback::run(2, [&](World& world) {
    Fixture fixture(world.rank(), 2, 5);
    fixture.step(world.rank(), 2);
    set_rate(*fixture.optimizer, 0.05);
    checkpoint::save_checkpoint(world, single_file(), folder / "state", fixture.placed, {fixture.optimizer.get()},
                                {7, 42});
    fixture.step(world.rank(), 2);
    const std::lock_guard lock(mutex);
    if (world.rank() == 1) after = {fixture.tensors[0].detach().clone(), fixture.tensors[1].detach().clone()};
  });
  for (const int ranks : {1, 3}) {
    loopback::run(ranks, [&](World& world) {
      Fixture fixture(world.rank(), ranks, 100);
      const auto info =
          checkpoint::load_checkpoint(world, folder / "state", fixture.placed, {fixture.optimizer.get()}).info;
      fixture.step(world.rank(), ranks);
      const auto gathered = checkpoint::gather_tensors(world, fixture.placed);
      const auto second = checkpoint::gather_tensor(world, fixture.placed[1]);
      const std::lock_guard lock(mutex);
      REQUIRE(info.has_value());
      CHECK(info->seed == 7);
      CHECK(info->calls == 42);
      CHECK(torch::equal(second, after[1]));
      if (world.rank() != 0) return;
      CHECK(torch::equal(gathered[0], after[0]));
      CHECK(torch::equal(gathered[1], after[1]));
    });
  }
}

TEST_CASE("checkpoint: a sharded format is read under any plan") {
  const TempFolder folder;
  const auto placed = [](at::Tensor tensor, int rank, int ranks) {
    std::vector<Rank> holders;
    std::vector<parameters::ShardSlices> shards;
    for (int r = 0; r < ranks; ++r) {
      holders.emplace_back(r);
      shards.emplace_back(Interval{tensor.numel() * r / ranks, tensor.numel() * (r + 1) / ranks});
    }
    const auto mine = shards[static_cast<std::size_t>(rank)].ranges.front();
    const auto handle = tensor.view({-1}).narrow(0, mine.begin, mine.size()).clone().set_requires_grad(true);
    return checkpoint::ShardedTensorMetadata{"a", handle, holders, tensor.sizes().vec(), shards};
  };
  const auto values = torch::arange(10, torch::kDouble).view({2, 5});
  loopback::run(3, [&](World& world) {
    const std::vector<checkpoint::ShardedTensorMetadata> tensors{placed(values, world.rank(), 3)};
    torch::optim::SGD sgd(std::vector<at::Tensor>{tensors[0].handle}, torch::optim::SGDOptions(0.1).momentum(0.9));
    checkpoint::save_checkpoint(world, sharded(), folder / "state", tensors, {&sgd}, {7, 42});
  });
  std::mutex mutex;
  for (const int ranks : {1, 2, 4}) {
    loopback::run(ranks, [&](World& world) {
      const std::vector<checkpoint::ShardedTensorMetadata> tensors{
          placed(torch::zeros({2, 5}, torch::kDouble), world.rank(), ranks)};
      torch::optim::SGD sgd(std::vector<at::Tensor>{tensors[0].handle}, torch::optim::SGDOptions(0.2).momentum(0.9));
      const auto info = checkpoint::load_checkpoint(world, folder / "state", tensors, {&sgd}).info;
      const auto whole = checkpoint::gather_tensor(world, tensors[0]);
      const std::lock_guard lock(mutex);
      REQUIRE(info);
      CHECK(info->calls == 42);
      CHECK(torch::equal(whole, values));
      CHECK(sgd.param_groups()[0].options().get_lr() == 0.1);
    });
  }
}

TEST_CASE("checkpoint: a foreign model or optimizer is refused on all") {
  const TempFolder folder;
  loopback::run(2, [&](World& world) {
    Fixture fixture(world.rank(), 2, 5);
    fixture.step(world.rank(), 2);
    checkpoint::save_checkpoint(world, single_file(), folder / "state", fixture.placed, {fixture.optimizer.get()}, {});
  });
  std::mutex mutex;
  const auto refused = [&](const std::string& part, const std::function<void(Fixture&)>& change, bool adam = true) {
    loopback::run(2, [&](World& world) {
      Fixture fixture(world.rank(), 2, 1, adam);
      change(fixture);
      std::string message;
      try {
        (void)checkpoint::load_checkpoint(world, folder / "state", fixture.placed, {fixture.optimizer.get()});
      } catch (const CheckpointError& error) {
        message = error.what();
      }
      const std::lock_guard lock(mutex);
      CAPTURE(message);
      CHECK(message.find(part) != std::string::npos);
      CHECK(fixture.tensors[0].detach().eq(1).all().item<bool>());
    });
  };
  refused("lacks 'model.c'", [](Fixture& fixture) { fixture.placed[0].name = "c"; });
  refused("the model has no 'model.b'", [](Fixture& fixture) { fixture.placed.pop_back(); });
  refused("sizes [4]", [](Fixture& fixture) { fixture.placed[1].handle = torch::ones({5}); });
  refused(
      "is Adam, this one is SGD", [](Fixture&) {}, false);
  std::filesystem::remove_all(folder / "state");
  refused("cannot open", [](Fixture&) {});
}

TEST_CASE("checkpoint: frozen parameters and unstepped optimizers") {
  const TempFolder folder;
  loopback::run(2, [&](World& world) {
    Fixture fixture(world.rank(), 2, 5);
    fixture.tensors[1].set_requires_grad(false);
    (fixture.tensors[0] * 2).sum().backward();
    fixture.optimizer->step();
    set_rate(*fixture.optimizer, 0.05);
    checkpoint::save_checkpoint(world, single_file(), folder / "state", fixture.placed, {fixture.optimizer.get()}, {});
  });
  const auto load_into_stepped = [&](bool adam) {
    loopback::run(2, [&](World& world) {
      Fixture fixture(world.rank(), 2, 5, adam);
      fixture.step(world.rank(), 2);
      (void)checkpoint::load_checkpoint(world, folder / "state", fixture.placed, {fixture.optimizer.get()});
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      CHECK(parameters::state_of(*fixture.optimizer, fixture.tensors[0]).size() == (adam ? 4 : 0));
      CHECK(parameters::state_of(*fixture.optimizer, fixture.tensors[1]).empty());
      CHECK(rate_of(*fixture.optimizer) == 0.05);
    });
  };
  load_into_stepped(true);
  loopback::run(2, [&](World& world) {
    Fixture fixture(world.rank(), 2, 5, false);
    set_rate(*fixture.optimizer, 0.05);
    checkpoint::save_checkpoint(world, single_file(), folder / "state", fixture.placed, {fixture.optimizer.get()}, {});
  });
  load_into_stepped(false);
}

TEST_CASE("checkpoint: state of every supported optimizer round trips") {
  const auto check = [](auto make, double factor) {
    const auto parameter = torch::ones({3}).set_requires_grad(true);
    const auto other = torch::ones({3}).set_requires_grad(true);
    auto first = make(std::vector<at::Tensor>{parameter});
    auto second = make(std::vector<at::Tensor>{other});
    CHECK(parameters::state_factor(first) == factor);
    for (int k = 0; k < 2; ++k) {
      first.zero_grad();
      parameter.pow(3).sum().backward();
      first.step();
    }
    std::vector<parameters::StateEntry> copies;
    std::vector<std::string> names;
    for (const auto& [name, tensor] : parameters::state_of(first, parameter)) {
      copies.emplace_back(name, tensor.clone());
      names.push_back(name);
    }
    CHECK(names == parameters::state_names(first, parameter));
    parameters::set_state(second, other, copies);
    {
      torch::NoGradGuard no_grad;
      other.copy_(parameter);
    }
    for (auto* optimizer : {&first, &second}) optimizer->zero_grad();
    parameter.pow(3).sum().backward();
    other.pow(3).sum().backward();
    first.step();
    second.step();
    CHECK(torch::equal(parameter, other));
    if (!copies.empty())
      CHECK_THROWS_AS(parameters::set_state(second, other, {{"unknown", torch::ones({3})}}), CheckpointError);
  };
  using Tensors = std::vector<at::Tensor>;
  namespace optim = torch::optim;
  check([](Tensors t) { return optim::SGD(t, optim::SGDOptions(0.1)); }, 0);
  check([](Tensors t) { return optim::SGD(t, optim::SGDOptions(0.1).momentum(0.9)); }, 1);
  check([](Tensors t) { return optim::Adam(t, optim::AdamOptions(0.1)); }, 2);
  check([](Tensors t) { return optim::AdamW(t, optim::AdamWOptions(0.1).amsgrad(true)); }, 3);
  check([](Tensors t) { return optim::RMSprop(t, optim::RMSpropOptions(0.1).momentum(0.5).centered(true)); }, 3);
  check([](Tensors t) { return optim::Adagrad(t, optim::AdagradOptions(0.1)); }, 1);
  const auto parameter = torch::ones({3}).set_requires_grad(true);
  const optim::LBFGS other({parameter});
  CHECK_THROWS_AS(parameters::descriptor_of(other), InvalidArgument);
}
