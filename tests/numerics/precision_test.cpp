#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <temp_folder.hpp>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/runtime/loopback.hpp>

#include "precision.hpp"

// Computing in 16 bits: bf16 is to be as near to fp64 as libtorch's autocast in one process is, per tensor; fp16 must
// skip a step everywhere or nowhere.
namespace precision_test {

template <class Args>
Args local(const Args& args, const std::vector<int64_t>& samples, int rank) {
  return numerics::local_args(args, {}, samples, rank);
}

constexpr int64_t kBatch = 48;

std::vector<Way> ways(bool whole_statistics) {
  std::vector<Way> out;
  const auto add = [&](std::vector<int64_t> local, int stages, std::vector<int> replicas, int microbatches,
                       ap::ScheduleKind schedule) {
    ap::Options options{.stages = stages,
                        .microbatches = whole_statistics ? 1 : microbatches,
                        .zero = 0,
                        .replicas = replicas,
                        .schedule = schedule,
                        .precision = ap::Precision::kBf16};
    if (whole_statistics) options.batch_norm = ap::BatchNorm::kExact;
    out.push_back({std::move(local), options});
  };
  add({48}, 1, {1}, 1, ap::ScheduleKind::kOneFOneB);
  add({48}, 1, {1}, 6, ap::ScheduleKind::kGPipe);
  add({20, 28}, 1, {2}, 2, ap::ScheduleKind::kOneFOneB);
  add({24, 24}, 2, {1, 1}, 4, ap::ScheduleKind::kOneFOneB);
  add({30, 18}, 2, {1, 1}, 4, ap::ScheduleKind::kZbH1);
  add({16, 16, 16}, 2, {2, 1}, 3, ap::ScheduleKind::kGPipe);
  add({10, 30, 8}, 3, {1, 1, 1}, 4, ap::ScheduleKind::kZbH1);
  return out;
}

/// Every tensor of every rank against fp64 and against one process with the same setting.
template <class Net>
void check_error_law(const std::vector<Way>& ways, int calls = 1, uint64_t seed = 3) {
  INFO("samples of seed " << seed);
  torch::manual_seed(seed);
  std::vector<decltype(Net::batch(1))> args;
  for (int k = 0; k < calls; ++k) args.push_back(Net::batch(kBatch));
  std::map<double, Expected> by_clip;
  for (const auto& way : ways) {
    INFO(way.describe());
    const auto [known, is_new] = by_clip.try_emplace(way.clip);
    const auto with_setting = [&] {
      if (way.options.precision == ap::Precision::kBf16Compute)
        return one_process_in_bf16<Net>(args, way.clip, at::kCPU);
      return one_process<Net>(args, ap::Precision::kBf16, way.clip);
    };
    if (is_new) known->second = {one_process<Net>(args, kExactly, way.clip), {with_setting()}};
    const auto& want = known->second;
    std::mutex mutex;
    ap::loopback::run(static_cast<int>(way.local.size()), [&](ap::World& world) {
      const auto compared = compare_rank<Net>(world, args, way, want);
      const std::lock_guard lock(mutex);
      check_law(compared, world.rank(), way.options.precision == ap::Precision::kBf16Compute);
    });
  }
}

/// Shares among replicas (ZeRO) with schedules, segments that are recomputed, and clipping.
std::vector<Way> ways_with_shares(bool whole_statistics = false) {
  std::vector<Way> out;
  const auto add = [&](std::vector<int64_t> local, std::vector<int> replicas, int zero, ap::ScheduleKind schedule,
                       ap::Recompute recompute, double clip) {
    ap::Options options{.stages = static_cast<int>(replicas.size()),
                        .microbatches = whole_statistics ? 1 : 3,
                        .zero = zero,
                        .replicas = replicas,
                        .schedule = schedule,
                        .recompute = recompute,
                        .precision = ap::Precision::kBf16};
    if (whole_statistics) options.batch_norm = ap::BatchNorm::kExact;
    out.push_back({std::move(local), options, clip});
  };
  add({20, 28}, {2}, 1, ap::ScheduleKind::kOneFOneB, ap::Recompute::kAlways, 0.5);
  add({20, 28}, {2}, 2, ap::ScheduleKind::kZbH1, ap::Recompute::kNever, 0);
  add({20, 28}, {2}, 3, ap::ScheduleKind::kGPipe, ap::Recompute::kAlways, 0.5);
  add({13, 0, 35}, {3}, 3, ap::ScheduleKind::kOneFOneB, ap::Recompute::kNever, 0);
  if (whole_statistics) return out;
  add({24, 24}, {1, 1}, 0, ap::ScheduleKind::kZbH1, ap::Recompute::kAlways, 0.5);
  add({20, 12, 16}, {2, 1}, 3, ap::ScheduleKind::kZbH1, ap::Recompute::kAlways, 0);
  add({20, 12, 16}, {1, 2}, 2, ap::ScheduleKind::kOneFOneB, ap::Recompute::kAlways, 0.5);
  add({6, 18, 10, 14}, {2, 2}, 1, ap::ScheduleKind::kOneFOneB, ap::Recompute::kNever, 0);
  return out;
}

TEST_CASE("bf16 with ZeRO and recompute: error <= 1.5x autocast") {
  auto chunked = ways_with_shares();
  for (const ap::ScheduleKind schedule : {ap::ScheduleKind::kInterleaved, ap::ScheduleKind::kZbV}) {
    chunked.push_back(chunked.back());
    chunked.back().options.schedule = schedule;
    chunked.back().options.zero = schedule == ap::ScheduleKind::kZbV ? 3 : 2;
  }
  check_error_law<Mlp>(chunked, 2);
  check_error_law<Transformer>(ways_with_shares(), 2);
  check_error_law<ConvNet>(ways_with_shares(true), 2);
  check_error_law<Embedding>(ways_with_shares(), 2);
}

/// The same in bf16 throughout.
std::vector<Way> in_bf16_throughout(std::vector<Way> ways) {
  for (auto& way : ways) way.options.precision = ap::Precision::kBf16Compute;
  return ways;
}

TEST_CASE("pure bf16 training: error <= 1.5x bf16 with fp32 masters") {
  check_error_law<Mlp>(in_bf16_throughout(ways(false)));
  check_error_law<Transformer>(in_bf16_throughout(ways(false)));
  check_error_law<ConvNet>(in_bf16_throughout(ways(true)));
  check_error_law<Embedding>(in_bf16_throughout(ways(false)));
  check_error_law<Mlp>(in_bf16_throughout(ways_with_shares()), 2);
  check_error_law<Transformer>(in_bf16_throughout(ways_with_shares()), 2);
  check_error_law<ConvNet>(in_bf16_throughout(ways_with_shares(true)), 2);
}

/// Many layers of one size.
struct Deep : nets::LayerList {
  Deep() : LayerList(16, 48) {}
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x.pow(2).mean();
  }
};

