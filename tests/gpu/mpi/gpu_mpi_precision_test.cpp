#include <torch/torch.h>

#include <catch_shim.hpp>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <autopar/torch/device.hpp>

#include "../../numerics/precision.hpp"

// Element types on GPUs: no tensor is further from fp64 than 1.5 times what one process on one GPU is, with the same
// setting.
namespace gpu_precision_test {

using namespace precision_test;

constexpr int64_t kBatch = 48;

std::vector<int64_t> ragged(int ranks) {
  std::vector<int64_t> local(static_cast<std::size_t>(ranks), kBatch / ranks);
  local.front() += 4;
  local.back() -= 4;
  return local;
}

/// Batches of other sizes round elsewhere: where one process was lucky, it is taken to be off by this share.
double luck(ap::Precision precision) {
  return precision == ap::Precision::kBf16 ? 0x1p-12
                                           : 0x1p-14;  // a sixteenth of the type's epsilon (fp16 and TF32: 10 bits)
}

template <class Net>
void check_row(ap::World& world, const std::string& model, Way way, bool whole_statistics = false) {
  if (whole_statistics) {
    way.options.microbatches = 1;
    way.options.batch_norm = ap::BatchNorm::kExact;
  }
  torch::manual_seed(3);
  const std::vector calls{Net::batch(kBatch), Net::batch(kBatch)};
  const auto device = ap::device(world);
  const double scale = way.options.precision == ap::Precision::kFp16 ? 1024 : 1;
  const auto rounded = [&](at::MemoryFormat images) {
    return one_process<Net>(calls, way.options.precision, way.clip, device, scale, images);
  };
  const Expected want{one_process<Net>(calls, kExactly, way.clip),
                      {rounded(at::MemoryFormat::Contiguous), rounded(at::MemoryFormat::ChannelsLast)}};
  INFO(model << ": " << way.describe() << ", rank " << world.rank());
  const auto compared = compare_rank<Net>(world, calls, way, want, luck(way.options.precision));
  Comparison worst;
  double ratio = -1;
  for (const auto& each : compared) {
    INFO(each.name << ": error " << each.error << ", allowed " << each.allowed
                   << (each.same_type ? "" : ", another type"));
    CHECK(each.holds());
    const double own = each.allowed > 0 ? each.error / each.allowed : (each.error > 0 ? 1e9 : 0);
    if (own > ratio) worst = each;
    ratio = std::max(ratio, own);
  }
  std::fprintf(stderr, "rank %d, %s: %s: worst is %s, error %.3g of %.3g allowed (%.2f)\n", world.rank(), model.c_str(),
               way.describe().c_str(), worst.name.c_str(), worst.error, worst.allowed, ratio);
}

Way way_of(int ranks, std::vector<int> replicas, ap::Precision precision, int zero,
           ap::ScheduleKind schedule = ap::ScheduleKind::kOneFOneB,
           ap::RecomputeOption recompute = ap::Recompute::kNever, double clip = 0) {
  return {ragged(ranks),
          {.stages = static_cast<int>(replicas.size()),
           .microbatches = 3,
           .zero = zero,
           .replicas = replicas,
           .schedule = schedule,
           .recompute = recompute,
           .precision = precision,
           .costs = zero == 0 ? ap::CostChoice::kProfiled : ap::CostChoice::kRoofline},  // measuring takes seconds
          clip};
}

TEST_CASE("ZeRO 0-3 in bf16/fp16/tf32: error <= 1.5x one GPU process") {
  ap::World world(0, nullptr);
  const int ranks = world.size();
  REQUIRE(ap::device(world).is_cuda());
  const auto replicas = ranks == 4 ? std::vector{2, 2} : std::vector{ranks};
  for (const ap::Precision precision : {ap::Precision::kTf32, ap::Precision::kBf16, ap::Precision::kFp16}) {
    for (int zero = 0; zero <= 3; ++zero) {
      const bool odd = zero % 2 == 1;
      check_row<Transformer>(world, "transformer",
                             way_of(ranks, replicas, precision, zero, ap::ScheduleKind::kOneFOneB,
                                    odd ? ap::Recompute::kAlways : ap::Recompute::kNever, odd ? 0 : 0.5));
    }
    check_row<Transformer>(world, "transformer", way_of(ranks, {1, 1}, precision, 0, ap::ScheduleKind::kZbH1));
    check_row<Mlp>(world, "MLP", way_of(ranks, replicas, precision, 3, ap::ScheduleKind::kZbH1));
    check_row<Embedding>(world, "embedding", way_of(ranks, {ranks}, precision, 2));
    check_row<ConvNet>(world, "convolutions and batch norms", way_of(ranks, {ranks}, precision, 3), true);
  }
}

template <class Net>
void check_throughout(ap::World& world, Way way, bool whole_statistics = false) {
  way.options.precision = ap::Precision::kBf16Compute;
  if (whole_statistics) {
    way.options.microbatches = 1;
    way.options.batch_norm = ap::BatchNorm::kExact;
  }
  torch::manual_seed(3);
  const std::vector calls{Net::batch(kBatch), Net::batch(kBatch)};
  const Expected want{one_process<Net>(calls, kExactly, way.clip),
                      {one_process_in_bf16<Net>(calls, way.clip, ap::device(world))}};
  for (const auto sent : {ap::ReduceDtype::kFp32, ap::ReduceDtype::kBf16}) {
    way.options.reduce_dtype = sent;
    INFO(way.describe() << ", reduce_dtype " << ap::option_text(way.options.reduce_dtype));
    check_law(compare_rank<Net>(world, calls, way, want), world.rank(), true);
  }
}

TEST_CASE("reduce_dtype: auto is bf16 in pure bf16 on GPUs alone") {
  ap::World world(0, nullptr);
  REQUIRE(ap::device(world).is_cuda());
  for (const auto precision : {ap::Precision::kModule, ap::Precision::kBf16, ap::Precision::kBf16Compute}) {
    ap::AutoParallel<Mlp> model(world, made<Mlp>(), {.precision = precision, .costs = ap::CostChoice::kRoofline});
    std::apply([&](const auto&... each) { model->prepare(each...); }, Mlp::batch(4));
    const bool rounds = precision == ap::Precision::kBf16Compute;
    CHECK(model->plan().buckets.reduce_dtype == (rounds ? ap::ReduceDtype::kBf16 : ap::ReduceDtype::kFp32));
  }
}

TEST_CASE("ZeRO 0-3 in pure bf16: error <= 1.5x a bf16 module") {
  ap::World world(0, nullptr);
  const int ranks = world.size();
  REQUIRE(ap::device(world).is_cuda());
  for (int zero = 0; zero <= 3; ++zero) {
    const bool odd = zero % 2 == 1;
    check_throughout<Transformer>(world,
                                  way_of(ranks, {ranks}, ap::Precision::kBf16Compute, zero, ap::ScheduleKind::kOneFOneB,
                                         odd ? ap::Recompute::kAlways : ap::Recompute::kNever, odd ? 0 : 0.5));
  }
  check_throughout<Mlp>(world, way_of(ranks, {1, 1}, ap::Precision::kBf16Compute, 0, ap::ScheduleKind::kZbH1));
  check_throughout<Embedding>(world, way_of(ranks, {ranks}, ap::Precision::kBf16Compute, 2));
  check_throughout<ConvNet>(world, way_of(ranks, {ranks}, ap::Precision::kBf16Compute, 3), true);
}

struct Squares : SumOfSquares {
  Squares() : SumOfSquares(64, {{"a", 64}, {"b", 32}}, torch::relu) {}
};

TEST_CASE("ZeRO 0-3 in fp16: overflow on one GPU skips the step on all") {
  ap::World world(0, nullptr);
  const int ranks = world.size();
  REQUIRE(ap::device(world).is_cuda());
  for (int zero = 0; zero <= 3; ++zero) {
    INFO("zero " << zero << ", rank " << world.rank());
    torch::manual_seed(5);
    const auto x = torch::randn({4 * ranks, 64}) / 8;
    const auto near = torch::zeros({4 * ranks, 32});
    auto far = near.clone();
    far.slice(0, 4 * (ranks - 1)).fill_(500.0);
    ap::AutoParallel<Squares> model(world, made<Squares>(),
                                    {.microbatches = 2,
                                     .zero = zero,
                                     .replicas = {ranks},
                                     .precision = ap::Precision::kFp16,
                                     .costs = ap::CostChoice::kRoofline});
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.1));
    model->attach(optimizer);
    const auto mine = [&](const Tensor& all) { return all.slice(0, 4 * world.rank(), 4 * world.rank() + 4); };
    model->prepare(mine(x), mine(near));
    std::vector<Tensor> before;
    for (const auto& parameter : model->owned_parameters()) before.push_back(parameter.detach().clone());
    const auto step = [&](const Tensor& target) {
      optimizer.zero_grad();
      model(mine(x), mine(target)).backward();
      const auto norm = model->clip_grad_norm_(1e6).item<double>();
      optimizer.step();
      return norm;
    };
    CHECK(step(far) == 0);
    const ap::parameters::PartAccess access;  // what ranks hold is compared
    CHECK(model->stats().skipped_steps == 1);
    CHECK(model->stats().loss_scale == 32768);
    const auto owned = model->owned_parameters();
    for (std::size_t i = 0; i < owned.size(); ++i) CHECK(torch::equal(owned[i], before[i]));
    for (const auto& parameter : owned) CHECK(optimizer.state().count(parameter.unsafeGetTensorImpl()) == 0);
    CHECK(step(near) > 0);
    CHECK(model->stats().skipped_steps == 1);
    for (std::size_t i = 0; i < owned.size(); ++i) {
      if (owned[i].numel() > 0) CHECK_FALSE(torch::equal(owned[i], before[i]));
    }
    for (const auto& parameter : owned) CHECK(parameter.scalar_type() == torch::kFloat);
  }
}

}  // namespace gpu_precision_test
