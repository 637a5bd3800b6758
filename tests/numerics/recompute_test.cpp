#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>
#include <rank_memory.hpp>
#include <temp_folder.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Allocator.h>

#include <autopar/autopar.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Recomputed segments, in whole trainings: against the same plan without them, to the bit; and the bytes that they
// save against what the plan says. Against one process: matrix_test.cpp.
namespace recompute_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

/// Draws, statistics of micro-batches, attention, a write in place, a counter, and a table that both ends read.
struct Net : nn::Module {
  Net() {
    nets::register_all(*this, "table", table, "conv", conv, "norm", norm, "heads", heads, "out", out, "drop", drop,
                       "late", late);
    calls = register_buffer("calls", torch::zeros({}));
  }
  Tensor hidden(const Tensor& ids) {
    calls.add_(1);
    auto h = torch::relu(norm(conv(table(ids).transpose(1, 2)))).transpose(1, 2);
    const auto length = h.size(1);
    const auto parts = heads(h).view({h.size(0), length, 3, 2, 3}).permute({2, 0, 3, 1, 4});
    const auto a = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, is_training() ? 0.3 : 0.0, true);
    h = h + drop(out(a.transpose(1, 2).reshape({h.size(0), length, 6})));
    auto pooled = torch::tanh(late(h)).mean(1);
    pooled.mul_(0.5);
    return pooled;
  }
  Tensor forward(const Tensor& ids, const Tensor& y) {
    return F::cross_entropy(F::linear(hidden(ids), table->weight), y);
  }

  nn::Embedding table{9, 4};
  nn::Conv1d conv{nn::Conv1dOptions(4, 6, 3).padding(1)};
  nn::BatchNorm1d norm{6};
  nn::Linear heads{6, 18}, out{6, 6};
  nn::Dropout drop{0.5};
  nn::Linear late{6, 4};
  Tensor calls;
};

/// The same with results in place of a loss.
struct Features : Net {
  Tensor forward(const Tensor& ids) { return hidden(ids); }
};

template <class Module>
std::shared_ptr<Module> made() {
  return nets::made<Module>(7);
}

constexpr int64_t kSamples = 6;  // of each rank
Tensor ids(int step, int rank, int64_t length = 5) {
  return (torch::arange(kSamples * length, torch::kLong) * (3 + step) + 2 * rank).remainder(9).view({kSamples, length});
}
Tensor labels(int step, int rank) { return (torch::arange(kSamples, torch::kLong) * 2 + step + rank).remainder(9); }

struct Trained {
  std::vector<Tensor> losses;
  numerics::Snapshot gradients, state;
  ap::Plan plan;

  [[nodiscard]] std::size_t segments() const {
    std::size_t count = 0;
    for (const auto& stage : plan.stages) count += stage.recomputed.size();
    return count;
  }
};

/// Rank 0's view of a training: three steps of two accumulated calls each, the last with another length, and an
/// evaluation.
Trained train(int ranks, const ap::Options& options) {
  Trained out;
  torch::set_num_threads(1);
  ap::loopback::run(ranks, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made<Net>(), options);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-3));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const auto call = [&](int64_t length) {
        const auto loss = model(ids(step, world.rank(), length), labels(step, world.rank()));
        loss.backward();
        if (world.rank() == 0) out.losses.push_back(loss.detach());
      };
      {
        const auto guard = model->no_sync();
        call(5);
      }
      call(step == 2 ? 7 : 5);
      if (world.rank() == 0 && step == 0) out.gradients = numerics::gradients_of(model->named_parameters());
      optimizer.step();
    }
    model->eval();
    {
      const torch::NoGradGuard no_grad;
      const auto loss = model(ids(5, world.rank()), labels(5, world.rank()));
      if (world.rank() == 0) out.losses.push_back(loss);
    }
    const auto loss = model(ids(6, world.rank()), labels(6, world.rank()));  // an evaluation with gradients
    loss.backward();
    if (world.rank() == 0) out.losses.push_back(loss.detach());
    const auto state = model->gather_state();
    if (world.rank() != 0) return;
    for (const auto& item : state) out.state.emplace_back(item.key(), item.value().clone());
    out.plan = model->plan();
  });
  return out;
}