TEST_CASE("planned memory: counts shards, under ZeRO 3 no full copy") {
  torch::manual_seed(3);
  std::vector<ap::Bytes> peaks;
  std::mutex mutex;
  for (int zero = 0; zero <= 3; ++zero) {
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<Deep> model(world, made<Deep>(),
                                   {.stages = 1, .zero = zero, .replicas = {2}, .precision = ap::Precision::kBf16});
      torch::optim::AdamW optimizer(model->parameters());
      model->attach(optimizer);
      model->prepare(torch::randn({4, 48}));
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) peaks.push_back(model->plan().stages[0].peak_memory);
    });
  }
  int64_t bytes = 0;
  for (const auto& parameter : made<Deep>()->parameters()) bytes += static_cast<int64_t>(parameter.nbytes());
  // Level 1: half of parameters and of two states less; the copies stay, and the shard of a sum is there beside the
  // sum, all in one unit. 3: they do not stay, nor do the gradients of level 2.
  CHECK((peaks[0] - peaks[1]).value() >= bytes - 1024);
  CHECK((peaks[1] - peaks[2]).value() >= bytes / 4);
  CHECK((peaks[2] - peaks[3]).value() >= bytes / 4);
}

TEST_CASE("parameter gathered in 16 bits: reading it in fp32 is refused") {
  struct Switch : nets::Linears {
    Switch() : Linears(16, {{"a", 16}}) {}
    Tensor forward(const Tensor& x) {
      const auto h = Linears::forward(x);
      return is_training() ? h.pow(2).mean() : (h * layers[0]->weight.exp().sum()).mean();
    }
  };
  for (const int zero : {2, 3}) {
    std::string message;
    try {
      ap::loopback::run(2, [&](ap::World& world) {
        ap::AutoParallel<Switch> model(world, made<Switch>(),
                                       {.stages = 1, .zero = zero, .replicas = {2}, .precision = ap::Precision::kBf16});
        torch::optim::SGD optimizer(model->parameters(), 0.1);
        model->attach(optimizer);
        model(torch::ones({2, 16})).backward();
        model->eval();
        model(torch::ones({2, 16}));
      });
    } catch (const std::exception& error) {
      message = error.what();
    }
    INFO(message);
    CHECK(message.find("'a.weight' is gathered as BFloat16 (ZeRO " + std::to_string(zero)) != std::string::npos);
    CHECK(message.find("zero = 2 at most") != std::string::npos);
  }
}

