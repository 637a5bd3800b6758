#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>

#include <ATen/record_function.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Training in 16 bits with copies of parameters that stay from call to call: no step casts what an optimizer of ours
// has written, and whatever a loop does to parameters, the next call computes with it. What they are compared with is
// the same training where no copy is kept, since the program has views of its parameters.
namespace kept_copies_test {

namespace ap = autopar;
namespace nn = torch::nn;
using torch::Tensor;

constexpr int kSteps = 6;

struct Net : nn::Module {
  Net() { nets::register_all(*this, "table", table, "first", first, "norm", norm, "last", last); }
  Tensor forward(const Tensor& ids, const Tensor& y) {
    return nn::functional::cross_entropy(last(torch::relu(norm(first(table(ids).flatten(1))))), y);
  }
  nn::Embedding table{11, 7};
  nn::Linear first{14, 13}, last{13, 5};
  nn::LayerNorm norm{nn::LayerNormOptions({13})};
};

/// Of a rank.
struct Loop {
  ap::AutoParallel<Net>& model;
  torch::optim::Optimizer& optimizer;
  std::function<Tensor()> loss;  ///< of a call on the rank's samples
  std::vector<Tensor> average;
};

/// What a loop does in place of a step's backward and update, or behind them.
struct Habit {
  std::string name;
  std::function<void(Loop&, int step)> run;
};

void train(Loop& loop) {
  loop.optimizer.zero_grad();
  loop.loss().backward();
  loop.optimizer.step();
}

void swap_with_average(Loop& loop) {
  const auto parameters = loop.model->owned_parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto kept = parameters[i].data().clone();
    parameters[i].data().copy_(loop.average[i]);
    loop.average[i].copy_(kept);
  }
}

const std::vector<Habit> kHabits{
    {"nothing else", [](Loop& loop, int) { train(loop); }},
    {"an average in their place for an evaluation",
     [](Loop& loop, int step) {
       train(loop);
       const auto parameters = loop.model->owned_parameters();  // none before the first call
       if (step == 0) {
         for (const auto& p : parameters) loop.average.push_back(p.detach().clone());
       }
       for (std::size_t i = 0; i < parameters.size(); ++i) loop.average[i].lerp_(parameters[i].data(), 0.3);
       const torch::NoGradGuard no_grad;
       swap_with_average(loop);
       static_cast<void>(loop.loss());
       swap_with_average(loop);
     }},
    {"writes that no one counts",
     [](Loop& loop, int step) {
       train(loop);
       for (const auto& p : loop.model->owned_parameters()) {
         if (step % 2 == 0 && p.numel() > 0) p.data_ptr<float>()[0] += 0.5F;
         if (step % 2 == 1) p.view(-1).data().mul_(0.75);
       }
     }},
    {"steps by another optimizer between",
     [](Loop& loop, int step) {
       train(loop);
       if (step % 3 != 1) return;
       torch::optim::SGD other(loop.model->owned_parameters(), torch::optim::SGDOptions(0.3));
       loop.loss().backward();
       other.step();
     }},
    {"a step before the backward of a call",
     [](Loop& loop, int) {
       loop.optimizer.zero_grad();
       auto early = loop.loss(), late = loop.loss();
       early.backward();
       loop.optimizer.step();
       late.backward();
       loop.optimizer.step();
     }},
};

/// Losses of all calls on rank 0.
std::vector<double> losses_of(const ap::Options& options, int ranks, const Habit& habit, bool keeps) {
  std::vector<double> losses;
  ap::loopback::run(ranks, [&](ap::World& world) {
    const auto net = nets::made<Net>(3);
    std::vector<Tensor> views;
    for (const auto& p : net->parameters()) {
      if (!keeps) views.push_back(p.view(-1));
    }
    ap::AutoParallel<Net> model(world, net, options);
    ap::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.05));
    model->attach(optimizer);
    const auto ids = (torch::arange(24).view({12, 2}) * 5 + world.rank()) % 11, y = torch::arange(12) % 5;
    Loop loop{model, optimizer, [&] { return model(ids, y); }, {}};
    const auto call = loop.loss;
    loop.loss = [&] {
      auto loss = call();
      if (world.rank() == 0) losses.push_back(loss.item<double>());
      return loss;
    };
    for (int step = 0; step < kSteps; ++step) habit.run(loop, step);
  });
  return losses;
}

