#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>

#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Layers with dims of no element, and of one: a branch that a configuration leaves empty.
namespace empty_layers_test {

namespace ap = autopar;
namespace nn = torch::nn;
using torch::Tensor;

template <int kWidth>
struct Net : nn::Module {
  Net() {
    register_module("first", first);
    register_module("to_side", to_side);
    register_module("from_side", from_side);
    register_module("up", up);
    register_module("down", down);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto h = torch::relu(first(x));
    const auto side = torch::tanh(to_side(h));
    const auto both = from_side(side) + down(torch::relu(up(h)));
    return nn::functional::mse_loss(last(torch::cat({both, side}, 1)), y);
  }
  static std::tuple<Tensor, Tensor> batch(int64_t n) { return {torch::randn({n, 5}), torch::randn({n, 3})}; }
  nn::Linear first{5, 8}, to_side{8, kWidth}, from_side{kWidth, 8}, up{8, kWidth}, down{kWidth, 8}, last{8 + kWidth, 3};
};

template <int kWidth>
void check_width() {
  const std::vector<numerics::Setup> setups{
      {{.stages = 1, .microbatches = 2, .replicas = {2}}, {{3, 4}, {5, 2}}},
      {{.stages = 2, .microbatches = 4, .replicas = {1, 1}, .schedule = "zb-h1"}, {{3, 4}, {5, 2}}},
      {{.stages = 2, .microbatches = 4, .schedule = "zb-v"}, {{3, 4}, {5, 2}}},
      {{.stages = 1, .microbatches = 1, .zero = 3, .replicas = {2}}, {{3, 4}, {5, 2}}},
      {{.stages = 1, .microbatches = 2, .zero = 2, .replicas = {2}, .recompute = "full"}, {{3, 4}, {5, 2}}},
      {{}, {{3, 4}, {5, 2}}}};
  const auto make = [] { return std::make_shared<Net<kWidth>>(); };
  for (const auto& setup : setups) {
    INFO(setup.describe());
    torch::set_num_threads(1);
    const auto reference = numerics::run_reference<Net<kWidth>>(make, setup, 7);
    CHECK_NOTHROW(ap::loopback::run(2, [&](ap::World& world) {
      std::shared_ptr<Net<kWidth>> net;
      {
        const std::lock_guard lock(numerics::generator_mutex());
        torch::manual_seed(7);
        net = make();
      }
      ap::AutoParallel<std::shared_ptr<Net<kWidth>>> model(world, net, setup.options);
      numerics::check_rank<Net<kWidth>>(world, model, reference, setup, {});
    }));
  }
}

TEST_CASE("layers without an output or an input train as on one process") {
  const DoublePrecision fp64;
  check_width<0>();
}
TEST_CASE("layers with one output or one input train as on one process") {
  const DoublePrecision fp64;
  check_width<1>();
}

}  // namespace empty_layers_test
