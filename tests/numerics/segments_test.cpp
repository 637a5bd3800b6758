#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ATen/record_function.h>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Recomputed segments, together with what else a plan may choose: parameters in shards, which are there only while
// a turn needs them; casts of parameters; and calls in other modes than the plan was made for.
namespace segments_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

template <class Module>
std::shared_ptr<Module> made() {
  return nets::made<Module>(7);
}

// ---------------------------------------------------------------- ways to run a plan again

using Segments = std::vector<std::vector<ap::NodeId>>;
enum class Again { kNothing, kStages, kAtoms, kPlanned, kRandom };
const std::vector<Again> kWays{Again::kStages, Again::kAtoms, Again::kPlanned, Again::kRandom};

/// Segments of a stage: of all its atoms, of each, as the plan has them, or of some by chance, convex or not.
Segments segments_of(const ap::StagePlan& stage, Again again, std::mt19937& random) {
  Segments out;
  if (again == Again::kStages) out = {stage.atoms};
  if (again == Again::kPlanned) out = stage.recomputed;
  if (again == Again::kAtoms) {
    for (const auto atom : stage.atoms) out.push_back({atom});
  }
  if (again == Again::kRandom) {
    Segments chosen(3);
    for (const auto atom : stage.atoms) {
      if (const auto segment = random() % 4; segment < 3) chosen[segment].push_back(atom);
    }
    std::ranges::copy_if(chosen, std::back_inserter(out), [](const auto& segment) { return !segment.empty(); });
  }
  return out;
}

ap::Plan with_segments(ap::Plan plan, Again again, int zero, unsigned seed) {
  std::mt19937 random(seed);
  for (auto& stage : plan.stages) stage.recomputed = segments_of(stage, again, random);
  plan.zero = zero;
  return plan;
}

struct Trained {
  std::vector<Tensor> losses;
  numerics::Snapshot state;
  ap::Plan plan;
};

void check_same(const Trained& got, const Trained& want, double tolerance) {
  REQUIRE(got.losses.size() == want.losses.size());
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    CHECK_NOTHROW(numerics::check_close(got.losses[i], want.losses[i], tolerance, "loss " + std::to_string(i)));
  }
  REQUIRE(got.state.size() == want.state.size());
  for (const auto& [name, tensor] : want.state) {
    CHECK_NOTHROW(numerics::check_close(numerics::find(got.state, name), tensor, tolerance, name));
  }
}

// ---------------------------------------------------------------- shares

/// Parameters that are read by several layers, at both ends, without their gradient, and where gradients are disabled.
struct Net : nn::Module {
  Net() {
    nets::register_all(*this, "table", table, "norm", norm, "heads", heads, "out", out, "shared", shared, "gate", gate,
                       "drop", drop);
    scale = register_parameter("scale", torch::tensor(1.5));
  }
  Tensor forward(const Tensor& ids, const Tensor& y) {
    auto h = table(ids);
    const auto length = h.size(1);
    for (int layer = 0; layer < 2; ++layer) {
      const auto parts = heads(norm(h)).view({h.size(0), length, 3, 2, 3}).permute({2, 0, 3, 1, 4});
      const auto a = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.2, true);
      h = h + drop(out(a.transpose(1, 2).reshape({h.size(0), length, 6}))) * scale;
      h = torch::tanh(shared(h)) + h * gate->weight.detach().mean();
    }
    Tensor best;
    {
      const torch::NoGradGuard no_grad;
      best = F::linear(h, shared->weight).argmax(-1);
    }
    h = h * (1 + best.unsqueeze(-1).to(h.scalar_type()) / 7) + gate(h);
    return F::cross_entropy(F::linear(norm(h).mean(1), table->weight), y);
  }
  nn::Embedding table{9, 6};
  nn::LayerNorm norm{nn::LayerNormOptions({6})};
  nn::Linear heads{6, 18}, out{6, 6}, shared{6, 6}, gate{6, 6};
  nn::Dropout drop{0.3};
  Tensor scale;
};

