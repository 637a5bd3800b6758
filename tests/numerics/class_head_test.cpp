#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>
#include <says.hpp>
#include <temp_folder.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Class heads that make their logits piece by piece (`class_head`), against one process; the matrix has them, too.
namespace class_head_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::Setup;
using torch::Tensor;

/// A small body under a head of many classes.
struct ManyClasses : nets::CrossEntropy<nets::Linears> {
  static constexpr std::int64_t kWidth = 8, kClasses = 6000;
  ManyClasses() : CrossEntropy(kWidth, {{"body", kWidth}, {"head", kClasses}}) {}
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) {
    return {torch::randn({n, kWidth}), torch::randint(kClasses, {n})};
  }
};

/// A head of few classes for many features.
struct FewClasses : nn::Module {
  static constexpr std::int64_t kWidth = 4001, kClasses = 3;
  nn::Linear head{nullptr};
  Tensor scale;
  FewClasses() {
    scale = register_parameter("scale", torch::rand({kWidth}) + 0.5);
    head = register_module("head", nn::Linear(kWidth, kClasses));
  }
  Tensor forward(const Tensor& x, const Tensor& y) { return F::cross_entropy(head(torch::tanh(x * scale)), y); }
  static std::tuple<Tensor, Tensor> batch(std::int64_t n) {
    return {torch::randn({n, kWidth}), torch::randint(kClasses, {n})};
  }
};

struct NoHead : nets::MeanSquare<nets::Linears> {
  NoHead() : MeanSquare(4, {{"body", 2}}) {}
};

/// Plans one step of a large batch under a limit of memory, and runs it.
ap::Plan planned(ap::ClassHead class_head, ap::Bytes memory, std::int64_t samples) {
  ap::Plan plan;
  ap::loopback::run(1, [&](ap::World& world) {
    ap::Options options;
    options.class_head = class_head;
    options.device_memory = memory;
    options.microbatches = 1;
    options.recompute = ap::Recompute::kNever;
    ap::AutoParallel<ManyClasses> model(world, std::make_shared<ManyClasses>(), options);
    const auto [x, y] = ManyClasses::batch(samples);
    model(x, y).backward();
    plan = model->plan();
  });
  return plan;
}

bool has_note(const ap::Plan& plan, const std::string& text) {
  return std::ranges::any_of(plan.notes, [&](const auto& note) { return note.find(text) != std::string::npos; });
}

TEST_CASE("class head: logits are chunked only where memory needs it") {
  const DoublePrecision fp64;
  constexpr std::int64_t kSamples = 4096;  // 188 MiB of logits
  const ap::Bytes scarce(std::int64_t{360} << 20), ample(std::int64_t{8} << 30);
  CHECK_THROWS_AS(planned(ap::ClassHead::kWhole, scarce, kSamples), ap::InfeasiblePlan);
  const auto chunked = planned(ap::ClassHead::kAuto, scarce, kSamples);
  CHECK(chunked.chunked_heads);
  CHECK(has_note(chunked, "whole they do not fit"));
  CHECK_FALSE(planned(ap::ClassHead::kAuto, ample, kSamples).chunked_heads);
  const auto forced = planned(ap::ClassHead::kChunked, ample, kSamples);
  CHECK(forced.chunked_heads);
  CHECK(forced.stages[0].peak_memory < planned(ap::ClassHead::kWhole, ample, kSamples).stages[0].peak_memory);
}

TEST_CASE("chunked logits: equal one process on all parallel layouts") {
  const DoublePrecision fp64;
  for (const int tensor : {1, 2, 3}) {
    for (const int replicas : {1, 2}) {
      Setup setup;
      setup.options.class_head = ap::ClassHead::kChunked;
      setup.options.tensor_parallel = tensor;
      setup.options.replicas = {replicas};
      setup.options.zero = replicas == 2 ? 2 : 0;
      setup.options.recompute = tensor == 2 ? ap::Recompute::kAlways : ap::Recompute::kNever;
      setup.optimizer = numerics::Optimizer::kAdamW;
      setup.clip_norm = 1;
      setup.local.assign(2, std::vector<std::int64_t>(static_cast<std::size_t>(tensor * replicas), 3));
      INFO(tensor << " shards, " << setup.describe());
      const auto make = [] { return std::make_shared<ManyClasses>(); };
      const auto reference = numerics::run_reference<ManyClasses>(make, setup, 3);
      ap::loopback::run(tensor * replicas, [&](ap::World& world) {
        const auto net = nets::seeded(3, make);
        ap::AutoParallel<ManyClasses> model(world, net, setup.options);
        numerics::check_rank<ManyClasses>(world, model, reference, setup, {});
        if (!model->plan().chunked_heads) throw numerics::Failure("logits were made whole");
      });
    }
  }
}