TEST_CASE("bf16 MLP: error <= 1.5x autocast") {
  for (const uint64_t seed : {3, 4, 5, 6}) check_error_law<Mlp>(ways(false), 1, seed);
}
TEST_CASE("bf16 convolutions and batch norms: error <= 1.5x autocast") { check_error_law<ConvNet>(ways(true)); }
TEST_CASE("bf16 transformer: error <= 1.5x autocast") { check_error_law<Transformer>(ways(false)); }
TEST_CASE("bf16 embedding: error <= 1.5x autocast") {
  for (const uint64_t seed : {3, 4, 5, 6}) check_error_law<Embedding>(ways(false), 1, seed);
}

// ---------------------------------------------------------------- layers that libtorch treats apart in 16 bits

/// 16-bit values and float32 weights in, 16-bit values out, which stages send to one another.
struct Norms : nets::LayerList {
  Norms() : LayerList(5, 24) {
    nets::register_all(*this, "layer1", layer1, "layer2", layer2, "group1", group1, "group2", group2);
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    auto h = torch::tanh(layer1(layers[0](x)));
    h = torch::tanh(group1(layers[1](h)));
    h = torch::tanh(layer2(layers[2](h)));
    const auto maps = layers[3](h).view({-1, 4, 2, 3}).contiguous(at::MemoryFormat::ChannelsLast);
    return F::cross_entropy(layers[4](torch::tanh(group2(maps)).flatten(1)), y);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 24}), torch::randint(24, {n}, torch::kLong)); }
  nn::LayerNorm layer1{nn::LayerNormOptions({24})}, layer2{nn::LayerNormOptions({24}).elementwise_affine(false)};
  nn::GroupNorm group1{nn::GroupNormOptions(4, 24)}, group2{nn::GroupNormOptions(2, 4)};
};

/// Cells of recurrent layers: products whose result is cut into gates that are written in place.
struct Cells : nn::Module {
  Cells() { nets::register_all(*this, "lstm", lstm, "gru", gru, "rnn", rnn, "last", last); }
  Tensor forward(const Tensor& x, const Tensor& y) {
    std::tuple<Tensor, Tensor> state;
    Tensor h;
    for (const auto& step : x.unbind(1)) {
      state = std::get<0>(state).defined() ? lstm(step, state) : lstm(step);
      h = h.defined() ? gru(std::get<0>(state), h) : gru(std::get<0>(state));
    }
    const auto pieces = last(rnn(h)).unsafe_split_with_sizes({6, 10}, 1);
    return F::cross_entropy(torch::cat({pieces[1], pieces[0]}, 1), y);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 3, 12}), torch::randint(16, {n}, torch::kLong)); }
  nn::LSTMCell lstm{12, 16};
  nn::GRUCell gru{16, 16};
  nn::RNNCell rnn{16, 16};
  nn::Linear last{16, 16};
};

