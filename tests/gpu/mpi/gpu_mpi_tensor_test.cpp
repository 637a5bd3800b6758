#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>

#include <memory>

#include <autopar/torch/device.hpp>

#include "../../numerics/tensor_models.hpp"

namespace gpu_tensor_test {

using namespace tensor_test;

template <class Net>
void check(ap::World& world, ap::RecomputeOption recompute = ap::Recompute::kNever,
           ap::Switch sequence = ap::Switch::kOff, int replicas = 1, int zero = -1) {
  Setup setup;
  setup.options.recompute = recompute;
  setup.options.zero = zero;
  setup.options.costs = ap::CostChoice::kRoofline;
  setup.options.sequence_parallel = sequence;
  setup = setup_of(world.size() / replicas, {replicas}, 1, setup);
  const auto reference = numerics::run_reference<Net>([] { return std::make_shared<Net>(); }, setup, 7);
  const auto seen = check_on<Net>(world, reference, setup, 7);
  CHECK(seen.slices > 0);
  CHECK(seen.by_tokens == (sequence == ap::Switch::kOn));
}

TEST_CASE("tensor parallel on GPUs: equals one CPU process in fp64") {
  const DoublePrecision fp64;
  torch::set_num_threads(1);
  ap::World world(0, nullptr);
  REQUIRE(ap::device(world).is_cuda());
  check<FeedForward>(world);
  check<Gpt>(world);
  check<Gpt>(world, ap::Recompute::kAlways);
  check<Gpt>(world, ap::Recompute::kNever, ap::Switch::kOn);
  check<Blocks>(world, ap::Recompute::kAlways, ap::Switch::kOn);
  check<Encoder>(world);
  check<Separate>(world);
  check<Classifier>(world);
  for (const int zero : {1, 2, 3}) {
    if (world.size() < 4) break;
    check<FeedForward>(world, ap::Recompute::kNever, ap::Switch::kOff, 2, zero);
    check<Gpt>(world, ap::Recompute::kAlways, ap::Switch::kOn, 2, zero);
  }
}

}  // namespace gpu_tensor_test
