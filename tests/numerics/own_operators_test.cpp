#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>
#include <says.hpp>
#include <temp_folder.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>
#include <autopar/torch/op_def.hpp>

#include "own_operators.hpp"
#include "tensor_models.hpp"

// Operators of a user's library: cut, sharded and planned like libtorch's, equal to one process. The matrix has them,
// too.
namespace own_operators_test {

namespace ap = autopar;
using numerics::Setup;
using own_operators::Net;
using torch::Tensor;

void check_shards(int shards, const std::vector<int>& replicas, int microbatches, const Setup& given = {}) {
  const auto setup = tensor_test::setup_of(shards, replicas, microbatches, given);
  INFO(shards << " shards, " << setup.describe());
  const auto reference = numerics::run_reference<Net>([] { return std::make_shared<Net>(); }, setup, 7);
  std::atomic<int> slices = 0;
  ap::loopback::run(static_cast<int>(setup.local.front().size()), [&](ap::World& world) {
    const auto own = tensor_test::check_on<Net>(world, reference, setup, 7);
    for (int most = slices; own.slices > most && !slices.compare_exchange_weak(most, own.slices);) continue;
  });
  CHECK(slices >= 4);  // both weights of the pair, the first one's bias, the gate
}

TEST_CASE("user operators: tensor shards equal one process") {
  const DoublePrecision fp64;
  check_shards(2, {1}, 1);
  check_shards(3, {1}, 2);
  check_shards(4, {1}, 1);
  Setup setup;
  setup.options.zero = 3;
  setup.options.recompute = ap::Recompute::kAlways;
  setup.optimizer = numerics::Optimizer::kAdamW;
  setup.clip_norm = 2;
  check_shards(2, {2}, 1, setup);
}

/// One training step on every rank, as text of what went wrong; empty: nothing did.
template <class Module>
void train(ap::World& world, const std::shared_ptr<Module>& net, const ap::Options& options) {
  ap::AutoParallel<Module> model(world, net, options);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  model->attach(optimizer);
  const auto [x, y] = Net::batch(4);
  model(x.detach(), y).backward();
  optimizer.step();
}

std::shared_ptr<Net> made() { return nets::made<Net>(3); }

std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST_CASE("user operators: plan file records their versions") {
  const TempFolder folder;
  const auto file = (folder / "plan.json").string();
  const ap::Options options{.plan_file = file};
  ap::loopback::run(2, [&](ap::World& world) { train(world, made(), options); });
  auto plan = contents(file);
  const std::string version = "own_operators::gated 2";
  REQUIRE(plan.find("\"operators\"") != std::string::npos);
  REQUIRE(plan.find(version) != std::string::npos);
  ap::loopback::run(2, [&](ap::World& world) { train(world, made(), options); });  // reads it

  plan.replace(plan.find(version), version.size(), "own_operators::gated 1");
  std::ofstream(file) << plan;
  ap::loopback::run(2, [&](ap::World& world) {
    check_says({"the plan was made with other registered operators", "own_operators::gated 1", version,
                "remove the plan to plan again"},
               [&] { train(world, made(), options); });
  });
  std::filesystem::remove(file);  // the way out
  ap::loopback::run(2, [&](ap::World& world) { train(world, made(), options); });

  plan.replace(plan.find("own_operators::gated 1"), version.size(), "own_operators::gated x");
  std::ofstream(file) << plan;
  ap::loopback::run(1, [&](ap::World& world) {
    check_says({"operators", "'own_operators::gated x' is no operator with its version"},
               [&] { train(world, made(), options); });
  });
}

/// An operator without a definition between layers of torch.
struct Mixing : nets::Linears {
  Mixing() : Linears(Net::kWidth, {{"layer", Net::kWidth}}) {}
  Tensor forward(const Tensor& x, const Tensor& y) {
    return torch::mse_loss(own_operators::mixed(Linears::forward(x)), y);
  }
};

TEST_CASE("user operators: undefined ones see whole batch, or refusal") {
  const DoublePrecision fp64;
  torch::manual_seed(3);
  const auto one = std::make_shared<Mixing>();
  const auto [x, y] = Net::batch(6);
  one->forward(x, y).backward();
  const auto train_on = [&](ap::World& world, const ap::Options& options) {
    const auto net = nets::made<Mixing>(3);
    ap::AutoParallel<Mixing> model(world, net, options);
    const auto rows = x.detach().chunk(2)[static_cast<std::size_t>(world.rank())],
               targets = y.chunk(2)[static_cast<std::size_t>(world.rank())];
    model(rows, targets).backward();
    for (const auto& item : model->named_parameters()) {
      if (model->owns(item.value()))
        numerics::check_close(item.value().grad(), one->named_parameters()[item.key()].grad(), 1e-12, item.key());
    }
  };
  ap::loopback::run(2, [&](ap::World& world) { train_on(world, {}); });
  ap::loopback::run(2, [&](ap::World& world) {
    check_says({"own_operators::mixed"}, [&] { train_on(world, {.stages = 1, .replicas = {2}}); });
  });
}

TEST_CASE("user operators: autocast follows their definition") {
  ap::loopback::run(2,
                    [&](ap::World& world) { train(world, made(), {.stages = 2, .precision = ap::Precision::kBf16}); });
}

TEST_CASE("register_op: once per operator, before the first capture") {
  own_operators::register_all();
  const auto refused = [](ap::OpDef def, const std::vector<std::string>& parts) {
    check_says(parts, [&] { ap::register_op(std::move(def)); });
  };
  const auto rule = ap::ops::pointwise;
  refused({.name = "own_operators::gated", .over_samples = rule},
          {"ap::register_op(\"own_operators::gated\")", "has a definition already, of version 2"});
  refused({.name = "aten::relu", .over_samples = rule}, {"operators of libtorch and of autopar"});
  refused({.name = "autopar::mine", .over_samples = rule}, {"operators of libtorch and of autopar"});
  refused({.name = "gated", .over_samples = rule}, {"the name has no namespace"});
  refused({.name = "own_operators::", .over_samples = rule}, {"the name has no namespace"});
  refused({.name = "own_operators::nothing", .over_samples = rule}, {"libtorch knows no operator of that name"});
  refused({.name = "own_operators::mixed"}, {"over_samples is empty"});
  refused({.name = "own_operators::mixed", .version = 0, .over_samples = rule}, {"its version is 0"});
  ap::loopback::run(1, [&](ap::World& world) { train(world, made(), {}); });
  refused({.name = "own_operators::mixed", .over_samples = rule}, {"a model has been captured already"});
}

}  // namespace own_operators_test