struct Bags : nn::Module {
  Bags() { nets::register_all(*this, "bag", bag, "a", a, "b", b); }
  Tensor forward(const Tensor& ids, const Tensor& target) {
    return (b(F::logsigmoid(a(bag(ids)))) - target).abs().mean();
  }
  static auto batch(int64_t n) { return std::tuple(torch::randint(30, {n, 4}, torch::kLong), torch::randn({n, 16})); }
  nn::EmbeddingBag bag{nn::EmbeddingBagOptions(30, 24).mode(torch::kMean)};
  nn::Linear a{24, 64}, b{64, 16};
};

/// Attention with a bias that is trained, with one that the samples have, and with a mask: of the first, libtorch lays
/// the result out otherwise than of the last.
struct Biased : nn::Module {
  Biased() {
    bias = register_parameter("bias", torch::randn({1, 2, 4, 4}));
    nets::register_all(*this, "in", in, "out", out);
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    const auto n = x.size(0);
    const auto mask = torch::ones({4, 4}).tril().to(torch::kBool);
    const auto to_heads = [&](const Tensor& h) { return h.view({n, 4, 2, 6}).transpose(1, 2); };
    auto h = in(x);
    for (const auto& by : {bias, h.slice(2, 0, 4).unsqueeze(1), mask}) {
      const auto heads = to_heads(h);
      h = in(torch::scaled_dot_product_attention(heads, heads, heads, by).transpose(1, 2).reshape({n, 4, 12}));
    }
    return F::cross_entropy(out(h).mean(1), y);
  }
  static auto batch(int64_t n) { return std::tuple(torch::randn({n, 4, 12}), torch::randint(10, {n}, torch::kLong)); }
  Tensor bias;
  nn::Linear in{12, 12}, out{12, 10};
};

/// Many stages, and micro-batches of one sample.
std::vector<Way> fine_ways() {
  auto out = ways(false);
  for (const auto& [stages, schedule] :
       {std::pair{4, ap::ScheduleKind::kOneFOneB}, {4, ap::ScheduleKind::kZbH1}, {2, ap::ScheduleKind::kGPipe}}) {
    const auto size = static_cast<std::size_t>(stages);
    const int microbatches = stages == 2 ? static_cast<int>(kBatch) : 4;
    out.push_back({std::vector<int64_t>(size, kBatch / stages),
                   {.stages = stages,
                    .microbatches = microbatches,
                    .zero = 0,
                    .replicas = std::vector<int>(size, 1),
                    .schedule = schedule,
                    .precision = ap::Precision::kBf16}});
  }
  return out;
}

TEST_CASE("bf16 layer and group norms in stages: error <= 1.5x autocast") { check_error_law<Norms>(fine_ways()); }
TEST_CASE("bf16 recurrent cells: error <= 1.5x autocast") { check_error_law<Cells>(fine_ways()); }
TEST_CASE("bf16 embedding bags: error <= 1.5x autocast") { check_error_law<Bags>(fine_ways()); }
TEST_CASE("bf16 attention with biases: error <= 1.5x autocast") { check_error_law<Biased>(fine_ways()); }

TEST_CASE("bf16 profile: atoms run in bf16, copies count as memory") {
  torch::manual_seed(3);
  const auto args = Mlp::batch(kBatch);
  std::mutex mutex;
  ap::loopback::run(2, [&](ap::World& world) {
    ap::AutoParallel<Mlp> model(world, made<Mlp>(),
                                {.stages = 2, .precision = ap::Precision::kBf16, .costs = ap::CostChoice::kProfiled});
    const auto mine = local(args, {24, 24}, world.rank());
    std::apply([&](const auto&... each) { return model(each...); }, mine).backward();
    const std::lock_guard lock(mutex);
    for (const auto& stage : model->plan().stages) {
      CHECK(stage.forward > ap::Seconds(0));
      // parameters, gradients, two states of the optimizer, and casts of half the size
      CHECK(stage.peak_memory.value() > 4 * stage.parameter_bytes.value() + stage.parameter_bytes.value() / 2);
    }
  });
}

// ---------------------------------------------------------------- fp16

struct Sums : SumOfSquares {
  Sums() : SumOfSquares(8, {{"a", 16}, {"b", 4}}, torch::relu) {}
};

