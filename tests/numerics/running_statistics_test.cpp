#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include <functional>
#include <vector>

#include "fidelity.hpp"

// Running statistics in single precision, where the operator's own are taken as they are when one share is the whole
// batch.
namespace running_statistics_test {

namespace ap = autopar;
namespace nn = torch::nn;
using torch::Tensor;

/// One norm runs twice, one counts samples, one has a momentum of its own.
struct NormsImpl : nn::Module {
  nn::Conv2d conv{nn::Conv2dOptions(2, 4, 3).padding(1)};
  nn::BatchNorm2d twice{4}, slow{nn::BatchNorm2dOptions(4).momentum(0.02)};
  nn::InstanceNorm2d rows{nn::InstanceNorm2dOptions(4).track_running_stats(true)};
  NormsImpl() { nets::register_all(*this, "conv", conv, "twice", twice, "slow", slow, "rows", rows); }
  Tensor forward(const Tensor& x) {
    const auto y = twice(torch::relu(twice(conv(x) * 3 + 1)).mul(2));
    return rows(slow(y) + 0.5 * y).square().mean();
  }
};
TORCH_MODULE(Norms);

Norms made() {
  return nets::seeded(5, [] { return Norms(); });
}

template <class Model>
void check(const std::function<Model()>& made, const Tensor& x, const std::vector<int64_t>& samples,
           const ap::Options& options) {
  auto reference = made();
  for (int call = 0; call < 3; ++call) reference->forward(x).backward();
  CHECK_NOTHROW(ap::loopback::run(static_cast<int>(samples.size()), [&](ap::World& world) {
    ap::AutoParallel<Model> model(world, made(), options);
    int64_t first = 0;
    for (int r = 0; r < world.rank(); ++r) first += samples[static_cast<std::size_t>(r)];
    const auto own = x.narrow(0, first, samples[static_cast<std::size_t>(world.rank())]);
    for (int call = 0; call < 3; ++call) model(own).backward();
    const auto state = model->gather_state();
    if (world.rank() != 0) return;
    for (const auto& buffer : reference->named_buffers()) {
      const auto& value = state[buffer.key()];
      numerics::check_close(value, buffer.value(), 1e-6, buffer.key());
    }
  }));
}

void check(const std::vector<int64_t>& samples, const ap::Options& options) {
  check<Norms>(made, torch::randn({8, 2, 5, 5}) + 2, samples, options);
}

/// Norms of images whose height is that of the argument.
struct NormsAloneImpl : nn::Module {
  nn::BatchNorm2d norm{4};
  nn::InstanceNorm2d rows{nn::InstanceNorm2dOptions(4).affine(true).track_running_stats(true)};
  NormsAloneImpl() { nets::register_all(*this, "norm", norm, "rows", rows); }
  Tensor forward(const Tensor& x) { return rows(norm(x)).square().sum(); }
};
TORCH_MODULE(NormsAlone);

TEST_CASE("batch norm statistics: empty images leave them unchanged") {
  for (const int64_t height : {0, 1}) {
    INFO("height " << height);
    const auto x = torch::randn({8, 4, height, 5});
    const auto alone = [] { return NormsAlone(); };
    check<NormsAlone>(alone, x, {8}, {.microbatches = 1});
    if (height == 0) {  // else slices have statistics of their own
      check<NormsAlone>(alone, x, {8}, {.microbatches = 2});
      check<NormsAlone>(alone, x, {5, 3}, {.stages = 1, .microbatches = 1, .replicas = {2}});
    }
  }
}

TEST_CASE("batch norm statistics: full-batch share equals one process") {
  SECTION("one rank") { check({8}, {.microbatches = 1}); }
  SECTION("one rank that recomputes segments") { check({8}, {.microbatches = 1, .recompute = ap::Recompute::kAlways}); }
  SECTION("two stages") { check({5, 3}, {.stages = 2, .microbatches = 1, .replicas = {1}}); }
  SECTION("two replicas, of which one has all samples") {
    check({8, 0}, {.stages = 1, .microbatches = 1, .replicas = {2}});
  }
}

}  // namespace running_statistics_test
