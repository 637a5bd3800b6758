#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>
#include <temp_folder.hpp>
#include <trace_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/plan/report/runnable.hpp>
#include <autopar/runtime/loopback.hpp>
#include <autopar/schedule/schedule.hpp>
#include <autopar/schedule/simulate.hpp>

#include "../unit/schedule/equal_times.hpp"
#include "fidelity.hpp"

// Schedules with several stages a rank and with backwards in two parts, where one process is no reference: random draws
// and statistics of micro-batches; and what is recorded of them.
namespace numerics_schedules_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

const std::vector<ap::ScheduleKind> kSchedules{ap::ScheduleKind::kInterleaved, ap::ScheduleKind::kZbH1,
                                               ap::ScheduleKind::kZbV, ap::ScheduleKind::kSynthesised};

/// Draws, statistics of micro-batches, an embedding, a convolution, and a table that the first and the last operators
/// read.
struct Net : nn::Module {
  Net() {
    nets::register_all(*this, "table", table, "conv", conv, "norm", norm, "a", a, "drop", drop, "b", b, "late", late);
  }
  Tensor forward(const Tensor& ids, const Tensor& y) {
    const auto x = table(ids).transpose(1, 2);
    auto h = drop(torch::relu(norm(conv(x)))).flatten(1);
    h = late(torch::tanh(b(drop(torch::relu(a(h))))));
    return F::cross_entropy(F::linear(h, table->weight), y);
  }
  nn::Embedding table{9, 4};
  nn::Conv1d conv{nn::Conv1dOptions(4, 6, 3).padding(1)};
  nn::BatchNorm1d norm{6};
  nn::Linear a{30, 12};
  nn::Dropout drop{0.5};
  nn::Linear b{12, 7};
  nn::Linear late{7, 4};
};

std::shared_ptr<Net> made() { return nets::made<Net>(7); }

constexpr int64_t kSamples = 6;  // of each rank
Tensor ids(int step, int rank) {
  return (torch::arange(kSamples * 5, torch::kLong) * (3 + step) + 2 * rank).remainder(9).view({kSamples, 5});
}
Tensor labels(int step, int rank) { return (torch::arange(kSamples, torch::kLong) * 2 + step + rank).remainder(9); }

struct Trained {
  std::vector<Tensor> losses;
  numerics::Snapshot state;
  ap::Plan plan;
};

/// Three steps and an evaluation. @param load, save  folders, empty = none
Trained train(int ranks, const ap::Options& options, const std::string& load = "", const std::string& save = "") {
  Trained out;
  torch::set_num_threads(1);
  ap::loopback::run(ranks, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made(), options);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-3));
    model->attach(optimizer);
    if (!load.empty()) model->load(load, optimizer);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const auto loss = model(ids(step, world.rank()), labels(step, world.rank()));
      loss.backward();
      optimizer.step();
      if (world.rank() == 0) out.losses.push_back(loss.detach());
    }
    if (options.trace_file.empty()) {  // of which the latest step is looked at
      model->eval();
      const torch::NoGradGuard no_grad;
      const auto loss = model(ids(5, world.rank()), labels(5, world.rank()));
      if (world.rank() == 0) out.losses.push_back(loss);
    }
    if (!save.empty()) model->save(save, optimizer);
    const auto state = model->gather_state();
    if (world.rank() != 0) return;
    for (const auto& item : state) out.state.emplace_back(item.key(), item.value().clone());
    out.plan = model->plan();
  });
  return out;
}

/// On two positions, or as many as one rank a position gives.
ap::Options options_for(ap::ScheduleKind schedule, int replicas) {
  return {.stages = 2, .microbatches = 3, .zero = 0, .replicas = {replicas, replicas}, .schedule = schedule};
}

void check_same(const Trained& got, const Trained& want, double tolerance) {
  REQUIRE(got.losses.size() == want.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i) {
    numerics::check_close(got.losses[i], want.losses[i], tolerance, "loss " + std::to_string(i));
  }
  REQUIRE(got.state.size() == want.state.size());
  for (const auto& [name, tensor] : want.state)
    numerics::check_close(numerics::find(got.state, name), tensor, tolerance, name);
}

TEST_CASE("every schedule: same RNG, batch statistics, tied parameters") {
  const DoublePrecision guard;
  for (const int replicas : {1, 2}) {
    const auto plain = train(2 * replicas, options_for(ap::ScheduleKind::kOneFOneB, replicas));
    for (const auto& schedule : kSchedules) {
      INFO(ap::option_text(schedule) << ", " << replicas << " replicas");
      const auto other = train(2 * replicas, options_for(schedule, replicas));
      CHECK(other.plan.schedule == schedule);
      CHECK_NOTHROW(check_same(
          other, plain, schedule == ap::ScheduleKind::kZbH1 ? 0 : 1e-12));  // to the bit: the sums have one order
    }
  }
}

