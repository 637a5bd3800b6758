#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <autopar/io/file.hpp>
#include <catch_shim.hpp>
#include <temp_folder.hpp>

#include "pairwise.hpp"
#include "precision.hpp"

// Gradients that ranks send each other in bf16: the law of computing in bf16 (precision_test.cpp) under every kind of
// plan, the same parameters on all replicas, and what is never rounded.
namespace reduce_dtype_test {

using namespace precision_test;

constexpr int64_t kBatch = 48;
constexpr double kMostByChance = 3;  // of one tensor of many plans

/// What a plan may be, and how it is trained.
enum Factor : std::uint8_t { kNet, kSchedule, kReplicas, kZero, kLayout, kRecompute, kClip, kTensor, kFactors };
enum Net : std::uint8_t { kMlp, kTransformer, kConvNet, kEmbedding };

using Kind = ap::ScheduleKind;
constexpr Kind kSchedules[] = {Kind::kGPipe, Kind::kOneFOneB, Kind::kInterleaved,
                               Kind::kZbH1,  Kind::kZbV,      Kind::kSynthesised};
const std::vector<std::vector<int>> kReplicasOfStages{{2}, {3}, {1, 1}, {2, 1}, {1, 2}, {2, 2}};

/// Samples of each rank: even, ragged, or one rank has none.
std::vector<int64_t> layout(int kind, int ranks) {
  std::vector<int64_t> local(static_cast<std::size_t>(ranks), kBatch / ranks);
  if (kind == 0) return local;
  const int64_t moved = kind == 1 ? 3 : local.front();
  local.front() -= moved;
  local.back() += moved;
  return local;
}

Way way_of(const std::vector<int>& row) {
  const auto& replicas = kReplicasOfStages[static_cast<std::size_t>(row[kReplicas])];
  const int tensor = row[kTensor] + 1;
  int ranks = 0;
  for (const int count : replicas) ranks += count * tensor;
  Way way{layout(row[kLayout], ranks), {}, row[kClip] == 1 ? 0.5 : 0};
  way.options.stages = static_cast<int>(replicas.size());
  way.options.replicas = replicas;
  way.options.schedule = kSchedules[row[kSchedule]];
  way.options.zero = row[kZero];
  way.options.recompute = row[kRecompute] == 1 ? ap::Recompute::kAlways : ap::Recompute::kNever;
  way.options.tensor_parallel = tensor;
  way.options.precision = ap::Precision::kBf16Compute;
  way.options.reduce_dtype = ap::ReduceDtype::kBf16;
  way.options.microbatches = row[kNet] == kConvNet ? 1 : 3;
  if (row[kNet] == kConvNet) way.options.batch_norm = ap::BatchNorm::kExact;
  return way;
}

bool is_possible(std::size_t f, int a, std::size_t g, int b) {
  const auto is_stages_of_several = [](int level) {
    return kReplicasOfStages[static_cast<std::size_t>(level)].size() > 1;
  };
  if (f == kNet && g == kTensor) return a == kMlp || b == 0;  // others read one parameter in several regions, or none
  if (f == kSchedule && g == kReplicas) return is_stages_of_several(b) || a < 2;
  return true;
}

/// Two calls, the first under no_sync.
template <class Model>
void check_rows(const std::vector<std::vector<int>>& rows, Net net) {
  torch::manual_seed(3);
  const std::vector calls{Model::batch(kBatch), Model::batch(kBatch)};
  std::map<double, Expected> by_clip;
  for (const auto& row : rows) {
    if (row[kNet] != net) continue;
    const Way way = way_of(row);
    INFO(way.describe() << ", tensor " << way.options.tensor_parallel << ", samples "
                        << ::Catch::Detail::stringify(way.local));
    const auto [known, is_new] = by_clip.try_emplace(way.clip);
    if (is_new) {
      known->second = {one_process<Model>(calls, kExactly, way.clip),
                       {one_process_in_bf16<Model>(calls, way.clip, at::kCPU)}};
    }
    const auto& want = known->second;
    std::mutex mutex;
    ap::loopback::run(static_cast<int>(way.local.size()), [&](ap::World& world) {
      const auto compared = compare_rank<Model>(world, calls, way, want);
      const std::lock_guard lock(mutex);
      check_law(compared, world.rank(), true, kMostByChance);
    });
  }
}

TEST_CASE("gradients sent in bf16: error <= 1.5x one process, all plans") {
  const std::vector<int> levels{
      4, static_cast<int>(std::size(kSchedules)), static_cast<int>(kReplicasOfStages.size()), 4, 3, 2, 2, 2};
  const auto rows = numerics::pairwise_rows(levels, 20261128, is_possible);
  CHECK(rows.size() >= kReplicasOfStages.size() * std::size(kSchedules) - 8);  // one stage has no schedule of several
  check_rows<Mlp>(rows, kMlp);
  check_rows<Transformer>(rows, kTransformer);
  check_rows<ConvNet>(rows, kConvNet);
  check_rows<Embedding>(rows, kEmbedding);
}

/// Parameters and loss after some steps of SGD.
Snapshot trained(std::optional<ap::ReduceDtype> sent, int zero, const std::vector<int>& replicas,
                 ap::Precision precision, const std::vector<std::tuple<Tensor, Tensor>>& batches, bool exact = false) {
  Snapshot out;
  std::mutex mutex;
  int ranks = 0;
  for (const int count : replicas) ranks += count;
  ap::loopback::run(ranks, [&](ap::World& world) {
    ap::Options options{.stages = static_cast<int>(replicas.size()), .zero = zero, .replicas = replicas};
    options.precision = precision;
    options.reduce_dtype = sent;
    options.verify_replicas = 1;  // throws unless replicas are equal to the bit
    const auto net = made<Mlp>();
    if (exact) net->to(torch::kDouble);
    ap::AutoParallel<Mlp> model(world, net, options);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
    model->attach(optimizer);
    const std::vector<int64_t> local = layout(1, ranks);
    Tensor loss;
    for (const auto& [x, y] : batches) {
      const auto [own_x, own_y] =
          numerics::local_args(std::tuple(exact ? x.to(torch::kDouble) : x, y), {}, local, world.rank());
      optimizer.zero_grad();
      loss = model(own_x, own_y);
      loss.backward();
      optimizer.step();
    }
    Snapshot own{{"loss", loss.detach()}};
    for (const auto& item : model->named_parameters()) own.emplace_back(item.key(), model->gather(item.value()));
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) out = own;
  });
  return out;
}