void check_same(const Trained& got, const Trained& want, double tolerance) {
  REQUIRE(got.losses.size() == want.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i) {
    numerics::check_close(got.losses[i], want.losses[i], tolerance, "loss " + std::to_string(i));
  }
  for (const auto both : {&Trained::gradients, &Trained::state}) {
    REQUIRE((got.*both).size() == (want.*both).size());
    for (const auto& [name, tensor] : want.*both) {
      numerics::check_close(numerics::find(got.*both, name), tensor, tolerance, name);
    }
  }
}

ap::Options options_for(std::optional<ap::ScheduleKind> schedule, int positions, int replicas,
                        ap::RecomputeOption recompute) {
  return {.stages = positions,
          .microbatches = 3,
          .replicas = std::vector<int>(static_cast<size_t>(positions), replicas),
          .schedule = schedule,
          .recompute = recompute};
}

TEST_CASE("recompute: same RNG, statistics, counters in every schedule") {
  const DoublePrecision guard;
  const TempFolder folder;
  for (const int replicas : {1, 2}) {
    for (const ap::ScheduleKind schedule : ap::kScheduleKinds) {
      for (const char* const text : {"full", "heads,conv,table"}) {
        const auto recompute = ap::RecomputeOption::named(text).value();
        INFO(ap::option_text(schedule) << ", " << replicas << " replicas, recompute = " << text);
        auto options = options_for(schedule, 2, replicas, recompute);
        const auto again = train(2 * replicas, options);
        CHECK(again.segments() > 0);
        CHECK(again.plan.schedule == schedule);
        auto plan = again.plan;  // the same cuts and orders
        for (auto& stage : plan.stages) stage.recomputed.clear();
        options.plan_file = folder / "once.json";
        ap::write_plan(options.plan_file, plan);
        const auto once = train(2 * replicas, options);
        REQUIRE(once.segments() == 0);
        // To the bit, where what runs once has libtorch's own backwards and not the formulas of parted ones.
        const bool parts = ap::traits_of(schedule).splits_backwards;
        CHECK_NOTHROW(check_same(again, once, parts ? 1e-12 : 0));
      }
    }
  }
}

TEST_CASE("plan file: recomputed segments are read and run") {
  const DoublePrecision guard;
  const TempFolder folder;
  auto options = options_for(ap::ScheduleKind::kOneFOneB, 2, 1, ap::Recompute::kAlways);
  options.plan_file = folder / "plan.json";
  const auto written = train(2, options);
  REQUIRE(written.segments() > 0);
  options.recompute = ap::Recompute::kNever;  // what the file says is run
  const auto read = train(2, options);
  CHECK(read.plan == written.plan);
  CHECK_NOTHROW(check_same(read, written, 0));
  CHECK_NOTHROW(check_same(read, train(2, options_for(ap::ScheduleKind::kOneFOneB, 2, 1, ap::Recompute::kNever)), 0));
  auto plan = written.plan;
  plan.stages[0].recomputed[0].push_back(plan.stages[1].atoms[0]);
  ap::write_plan(options.plan_file, plan);
  CHECK_THROWS_WITH(train(2, options), Catch::Contains("atom " + std::to_string(plan.stages[1].atoms[0].value())));
}

TEST_CASE("recompute: backward is exact after calls and buffer changes") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const auto train_features = [](ap::Recompute recompute) {
    numerics::Snapshot out;
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<Features> model(world, made<Features>(), options_for(std::nullopt, 2, 1, recompute));
      const auto first = model(ids(0, world.rank())), second = model(ids(1, world.rank()));
      (first * second).sum().backward();
      const auto gradients = numerics::gradients_of(model->named_parameters());
      const auto state = model->gather_state();
      if (world.rank() != 0) return;
      out = gradients;
      out.emplace_back("results", torch::stack({first, second}).detach());
      for (const auto& item : state) out.emplace_back("state of " + item.key(), item.value().clone());
    });
    return out;
  };
  const auto once = train_features(ap::Recompute::kNever), again = train_features(ap::Recompute::kAlways);
  REQUIRE(once.size() == again.size());
  for (const auto& [name, tensor] : once)
    CHECK_NOTHROW(numerics::check_close(numerics::find(again, name), tensor, 0, name));
}

// ---------------------------------------------------------------- memory

/// Residual layers with wide insides.
struct Deep : nn::Module {
  Deep() {
    for (int i = 0; i < 12; ++i) {
      up.push_back(register_module("up" + std::to_string(i), nn::Linear(32, 96)));
      down.push_back(register_module("down" + std::to_string(i), nn::Linear(96, 32)));
    }
  }
  Tensor forward(const Tensor& x) {
    auto h = x;
    for (size_t i = 0; i < up.size(); ++i) h = h + torch::dropout(down[i](torch::gelu(up[i](h))), 0.1, is_training());
    return h.pow(2).mean();
  }
  std::vector<nn::Linear> up, down;
};