/// Two steps of two accumulated calls each, on ragged batches of which one is empty now and then.
Trained train(const std::vector<int>& replicas, const ap::Options& options, const ap::Plan* plan) {
  Trained out;
  const int ranks = std::accumulate(replicas.begin(), replicas.end(), 0);
  ap::loopback::run(ranks, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made<Net>(), options);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-3));
    model->attach(optimizer);
    if (plan != nullptr) model->deploy(*plan);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      const auto call = [&](int64_t turn) {
        const int64_t samples = (world.rank() + turn) % 3 == 1 ? 0 : 2 + (world.rank() + turn) % 2;
        const auto numbers = torch::arange(samples * 5, torch::kLong) * (3 + turn) + 2 * world.rank();
        const auto ids = numbers.remainder(9).view({samples, 5});
        const auto loss = model(ids, (torch::arange(samples, torch::kLong) * 2 + turn + world.rank()).remainder(9));
        loss.backward();
        if (world.rank() == 0) out.losses.push_back(loss.detach());
      };
      {
        const auto guard = model->no_sync();
        call(2 * step);
      }
      call(2 * step + 1);
      const auto norm = model->clip_grad_norm_(0.7);
      if (world.rank() == 0) out.losses.push_back(norm);
      optimizer.step();
    }
    const auto state = model->gather_state();
    if (world.rank() != 0) return;
    for (const auto& item : state) out.state.emplace_back(item.key(), item.value().clone());
    out.plan = model->plan();
  });
  return out;
}

TEST_CASE("sharded parameters: present whenever a segment is recomputed") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const std::vector<std::vector<int>> shapes{{2, 1}, {1, 2}, {3}, {2, 2}};
  std::size_t turn = 0;
  for (const ap::ScheduleKind schedule : ap::kScheduleKinds) {
    for (std::size_t s = 0; s < 2; ++s) {
      const auto& replicas = shapes[(turn++ + s) % shapes.size()];
      const ap::Options options{.stages = static_cast<int>(replicas.size()),
                                .microbatches = 3,
                                .zero = 0,
                                .replicas = replicas,
                                .schedule = schedule,
                                .recompute = ap::Recompute::kAlways};
      const auto planned = train(replicas, options, nullptr);
      const auto once = with_segments(planned.plan, Again::kNothing, 0, 0);
      const auto want = train(replicas, options, &once);
      check_same(planned, want, 1e-12);
      for (int zero = 1; zero <= 3; ++zero) {
        for (const auto way : kWays) {
          if (zero < 3 && (static_cast<std::size_t>(way) + turn) % 2 == 0) continue;  // level 3 is what lets go
          INFO(ap::option_text(schedule) << ", shape " << (turn - 1 + s) % shapes.size() << ", zero " << zero
                                         << ", way " << static_cast<int>(way));
          const auto plan = with_segments(planned.plan, way, zero, static_cast<unsigned>(turn));
          check_same(train(replicas, options, &plan), want, 1e-12);
        }
      }
    }
  }
}

// ---------------------------------------------------------------- casts of parameters

/// Linear layers and convolutions, whose gradients go past their casts, with a weight that two of them read.
struct Mixed : nn::Module {
  Mixed() { nets::register_all(*this, "conv", conv, "a", a, "b", b, "last", last); }
  Tensor forward(const Tensor& x, const Tensor& y) {
    auto h = torch::relu(conv(x)).flatten(1);
    h = torch::tanh(b(torch::tanh(a(h))));
    h = torch::tanh(F::linear(h, b->weight));  // without its bias
    return F::cross_entropy(last(h), y);
  }
  nn::Conv1d conv{nn::Conv1dOptions(2, 4, 3).padding(1)};
  nn::Linear a{24, 8}, b{8, 8}, last{8, 5};
};

Trained train_mixed(const std::vector<int>& replicas, ap::ScheduleKind schedule, ap::Precision precision,
                    const ap::Plan* plan) {
  Trained out;
  const ap::Options options{.stages = static_cast<int>(replicas.size()),
                            .microbatches = 2,
                            .replicas = replicas,
                            .schedule = schedule,
                            .recompute = ap::Recompute::kAlways,
                            .precision = precision};
  ap::loopback::run(2, [&](ap::World& world) {
    ap::AutoParallel<Mixed> model(world, made<Mixed>(), options);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    if (plan != nullptr) model->deploy(*plan);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      const auto x = torch::linspace(-1, 1 + step, 4 * 2 * 6).sin().view({4, 2, 6}) * (1 + world.rank());
      const auto loss = model(x, (torch::arange(4, torch::kLong) + step + world.rank()).remainder(5));
      loss.backward();
      if (world.rank() == 0) out.losses.push_back(loss.detach());
      optimizer.step();
    }
    const auto state = model->gather_state();
    if (world.rank() != 0) return;
    for (const auto& item : state) out.state.emplace_back(item.key(), item.value().clone());
    out.plan = model->plan();
  });
  return out;
}