TEST_CASE("plan file: records whether logits are chunked") {
  const DoublePrecision fp64;
  const TempFolder folder;
  const auto file = folder / "plan.json";
  const auto train = [&](ap::ClassHead class_head) {
    bool chunked = false;
    ap::loopback::run(2, [&](ap::World& world) {
      ap::Options options;
      options.class_head = class_head;
      options.plan_file = file.string();
      ap::AutoParallel<ManyClasses> model(world, std::make_shared<ManyClasses>(), options);
      const auto [x, y] = ManyClasses::batch(4);
      model(x, y).backward();
      if (world.rank() == 0) chunked = model->plan().chunked_heads;
    });
    return chunked;
  };
  CHECK(train(ap::ClassHead::kChunked));
  CHECK(train(ap::ClassHead::kAuto));  // as the file says
  CHECK(said_by([&] { static_cast<void>(train(ap::ClassHead::kWhole)); }).find("class_head = whole is set") !=
        std::string::npos);
}

TEST_CASE("row-parallel class head: is chosen, equals one process") {
  const DoublePrecision fp64;
  for (const int shards : {2, 3, 4}) {  // of three classes and 4001 features
    const int replicas = shards == 2 ? 2 : 1;
    Setup setup;
    setup.options.tensor_parallel = shards;
    setup.options.replicas = {replicas};
    setup.options.recompute = shards == 3 ? ap::Recompute::kAlways : ap::Recompute::kNever;
    setup.optimizer = numerics::Optimizer::kAdamW;
    setup.clip_norm = 1;
    setup.local.assign(2, std::vector<std::int64_t>(static_cast<std::size_t>(shards * replicas), 5));
    INFO(setup.describe());
    const auto make = [] { return std::make_shared<FewClasses>(); };
    const auto reference = numerics::run_reference<FewClasses>(make, setup, 3);
    ap::loopback::run(shards * replicas, [&](ap::World& world) {
      const auto net = nets::seeded(3, make);
      ap::AutoParallel<FewClasses> model(world, net, setup.options);
      numerics::check_rank<FewClasses>(world, model, reference, setup, {});
      if (!model->plan().layers_by_inputs) throw numerics::Failure("the head was not cut by inputs");
      const auto shard = model->shard(net->head->weight);
      if (shard.dim != 1) throw numerics::Failure("the head's weight is whole or cut by outputs");
      const auto note = shards == 4 ? "otherwise there is no plan" : "otherwise a step would take";
      if (!has_note(model->plan(), note)) throw numerics::Failure("no note on the other way");
    });
  }
}

TEST_CASE("infeasible row-parallel head: error asks for memory alone") {
  ap::loopback::run(4, [](ap::World& world) {
    ap::Options options;
    options.tensor_parallel = 4;  // of three classes
    options.device_memory = ap::Bytes(1 << 15);
    ap::AutoParallel<FewClasses> model(world, std::make_shared<FewClasses>(), options);
    const auto [x, y] = FewClasses::batch(2);
    check_says({"no plan fits", "device_memory = "}, [&, x = x, y = y] { static_cast<void>(model(x, y)); });
  });
}

TEST_CASE("plan file: records row-parallel layers") {
  const DoublePrecision fp64;
  const TempFolder folder;
  const auto file = folder / "plan.json";
  const auto train = [&](bool save) {
    ap::loopback::run(2, [&](ap::World& world) {
      ap::Options options;
      options.tensor_parallel = 2;
      options.plan_file = file.string();
      options.save_plan = save;
      ap::AutoParallel<FewClasses> model(world, std::make_shared<FewClasses>(), options);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      model->attach(optimizer);
      const auto [x, y] = FewClasses::batch(4);
      model(x, y).backward();
      if (!model->plan().layers_by_inputs) throw numerics::Failure("the head was not cut by inputs");
    });
  };
  train(true);
  train(false);
}

TEST_CASE("chunked logits: refused without a class head") {
  ap::loopback::run(2, [](ap::World& world) {
    ap::Options options;
    options.class_head = ap::ClassHead::kChunked;
    ap::AutoParallel<NoHead> model(world, std::make_shared<NoHead>(), options);
    check_says({"class_head = chunked, but no linear layer"}, [&] { static_cast<void>(model(torch::randn({4, 4}))); });
  });
}

}  // namespace class_head_test
