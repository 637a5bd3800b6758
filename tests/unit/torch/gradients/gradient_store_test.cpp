#include "torch/gradients/gradient_store.hpp"

#include <limits>
#include <mutex>
#include <vector>

#include <torch/nn.h>

#include <autopar/runtime/loopback.hpp>
#include <catch_shim.hpp>

namespace gradient_store_test {

using namespace autopar;

/// A layer whose weight both of two ranks hold, and whose bias rank 0 has alone.
struct Shared {
  explicit Shared(World& world) : wire(world.make_transport()), parameters(*layer, world.rank_id()) {
    parameters.named("weight").holders = {Rank(0), Rank(1)};
    parameters.named("bias").holders = {Rank(0)};
    groups[{Rank(0), Rank(1)}] = wire.make_group({Rank(0), Rank(1)});
  }
  gradients::GradientSums sums() { return {wire, groups, parameters, buckets}; }

  torch::nn::Linear layer{2, 3};
  AnyTransport wire;
  parameters::ParameterStore parameters;
  std::map<std::vector<Rank>, GroupId> groups;
  BucketPolicy buckets;
};

double value_of(const std::vector<gradients::HandleGradient>& gradients, const at::Tensor& handle) {
  for (const auto& each : gradients) {
    if (each.handle.is_same(handle)) return each.gradient.flatten()[0].item<double>();
  }
  return std::numeric_limits<double>::quiet_NaN();
}

TEST_CASE("GradientStore: sends fp32 in bf16 if asked, bucket by bucket") {
  for (const auto type : {at::kFloat, at::kDouble}) {
    std::mutex mutex;
    loopback::run(2, [&](World& world) {
      const torch::NoGradGuard no_grad;
      Shared shared(world);
      shared.buckets = {.size = Bytes(128), .reduce_dtype = ReduceDtype::kBf16};  // 32 elements
      gradients::GradientStore store;
      const auto given = torch::linspace(1, 2, 100, type) + world.rank();
      store.accumulate(shared.parameters.of(shared.layer->weight), given, false);
      store.reduce(shared.sums());
      const auto sum = store.take_reduced().at(0).gradient;
      const auto addend = [&](int rank) { return torch::linspace(1, 2, 100, type) + rank; };
      const auto rounded = [&](int rank) { return addend(rank).to(at::kBFloat16).to(at::kFloat); };
      const auto in_fp32 = (rounded(0) + rounded(1)).to(at::kBFloat16).to(at::kFloat);
      const std::lock_guard lock(mutex);
      CHECK(torch::equal(sum, type == at::kFloat ? in_fp32 : addend(0) + addend(1)));
    });
  }
}

TEST_CASE("GradientStore: sums over holders exactly once") {
  std::mutex mutex;
  loopback::run(2, [&](World& world) {
    const torch::NoGradGuard no_grad;
    Shared shared(world);
    const auto& weight = shared.layer->weight;
    const auto& bias = shared.layer->bias;
    gradients::GradientStore store;
    const auto given = torch::full_like(weight, world.rank() + 1.0);
    store.accumulate(shared.parameters.of(weight), given, /*may_take=*/false);
    store.accumulate(shared.parameters.of(weight), given, false);
    if (world.rank() == 0) store.accumulate(shared.parameters.of(bias), torch::full_like(bias, 7), true);
    const bool had = store.has_accumulated();
    const auto bytes = store.accumulated();
    store.reduce(shared.sums());
    const auto first = store.take_reduced();

    store.accumulate(shared.parameters.of(weight), torch::ones_like(weight), true);
    store.reduce(shared.sums());
    store.accumulate(shared.parameters.of(weight), torch::ones_like(weight), true);
    store.reduce(shared.sums());  // what was not taken waits, and is added to
    const auto second = store.take_reduced();

    const std::lock_guard lock(mutex);
    CHECK(had);
    CHECK(bytes == Bytes(world.rank() == 0 ? 36 : 24));
    CHECK_FALSE(store.has_accumulated());
    CHECK(value_of(first, weight) == 6);
    CHECK(given.flatten()[0].item<double>() == world.rank() + 1);  // of somebody else, left as it was
    CHECK(first.size() == (world.rank() == 0 ? 2U : 1U));
    if (world.rank() == 0) CHECK(value_of(first, bias) == 7);
    CHECK(value_of(second, weight) == 4);
    CHECK(store.take_reduced().empty());
  });
}

TEST_CASE("GradientStore: reduced gradients are checked and dropped") {
  std::mutex mutex;
  loopback::run(2, [&](World& world) {
    const torch::NoGradGuard no_grad;
    Shared shared(world);
    const auto& weight = shared.layer->weight;
    gradients::GradientStore store;
    store.accumulate(shared.parameters.of(weight), torch::ones_like(weight), true);
    store.reduce(shared.sums());
    const bool finite = store.reduced_are_finite(at::kCPU);
    const double infinite = world.rank() == 1 ? std::numeric_limits<double>::infinity() : 1;
    store.accumulate(shared.parameters.of(weight), torch::full_like(weight, infinite), true);
    store.reduce(shared.sums());
    const bool still = store.reduced_are_finite(at::kCPU);
    store.accumulate(shared.parameters.of(weight), torch::ones_like(weight), true);
    store.drop_reduced();
    const bool kept = store.has_accumulated();
    store.drop();

    const std::lock_guard lock(mutex);
    CHECK(finite);
    CHECK_FALSE(still);
    CHECK(kept);
    CHECK_FALSE(store.has_accumulated());
    CHECK(store.take_reduced().empty());
  });
}

}  // namespace gradient_store_test