TEST_CASE("recomputed segments: gradients pass casts of parameters") {
  torch::set_num_threads(1);
  for (const auto& replicas : {std::vector{1, 1}, std::vector{2}}) {  // the sum over replicas counts gradients
    for (const ap::Precision precision : {ap::Precision::kBf16, ap::Precision::kFp16}) {
      for (const ap::ScheduleKind schedule :
           {ap::ScheduleKind::kOneFOneB, ap::ScheduleKind::kZbH1, ap::ScheduleKind::kInterleaved}) {
        const auto planned = train_mixed(replicas, schedule, precision, nullptr);
        const auto once = with_segments(planned.plan, Again::kNothing, 0, 0);
        const auto want = train_mixed(replicas, schedule, precision, &once);
        for (const auto way : kWays) {
          INFO(replicas.size() << " stages, " << ap::option_text(precision) << ", " << ap::option_text(schedule)
                               << ", way " << static_cast<int>(way));
          const auto plan = with_segments(planned.plan, way, 0, 5);
          // To the bit, unless weight gradients that are deferred are added up in another order.
          check_same(train_mixed(replicas, schedule, precision, &plan), want,
                     schedule == ap::ScheduleKind::kZbH1 ? 1e-6 : 0);
        }
      }
    }
  }
}

// ---------------------------------------------------------------- other modes and sizes

struct Block : nets::Linears {
  Block() : Linears(6, {{"linear", 6}}) {}
  Tensor forward(const Tensor& x) { return torch::tanh(Linears::forward(x)); }
};

/// In evaluations there are more operators, of other kinds, in other places.
struct Modes : nn::Module {
  Modes() { nets::register_all(*this, "first", first, "second", second, "third", third); }
  Tensor forward(const Tensor& x) {
    auto h = first->forward(is_training() ? torch::dropout(x, 0.2, true) : x);
    h = second->forward(is_training() ? h : (h * 2).abs().sqrt() + h);
    return third->forward(is_training() ? torch::dropout(h, 0.2, true) : h.exp()).pow(2).mean();
  }
  std::shared_ptr<Block> first = std::make_shared<Block>(), second = std::make_shared<Block>(),
                         third = std::make_shared<Block>();
};

thread_local int hyperbolic_tangents = 0;
std::unique_ptr<at::ObserverContext> count_tangents(const at::RecordFunction& function) {
  if (std::string(function.name()) == "aten::tanh") ++hyperbolic_tangents;
  return nullptr;
}

/// By what was called: how often a rank ran tanh. Losses and gradients go to `out`.
std::map<std::string, int> run_modes(const ap::Options& options, int ranks, Trained& out) {
  std::map<std::string, int> counts;
  ap::loopback::run(ranks, [&](ap::World& world) {
    ap::AutoParallel<Modes> model(world, made<Modes>(), options);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    model->attach(optimizer);
    const auto x = torch::linspace(-1, 1 + world.rank(), 4 * 6).view({4, 6}), longer = torch::stack({x, x * 0.5}, 1);
    const auto call = [&](const std::string& name, const Tensor& batch) {
      for (int round = 0; round < 2; ++round) {  // the first captures and verifies, with operators on phantoms
        optimizer.zero_grad();
        hyperbolic_tangents = 0;
        const auto loss = model(batch);
        if (loss.requires_grad()) loss.backward();
        if (world.rank() == 0) {
          counts[name] = hyperbolic_tangents;
          out.losses.push_back(loss.detach());
        }
        if (loss.requires_grad()) optimizer.step();
      }
    };
    const auto handle =
        at::addThreadLocalCallback(at::RecordFunctionCallback(count_tangents).scopes({at::RecordScope::FUNCTION}));
    call("training", x);
    call("training, longer", longer);
    model->eval();
    call("evaluation", x);
    {
      const torch::NoGradGuard no_grad;
      call("evaluation without gradients", x);
    }
    model->train();
    call("training again", x);
    at::removeCallback(handle);
    const auto state = model->gather_state();
    if (world.rank() != 0) return;
    for (const auto& item : state) out.state.emplace_back(item.key(), item.value().clone());
  });
  return counts;
}

TEST_CASE("readers of segment parameters: rerun in other modes, sizes") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  for (const int zero : {0, 3}) {
    const int ranks = zero > 0 ? 2 : 1;
    ap::Options options{.stages = 1,
                        .microbatches = 1,
                        .zero = zero,
                        .replicas = {ranks},
                        .recompute = ap::Recompute::kNever,
                        .verify_capture = false};
    Trained once, again;
    for (const auto& [name, count] : run_modes(options, ranks, once)) {
      INFO("zero " << zero << ", " << name);
      CHECK(count == 3);
    }
    options.recompute = ap::RecomputeOption::of_modules({"second"});
    for (const auto& [name, count] : run_modes(options, ranks, again)) {
      INFO("zero " << zero << ", " << name);
      CHECK(count == (name == "evaluation without gradients" ? 3 : 4));
    }
    check_same(again, once, 0);
  }
}

}  // namespace segments_test