TEST_CASE("gradients sent in bf16: parameters after steps stay as near") {
  torch::manual_seed(5);
  std::vector<std::tuple<Tensor, Tensor>> batches;
  for (int step = 0; step < 4; ++step) batches.push_back(Mlp::batch(kBatch));
  const auto exact = trained({}, 0, {1}, ap::Precision::kModule, batches, true);
  const auto one = trained({}, 0, {1}, ap::Precision::kBf16Compute, batches);
  for (const auto& replicas : std::vector<std::vector<int>>{{2}, {3}, {2, 1}}) {
    for (int zero = 0; zero <= 3; ++zero) {
      CAPTURE(zero, replicas);
      const auto got = trained(ap::ReduceDtype::kBf16, zero, replicas, ap::Precision::kBf16Compute, batches);
      std::vector<Comparison> compared;
      for (const auto& [name, tensor] : got) {
        const auto& want = numerics::find(exact, name);
        // One number may be right by chance: a sixteenth of bf16's epsilon is taken for its error at least.
        const double least = name == "loss" ? 0x1p-12 * want.abs().item<double>() : 0;
        const double usual = std::max(least, distance(numerics::find(one, name), want));
        compared.push_back({name, distance(tensor, want), 1.5 * usual});
      }
      check_law(compared, 0, true, kMostByChance);
    }
  }
}

TEST_CASE("reduce_dtype = bf16: fp32 modules round by request alone") {
  torch::manual_seed(6);
  const std::vector<std::tuple<Tensor, Tensor>> batches{Mlp::batch(kBatch), Mlp::batch(kBatch)};
  for (const int zero : {0, 3}) {
    const auto usual = trained({}, zero, {2}, ap::Precision::kModule, batches);
    const auto fp32 = trained(ap::ReduceDtype::kFp32, zero, {2}, ap::Precision::kModule, batches);
    const auto bf16 = trained(ap::ReduceDtype::kBf16, zero, {2}, ap::Precision::kModule, batches);
    double rounded = 0;
    for (const auto& [name, tensor] : usual) {
      CHECK(torch::equal(tensor, numerics::find(fp32, name)));
      rounded += distance(tensor, numerics::find(bf16, name));
    }
    CHECK(rounded > 0);
  }
}

TEST_CASE("plan file: records reduce_dtype, refused for another") {
  const TempFolder folder;
  const auto file = (folder / "plan.json").string();
  const auto [x, y] = Mlp::batch(kBatch);
  const auto train = [&, x = x, y = y](std::optional<ap::ReduceDtype> sent) {
    std::string message;
    try {
      ap::loopback::run(2, [&](ap::World& world) {
        ap::AutoParallel<Mlp> model(world, made<Mlp>(),
                                    {.stages = 1, .replicas = {2}, .reduce_dtype = sent, .plan_file = file});
        model(x.slice(0, 0, 4), y.slice(0, 0, 4)).backward();
      });
    } catch (const std::exception& error) {
      message = error.what();
    }
    return message;
  };
  CHECK(train(ap::ReduceDtype::kBf16).empty());
  CHECK(ap::read_text_file(file).find("\"reduce_dtype\": \"bf16\"") != std::string::npos);
  CHECK(train(std::nullopt).empty());  // the plan's
  const auto message = train(ap::ReduceDtype::kFp32);
  INFO(message);
  CHECK(message.find("reduce_dtype = bf16") != std::string::npos);
  CHECK(message.find("reduce_dtype = fp32") != std::string::npos);
}

}  // namespace reduce_dtype_test