struct Halves {
  Tensor x = torch::randn({8, 8}) / 8, target = torch::randn({8, 4}) / 8;
  /// With the second rank's targets far away.
  [[nodiscard]] Tensor far() const {
    auto out = target.clone();
    out.slice(0, 4, 8).fill_(50.0);
    return out;
  }
};

/// Also with parameters in shards, for what attaches an optimizer.
std::vector<Way> half_ways() {
  std::vector<Way> out;
  for (const auto& [stages, replicas, schedule] :
       std::vector<std::tuple<int, std::vector<int>, ap::ScheduleKind>>{{1, {2}, ap::ScheduleKind::kOneFOneB},
                                                                        {2, {1, 1}, ap::ScheduleKind::kOneFOneB},
                                                                        {2, {1, 1}, ap::ScheduleKind::kZbH1}}) {
    out.push_back({{4, 4},
                   {.stages = stages,
                    .microbatches = 2,
                    .zero = 0,
                    .replicas = replicas,
                    .schedule = schedule,
                    .precision = ap::Precision::kFp16}});
  }
  for (const auto& [zero, recompute] : {std::pair{1, ap::Recompute::kAlways},
                                        {2, ap::Recompute::kNever},
                                        {3, ap::Recompute::kNever},
                                        {3, ap::Recompute::kAlways}}) {
    out.push_back({{4, 4},
                   {.stages = 1,
                    .microbatches = 2,
                    .zero = zero,
                    .replicas = {2},
                    .recompute = recompute,
                    .precision = ap::Precision::kFp16}});
  }
  for (const int zero : {0, 1, 3}) {
    out.push_back({{4, 4},
                   {.stages = 1,
                    .microbatches = 2,
                    .zero = zero,
                    .replicas = {2},
                    .precision = ap::Precision::kFp16,
                    .reduce_dtype = ap::ReduceDtype::kBf16}});
  }
  return out;
}

/// Gradients of one process under fp16 autocast with a loss scale.
Snapshot scaled_gradients(const Tensor& x, const Tensor& target, double scale) {
  const auto net = made<Sums>();
  Tensor loss;
  {
    const AutocastScope autocast(at::kHalf);
    loss = net->forward(x, target);
  }
  (loss * scale).backward();
  Snapshot out;
  for (const auto& item : net->named_parameters()) out.emplace_back(item.key(), item.value().grad() / scale);
  return out;
}

template <class Model>
void check_undefined(Model& model) {
  for (const auto& parameter : model->parameters()) CHECK_FALSE(parameter.grad().defined());
}

/// What gradients may err by more, as a share of the largest, if they are sent in bf16: a rounding of each addend, and
/// one of the sum.
double error_of_sending(const ap::Plan& plan) {
  return plan.buckets.reduce_dtype == ap::ReduceDtype::kBf16 ? 2 * 0x1p-9 : 0;
}

template <class Model>
void check_near(Model& model, const Snapshot& want) {
  const double error = 4e-3 + error_of_sending(model->plan());
  for (const auto& item : model->named_parameters()) {
    if (!model->owns(item.value())) continue;
    INFO(item.key());
    const auto expected = numerics::held_part(numerics::find(want, item.key()), model->shard(item.value()));
    REQUIRE(item.value().grad().defined());
    if (expected.numel() == 0) continue;
    CHECK(distance(item.value().grad(), expected) <= error * (1e-3 + expected.abs().max().template item<double>()));
  }
}