TEST_CASE("checkpoint: resumes under another schedule") {
  const DoublePrecision guard;
  const TempFolder folder;
  static_cast<void>(train(2, options_for(ap::ScheduleKind::kInterleaved, 1), "", folder / "interleaved"));
  static_cast<void>(train(2, options_for(ap::ScheduleKind::kZbV, 1), "", folder / "zb-v"));
  const auto plain = train(2, options_for(ap::ScheduleKind::kOneFOneB, 1), folder / "interleaved");
  CHECK_NOTHROW(check_same(train(2, options_for(ap::ScheduleKind::kZbV, 1), folder / "interleaved"), plain, 1e-12));
  CHECK_NOTHROW(check_same(train(2, options_for(ap::ScheduleKind::kOneFOneB, 1), folder / "zb-v"), plain, 1e-12));
  CHECK_NOTHROW(check_same(train(4, options_for(ap::ScheduleKind::kInterleaved, 2), folder / "zb-v"),
                           train(4, options_for(ap::ScheduleKind::kOneFOneB, 2), folder / "interleaved"), 1e-12));
}

/// Names of the compute actions of a rank's latest step in a recorded trace, in its order.
std::vector<std::string> computes_in(const std::string& trace, int rank) {
  std::vector<std::string> computes;
  for (const auto& bar : trace_rows::latest_bars_of(trace, rank)) {
    if (bar.name.find(" of stage ") != std::string::npos) computes.push_back(bar.name);
  }
  return computes;
}

/// The compute actions of a rank in the order in which they start in the simulated timeline.
std::vector<std::string> simulated(const ap::Program& program, const ap::Timeline& timeline, std::size_t rank) {
  std::vector<std::size_t> order(program.ranks[rank].size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto& spans = timeline.spans[rank];
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return spans[a].start < spans[b].start; });
  std::vector<std::string> computes;
  for (const auto at : order) computes.push_back(ap::describe(program.ranks[rank][at]));
  return computes;
}

TEST_CASE("trace: ranks follow the schedule and simulated timeline") {
  const DoublePrecision guard;
  const TempFolder folder;
  for (const ap::ScheduleKind schedule : ap::kScheduleKinds) {
    for (const int replicas : {1, 2}) {
      auto options = options_for(schedule, replicas);
      options.trace_file = folder / (ap::name_of(schedule) + ".json");
      if (replicas > 1) {
        options.zero = 3;
        options.recompute = ap::Recompute::kAlways;
      }
      const auto plan = train(2 * replicas, options).plan;
      REQUIRE(plan.schedule == schedule);
      REQUIRE(plan.zero == (replicas > 1 ? 3 : 0));
      const std::vector<std::int64_t> local(static_cast<std::size_t>(2 * replicas), kSamples);
      const auto pipeline = ap::stages_of(plan);
      const auto program = ap::make_program(pipeline, {local, plan.microbatches}, plan.schedule, ap::Phase::kStep,
                                            {plan.orders, plan.microbatches});
      const auto timeline = ap::simulate(pipeline, program, ap::testing::EqualTimes{});
      const auto trace = ap::read_text_file(options.trace_file);
      for (std::size_t rank = 0; rank < local.size(); ++rank) {
        INFO(ap::option_text(schedule) << ", " << replicas << " replicas, rank " << rank);
        std::vector<std::string> planned;
        for (const auto& action : program.ranks[rank]) planned.push_back(ap::describe(action));
        const auto recorded = computes_in(trace, static_cast<int>(rank));
        CHECK(recorded == planned);
        CHECK(recorded == simulated(program, timeline, rank));
      }
    }
  }
}

/// Each layer with an addend of its own. Of one sample, the addend's gradient is a view of that of the layer's result.
struct Positions : nn::Module {
  Positions() {
    register_module("layers", layers);
    for (int i = 0; i < 6; ++i) {
      layers->push_back(nn::Linear(5, 5));
      addends.push_back(register_parameter("addend" + std::to_string(i), torch::randn({3, 5})));
    }
  }
  Tensor forward(Tensor x) {
    for (std::size_t i = 0; i < addends.size(); ++i) {
      x = torch::tanh(layers[i]->as<nn::Linear>()->forward(x) + addends[i].unsqueeze(0));
    }
    return x.pow(2).mean();
  }
  nn::ModuleList layers;
  std::vector<Tensor> addends;
};

TEST_CASE("view gradients: are own copies across micro-batches") {
  const DoublePrecision guard;
  const auto make = [] { return nets::made<Positions>(7); };
  torch::set_num_threads(1);
  const auto x = torch::linspace(-1, 2, 8 * 3 * 5).sin().view({8, 3, 5});
  const auto reference = make();
  reference->forward(x).backward();
  for (const auto& schedule : kSchedules) {
    for (const int stages : {1, 2, 4}) {
      INFO(ap::option_text(schedule) << ", " << stages << " stages");
      CHECK_NOTHROW(ap::loopback::run(stages, [&](ap::World& world) {
        ap::AutoParallel<Positions> model(world, make(), {.stages = stages, .microbatches = 8, .schedule = schedule});
        const auto share = 8 / world.size();
        model(x.narrow(0, share * world.rank(), share)).backward();
        for (const auto& item : model->named_parameters()) {
          if (!model->owns(item.value())) continue;
          const auto want = reference->named_parameters()[item.key()].grad();
          numerics::check_close(item.value().grad(), want, 1e-12, "gradient of " + item.key());
        }
      }));
    }
  }
}

}  // namespace numerics_schedules_test