const std::vector<std::pair<int, ap::Options>> kPlans{
    {1, {.stages = 1, .microbatches = 2, .replicas = {1}, .precision = ap::Precision::kBf16Compute}},
    {2, {.stages = 1, .microbatches = 1, .replicas = {2}, .precision = ap::Precision::kBf16}},
    {2,
     {.stages = 2,
      .microbatches = 2,
      .replicas = {1, 1},
      .schedule = ap::ScheduleKind::kZbH1,
      .precision = ap::Precision::kBf16Compute}},
    {2, {.stages = 1, .microbatches = 2, .zero = 1, .replicas = {2}, .precision = ap::Precision::kBf16Compute}},
};

TEST_CASE("cached parameter casts: are never older than parameters") {
  torch::set_num_threads(1);
  for (const auto& [ranks, options] : kPlans) {
    for (const auto& habit : kHabits) {
      INFO(habit.name << ", " << ranks << " ranks, " << options.stages << " stages, zero " << options.zero);
      CHECK(losses_of(options, ranks, habit, true) == losses_of(options, ranks, habit, false));
    }
  }
}

// ---------------------------------------------------------------- casts

thread_local int casts = 0;

/// Operators that make 16-bit numbers of single ones, as many as a parameter of the net has.
std::unique_ptr<at::ObserverContext> count_cast(const at::RecordFunction& called) {
  const auto inputs = called.inputs();
  if (std::string(called.name()) != "aten::copy_") return nullptr;
  const auto &to = inputs[0].toTensor(), from = inputs[1].toTensor();
  static const std::set<std::int64_t> sizes{11 * 7, 14 * 13, 13 * 5, 13, 5};
  const bool rounds = to.scalar_type() == at::kBFloat16 && from.scalar_type() == at::kFloat;
  if (rounds && sizes.contains(to.numel())) ++casts;
  return nullptr;
}

struct CastCounter {
  CastCounter() {
    casts = 0;
    handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&count_cast).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~CastCounter() { at::removeCallback(handle); }
  CastCounter(const CastCounter&) = delete;
  CastCounter& operator=(const CastCounter&) = delete;
  at::CallbackHandle handle = 0;
};

template <class Optimizer, class Options>
void check_casts(const ap::Options& options, const Options& how) {
  ap::loopback::run(1, [&](ap::World& world) {
    auto own = options;
    own.replicas = {1};
    own.verify_capture = false;  // which casts, too
    ap::AutoParallel<Net> model(world, std::make_shared<Net>(), own);
    Optimizer optimizer(model->parameters(), how);
    const auto ids = torch::arange(24).view({12, 2}) % 11, y = torch::arange(12) % 5;
    std::vector<int> of_calls;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      const auto loss = [&] {
        const CastCounter counter;
        auto value = model(ids, y);
        of_calls.push_back(casts);
        return value;
      }();
      loss.backward();
      optimizer.step();
    }
    CHECK(of_calls[0] > 0);
    CHECK(of_calls[3] == 0);
  });
}

TEST_CASE("fused optimizer: no call casts a parameter it has stepped on") {
  torch::set_num_threads(1);
  for (const auto& options : {kPlans[0].second, kPlans[1].second}) {
    check_casts<ap::optim::AdamW>(options, torch::optim::AdamWOptions(0.05));
    check_casts<ap::optim::SGD>(options, torch::optim::SGDOptions(0.05).momentum(0.9));
  }
}

}  // namespace kept_copies_test