TEST_CASE("fp16 overflow on one rank: skips the step, halves the scale") {
  torch::manual_seed(4);
  const Halves data;
  const auto want = scaled_gradients(data.x, data.target, 1024);
  for (const auto& way : half_ways()) {
    INFO(way.describe());
    std::mutex mutex;
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<Sums> model(world, made<Sums>(), way.options);
      torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.1));
      model->attach(optimizer);
      const auto mine = [&](const Tensor& all) { return all.slice(0, 4 * world.rank(), 4 * world.rank() + 4); };
      model->prepare(mine(data.x), mine(data.target));
      std::vector<Tensor> before;
      for (const auto& parameter : model->owned_parameters()) before.push_back(parameter.detach().clone());
      const auto step = [&](const Tensor& target) {
        optimizer.zero_grad();
        const auto loss = model(mine(data.x), mine(target));
        loss.backward();
        return model->clip_grad_norm_(1e6).template item<double>();
      };
      const auto first_norm = step(data.far());
      {
        const std::lock_guard lock(mutex);
        check_undefined(model);
        CHECK(first_norm == 0);
        CHECK(model->stats().skipped_steps == 1);
        CHECK(model->stats().loss_scale == 32768);
      }
      optimizer.step();
      const auto owned = model->owned_parameters();
      const ap::parameters::PartAccess access;  // what ranks hold is compared
      step(data.target);
      {
        const std::lock_guard lock(mutex);
        for (size_t i = 0; i < owned.size(); ++i) CHECK(torch::equal(owned[i], before[i]));
        for (const auto& parameter : owned) CHECK(optimizer.state().count(parameter.unsafeGetTensorImpl()) == 0);
        CHECK(model->stats().skipped_steps == 1);
        CHECK(model->stats().loss_scale == 32768);
        check_near(model, want);
      }
      optimizer.step();
      const std::lock_guard lock(mutex);
      for (size_t i = 0; i < owned.size(); ++i) {
        if (owned[i].numel() > 0) CHECK_FALSE(torch::equal(owned[i], before[i]));
        CHECK(owned[i].scalar_type() == torch::kFloat);
      }
    });
  }
}

TEST_CASE("fp16 overflow in no_sync: skips only that accumulation") {
  torch::manual_seed(4);
  const Halves data;
  auto twice = scaled_gradients(data.x, data.target, 1024);
  for (auto& [name, gradient] : twice) gradient = gradient * 2;
  for (const auto& way : half_ways()) {
    INFO(way.describe());
    std::mutex mutex;
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<Sums> model(world, made<Sums>(), way.options);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      model->attach(optimizer);
      const auto mine = [&](const Tensor& all) { return all.slice(0, 4 * world.rank(), 4 * world.rank() + 4); };
      const auto accumulate = [&](const Tensor& first, bool sync) {
        {
          const auto guard = model->no_sync();
          model(mine(data.x), mine(first)).backward();
          if (sync) model(mine(data.x), mine(data.target)).backward();
        }
        if (sync)
          model->sync_gradients();
        else
          model(mine(data.x), mine(data.target)).backward();
      };
      for (const bool sync : {false, true}) {
        const auto skipped = model->stats().skipped_steps;
        accumulate(data.far(), sync);
        {
          const std::lock_guard lock(mutex);
          check_undefined(model);
          CHECK(model->stats().skipped_steps == skipped + 1);
        }
        accumulate(data.target, sync);
        const std::lock_guard lock(mutex);
        CHECK(model->stats().skipped_steps == skipped + 1);
        check_near(model, twice);
        for (auto parameter : model->parameters()) parameter.mutable_grad().reset();
      }
    });
  }
}

template <class Net>
void check_half() {
  torch::manual_seed(4);
  const std::vector calls{Net::batch(8)};
  constexpr double kScale = 1024;
  const Expected want{one_process<Net>(calls, kExactly),
                      {one_process<Net>(calls, ap::Precision::kFp16, 0, at::kCPU, kScale)}};
  for (const int microbatches : {2, 8}) {
    const Way way{{4, 4}, {.stages = 2, .microbatches = microbatches, .zero = 0, .precision = ap::Precision::kFp16}};
    INFO(way.describe());
    std::mutex mutex;
    ap::loopback::run(2, [&](ap::World& world) {
      const auto compared = compare_rank<Net>(world, calls, way, want);
      const std::lock_guard lock(mutex);
      for (const auto& each : compared) {
        INFO(each.name << " on rank " << world.rank() << ": error " << each.error << ", allowed " << each.allowed);
        CHECK(each.holds());
      }
    });
  }
}

TEST_CASE("fp16 norms, cells, bags, attention: error <= 1.5x autocast") {
  check_half<Norms>();
  check_half<Cells>();
  check_half<Bags>();
  check_half<Biased>();
}