/// Layers with attention.
struct Encoder : nn::Module {
  Encoder() {
    for (int i = 0; i < 6; ++i) {
      heads.push_back(register_module("heads" + std::to_string(i), nn::Linear(16, 48)));
      out.push_back(register_module("out" + std::to_string(i), nn::Linear(16, 16)));
      norm.push_back(register_module("norm" + std::to_string(i), nn::LayerNorm(nn::LayerNormOptions({16}))));
    }
  }
  Tensor forward(const Tensor& x) {
    auto h = x.view({x.size(0), 2, 16});
    for (size_t i = 0; i < heads.size(); ++i) {
      const auto p = heads[i](norm[i](h)).view({h.size(0), 2, 3, 2, 8}).permute({2, 0, 3, 1, 4});
      const auto a = torch::softmax(torch::matmul(p[0], p[1].transpose(-2, -1)) * 0.35, -1);
      h = h + out[i](torch::matmul(a, p[2]).transpose(1, 2).reshape({h.size(0), 2, 16}));
    }
    return h.pow(2).mean();
  }
  std::vector<nn::Linear> heads, out;
  std::vector<nn::LayerNorm> norm;
};

struct Memory {
  ap::Plan plan;
  double measured = 0;  ///< bytes: parameters and the most that a step adds to them
  [[nodiscard]] double predicted() const { return static_cast<double>(plan.stages[0].peak_memory.value()); }
};

/// A step on one rank, after one that warms up.
template <class Module>
Memory measure(ap::Options options, int64_t samples) {
  Memory out;
  torch::set_num_threads(1);
  ap::loopback::run(1, [&](ap::World& world) {
    ap::AutoParallel<Module> model(world, made<Module>(), options);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1e-3));
    model->attach(optimizer);
    const auto x = torch::linspace(-1, 1, samples * 32).view({samples, 32});
    const auto step = [&] {
      optimizer.zero_grad();
      model(x).backward();
      optimizer.step();
    };
    step();
    optimizer.zero_grad();
    for (const auto& parameter : model->parameters()) out.measured += static_cast<double>(parameter.nbytes());
    auto& ledger = RankMemory::install().open();
    const RankMemory::Scope scope(ledger);
    step();
    out.measured += static_cast<double>(ledger.peak());
    out.plan = model->plan();
  });
  return out;
}

template <class Module>
void check_memory(const std::string& name) {
  constexpr int64_t kBatch = 2048;
  for (const int microbatches : {1, 4}) {
    ap::Options options{.stages = 1,
                        .microbatches = microbatches,
                        .replicas = {1},
                        .schedule = ap::ScheduleKind::kGPipe,
                        .recompute = ap::Recompute::kNever};
    const auto once = measure<Module>(options, kBatch);
    options.recompute = ap::Recompute::kAlways;
    const auto again = measure<Module>(options, kBatch);
    INFO(name << ", " << microbatches << " micro-batches: without " << once.measured / 1e6 << " of "
              << once.predicted() / 1e6 << " MB, with " << again.measured / 1e6 << " of " << again.predicted() / 1e6
              << " MB");
    CHECK(again.measured <= again.predicted());
    CHECK(again.measured >= 0.75 * again.predicted());
    CHECK(again.measured < 0.6 * once.measured);
    // Between the two: as few segments as fit.
    options.recompute = ap::Recompute::kToFit;
    options.memory_margin = 0;
    options.device_memory =
        ap::Bytes((once.plan.stages[0].peak_memory.value() + again.plan.stages[0].peak_memory.value()) / 2);
    const auto fits = measure<Module>(options, kBatch);
    CHECK(fits.plan.stages[0].recomputed.size() > 0);
    CHECK(fits.plan.stages[0].recomputed.size() < again.plan.stages[0].recomputed.size());
    CHECK(fits.measured <= static_cast<double>(options.device_memory.value()));
    options.recompute = ap::Recompute::kNever;
    CHECK_THROWS_AS(measure<Module>(options, kBatch), ap::InfeasiblePlan);
  }
}

TEST_CASE("recompute: memory is as planned, far below without") {
  const DoublePrecision guard;
  check_memory<Deep>("residual layers");
  check_memory<Encoder>("attention");
}

}  // namespace recompute_test