TEST_CASE("fp16 outside loss: small gradients survive") {
  torch::manual_seed(5);
  const auto args = Scores::batch(8);
  const auto x = std::get<0>(args).clone().set_requires_grad(true);
  constexpr double kTiny = 1e-7;  // gradients of results are zero in half precision
  const auto net = made<Scores>();
  (net->forward(x).pow(2).mean() * kTiny).backward();
  for (const auto& way : half_ways()) {
    INFO(way.describe());
    std::mutex mutex;
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<Scores> model(world, made<Scores>(), way.options);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      model->attach(optimizer);
      const auto mine = x.detach().slice(0, 4 * world.rank(), 4 * world.rank() + 4).clone().set_requires_grad(true);
      const auto scores = model(mine);
      const auto loss = scores.pow(2).sum() / (8 * 16) * kTiny;
      loss.backward();
      const std::lock_guard lock(mutex);
      CHECK(scores.scalar_type() == torch::kFloat);
      CHECK(model->stats().skipped_steps == 0);
      const double error = 5e-3 + error_of_sending(model->plan());
      const auto close = [error](const Tensor& got, const Tensor& want) {
        return want.numel() == 0 || distance(got, want) <= error * want.abs().max().item<double>();
      };
      CHECK(close(mine.grad(), x.grad().slice(0, 4 * world.rank(), 4 * world.rank() + 4)));
      const auto expected = net->named_parameters();
      for (const auto& item : model->named_parameters()) {
        if (!model->owns(item.value())) continue;
        CHECK(close(item.value().grad(), numerics::held_part(expected[item.key()].grad(), model->shard(item.value()))));
      }
    });
  }
}

TEST_CASE("loss scale: is saved in the checkpoint") {
  const TempFolder folder;
  torch::manual_seed(4);
  const Halves data;
  std::mutex mutex;
  for (const int ranks : {1, 2}) {  // of two, the first model has shares, the second has not
    const ap::Options options{
        .stages = 1, .zero = ranks == 1 ? 0 : 3, .replicas = {ranks}, .precision = ap::Precision::kFp16};
    const auto file = (folder / ("step" + std::to_string(ranks))).string();
    ap::loopback::run(ranks, [&](ap::World& world) {
      ap::AutoParallel<Sums> first(world, made<Sums>(), options),
          second(world, made<Sums>(), {.zero = 0, .precision = ap::Precision::kFp16}), third(world, made<Sums>(), {});
      torch::optim::SGD sgd(first->parameters(), 0.1), other(second->parameters(), 0.1),
          plain(third->parameters(), 0.1);
      first->attach(sgd);
      const auto mine = [&](const Tensor& all) {
        return all.slice(0, 8 / ranks * world.rank(), 8 / ranks * (world.rank() + 1));
      };
      first(mine(data.x), mine(data.far())).backward();
      first->save(file, sgd);
      second->load(file, other);
      third->load(file, plain);
      second(mine(data.x), mine(data.target)).backward();
      third(mine(data.x), mine(data.target)).backward();
      const std::lock_guard lock(mutex);
      CHECK(first->stats().loss_scale == 32768);
      CHECK(second->stats().loss_scale == 32768);
      CHECK(second->stats().skipped_steps == 1);
      CHECK(third->stats().loss_scale == 1);
    });
  }
}

// ---------------------------------------------------------------- settings

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("tf32: CPU results and process settings stay unchanged") {
  torch::manual_seed(6);
  const auto [x, y] = Mlp::batch(16);
  const auto before = at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL);
  std::vector<Tensor> losses;
  ap::loopback::run(1, [&, x = x, y = y](ap::World& world) {
    for (const ap::Precision precision : {ap::Precision::kModule, ap::Precision::kTf32}) {
      ap::AutoParallel<Mlp> model(world, made<Mlp>(), {.precision = precision});
      losses.push_back(model(x, y).detach());
      CHECK(model->plan().precision == precision);
    }
  });
  CHECK(torch::equal(losses[0], losses[1]));
  CHECK(at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) == before);
}

TEST_CASE("two precision settings, or one without effect: are refused") {
  torch::manual_seed(6);
  const auto [x, y] = Mlp::batch(16);
  ap::loopback::run(1, [&, x = x, y = y](ap::World& world) {
    ap::AutoParallel<Mlp> model(world, made<Mlp>(), {.precision = ap::Precision::kBf16});
    const auto both = message_of([&] {
      const AutocastScope autocast(at::kBFloat16);
      model(x, y);
    });
    CHECK(contains(both, "autocast"));
    CHECK(contains(both, "precision = bf16"));
  });
  ap::loopback::run(1, [&, x = x, y = y](ap::World& world) {
    const auto net = made<Mlp>();
    net->to(torch::kDouble);
    ap::AutoParallel<Mlp> model(world, net, {.precision = ap::Precision::kFp16});
    const auto message = message_of([&] { model(x.to(torch::kDouble), y); });
    CHECK(contains(message, "precision = fp16"));
    CHECK(contains(message, "net.0.weight"));
    CHECK(contains(message, "Double"));
  });
}

// As in libtorch, whose autocast on CPUs knows neither.
TEST_CASE("mixed-dtype product: is refused by name before running") {
  struct Product : nn::Module {
    explicit Product(bool with_addend) : adds(with_addend) {
      register_module("a", a);
      v = register_parameter("v", torch::ones({8}));
    }
    Tensor forward(const Tensor& x) {
      const auto h = a(x);
      return (adds ? torch::addmv(h.sum(1), h, v) : torch::mv(h, v)).mean();
    }
    bool adds;
    nn::Linear a{8, 8};
    Tensor v;
  };
  for (const bool adds : {false, true}) {
    const auto message = message_of([&] {
      ap::loopback::run(1, [&](ap::World& world) {
        ap::AutoParallel<Product> model(world, std::make_shared<Product>(adds), {.precision = ap::Precision::kBf16});
        model(torch::ones({4, 8}));
      });
    });
    INFO(message);
    CHECK(contains(message, adds ? "aten::addmv (near v)" : "aten::mv (near v)"));
    CHECK(contains(message, "BFloat16 by Float"));
  }
}

TEST_CASE("plan file: records precision, refused for another") {
  const TempFolder folder;
  torch::manual_seed(6);
  const auto [x, y] = Mlp::batch(16);
  const auto file = (folder / "plan.json").string();
  const auto train = [&, x = x, y = y](ap::Precision precision) {
    return message_of([&] {
      ap::loopback::run(1, [&](ap::World& world) {
        ap::AutoParallel<Mlp> model(world, made<Mlp>(), {.precision = precision, .plan_file = file});
        model(x, y).backward();
      });
    });
  };
  CHECK(train(ap::Precision::kBf16).empty());
  CHECK(contains(ap::read_text_file(file), "\"precision\": \"bf16\""));
  CHECK(train(ap::Precision::kBf16).empty());
  for (const ap::Precision other : {ap::Precision::kModule, ap::Precision::kTf32, ap::Precision::kFp16}) {
    const auto message = train(other);
    CHECK(contains(message, "precision = bf16"));
    CHECK(contains(message, "precision = " + ap::option_text(other)));
  }
}

TEST_CASE("caller's own autocast: keeps working bitwise") {
  torch::manual_seed(6);
  const auto [x, y] = Mlp::batch(kBatch);
  const std::vector samples{std::tuple(x, y)};
  const auto exact = one_process<Mlp>(samples, kExactly), want = one_process<Mlp>(samples, ap::Precision::kBf16);
  ap::loopback::run(1, [&, x = x, y = y](ap::World& world) {
    ap::AutoParallel<Mlp> model(world, made<Mlp>(), {.microbatches = 1});
    Tensor loss;
    {
      const AutocastScope autocast(at::kBFloat16);
      loss = model(x, y);
    }
    loss.backward();
    CHECK(torch::equal(loss.detach(), numerics::find(want, "loss")));
    for (const auto& item : model->named_parameters()) {
      INFO(item.key());
      const auto true_gradient = numerics::find(exact, "gradient of " + item.key());
      CHECK(distance(item.value().grad(), true_gradient) <=
            1.5 * distance(numerics::find(want, "gradient of " + item.key()), true_gradient));
    }
  });
}

}  // namespace precision_test
