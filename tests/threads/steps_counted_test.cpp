#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <temp_folder.hpp>
#include <told.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

// How often ranks step their optimizers, as far as state and parameters tell.
namespace steps_counted_test {

namespace ap = autopar;
using torch::Tensor;

struct Net : nets::MeanSquare<nets::Linears> {
  Net() : MeanSquare(4, {{"first", 8}, {"second", 8}, {"third", 8}, {"prototypes", 4, false}}) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      const auto values = torch::linspace(-1, 1, parameter.numel()).mul(3).sin();
      parameter.copy_(values.view(parameter.sizes()).mul(0.5));
    }
  }
};

using Model = ap::AutoParallel<Net>;
using Made = std::unique_ptr<torch::optim::Optimizer>;
using Make = std::function<Made(const std::vector<Tensor>&)>;

struct Kind {
  const char* name;
  Make make;
};

template <class Optimizer, class Options>
Kind kind(const char* name, const Options& options) {
  return {name, [options](const std::vector<Tensor>& parameters) {
            return std::make_unique<Optimizer>(parameters, options);
          }};
}

/// Without LAMB, whose steps wait for one another.
std::vector<Kind> kinds() {
  namespace o = torch::optim;
  return {kind<o::SGD>("SGD", o::SGDOptions(0.1)),
          kind<o::SGD>("SGD with weight decay", o::SGDOptions(0.1).weight_decay(0.1)),
          kind<ap::optim::SGD>("fused SGD", o::SGDOptions(0.1)),
          kind<o::SGD>("momentum", o::SGDOptions(0.1).momentum(0.9)),
          kind<o::SGD>("nesterov", o::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1)),
          kind<ap::optim::SGD>("fused momentum", o::SGDOptions(0.1).momentum(0.9)),
          kind<o::Adam>("Adam", o::AdamOptions(0.01).amsgrad(true)),
          kind<o::AdamW>("AdamW", o::AdamWOptions(0.01)),
          kind<ap::optim::AdamW>("fused AdamW", o::AdamWOptions(0.01)),
          kind<o::RMSprop>("RMSprop", o::RMSpropOptions(0.01).momentum(0.5)),
          kind<o::Adagrad>("Adagrad", o::AdagradOptions(0.01))};
}

struct Division {
  const char* name;
  ap::Options options;
  int ranks = 2;
};

std::vector<Division> divisions() {
  return {{"replicas", {.stages = 1, .microbatches = 1, .zero = 0, .replicas = {2}}},
          {"ZeRO 1", {.stages = 1, .microbatches = 1, .zero = 1, .replicas = {2}}},
          {"ZeRO 2", {.stages = 1, .microbatches = 1, .zero = 2, .replicas = {2}}},
          {"ZeRO 3", {.stages = 1, .microbatches = 1, .zero = 3, .replicas = {2}}},
          {"stages", {.stages = 2, .microbatches = 2, .zero = 0}},
          {"slices", {.stages = 1, .microbatches = 1, .tensor_parallel = 2, .zero = 0}},
          {"stages of shards", {.stages = 2, .microbatches = 2, .zero = 1, .replicas = {2}}, 4}};
}

const Tensor& samples() {
  static const auto x = torch::linspace(-1, 1, 16).view({4, 4}).mul(2).cos();
  return x;
}

/// A training of which `step(i, model, optimizer)` makes all but construction.
using Step = std::function<void(int rank, int i, Model& model, torch::optim::Optimizer& optimizer)>;

std::vector<std::string> trained(const Division& division, const Make& make, const Step& step, int steps = 4) {
  return told(division.ranks, [&](ap::World& world) {
    Model model(world, std::make_shared<Net>(), division.options);
    const auto optimizer = make(model->parameters());
    model->attach(*optimizer);
    for (int i = 0; i < steps; ++i) step(world.rank(), i, model, *optimizer);
    model(samples());
  });
}

void train(Model& model, torch::optim::Optimizer& optimizer, int steps = 1) {
  optimizer.zero_grad();
  model(samples()).backward();
  for (int s = 0; s < steps; ++s) optimizer.step();
}

TEST_CASE("rank stepping more or less often: named with the counts") {
  for (const auto& division : divisions()) {
    for (const auto& optimizer : kinds()) {
      for (const int other : {2, 0}) {
        const auto messages =
            trained(division, optimizer.make, [other](int rank, int i, Model& model, auto& its_optimizer) {
              train(model, its_optimizer, i == 2 && rank == 0 ? other : 1);
            });
        for (const auto& message : messages) {
          CAPTURE(division.name, optimizer.name, other, message);
          CHECK(message.find(other == 2 ? "rank 0 has stepped 2 times" : "rank 0 has not stepped") !=
                std::string::npos);
          CHECK(message.find("rank 1 has stepped once") != std::string::npos);
        }
      }
    }
  }
}

struct Loop {
  const char* name;
  Step step;
};

/// One that has counters, one whose buffers tell, and two whose parameters do.
std::vector<Kind> few_kinds() {
  const auto all = kinds();
  return {all[1], all[2], all[3], all[5], all[7]};
}

/// What one process may do, too.
std::vector<Loop> legal_loops() {
  return {{"steps", [](int, int, Model& model, auto& optimizer) { train(model, optimizer); }},
          {"two steps", [](int, int i, Model& model, auto& optimizer) { train(model, optimizer, i % 3); }},
          {"accumulation",
           [](int, int i, Model& model, auto& optimizer) {
             model(samples()).backward();
             if (i % 2 == 0) return;
             optimizer.step();
             model->zero_grad();
           }},
          {"a schedule",
           [](int, int, Model& model, auto& optimizer) {
             train(model, optimizer);
             for (auto& group : optimizer.param_groups()) group.options().set_lr(group.options().get_lr() * 0.5);
           }},
          {"zeroing in place",
           [](int, int, Model& model, auto& optimizer) {
             model(samples()).backward();
             optimizer.step();
             optimizer.zero_grad(false);
           }},
          {"dropping by hand",
           [](int, int, Model& model, auto& optimizer) {
             for (auto& parameter : model->parameters()) parameter.mutable_grad() = Tensor();
             model(samples()).backward();
             optimizer.step();
           }},
          {"a closure",
           [](int, int, Model& model, auto& optimizer) {
             optimizer.step([&] {
               optimizer.zero_grad();
               const auto loss = model(samples());
               loss.backward();
               return loss;
             });
           }},
          {"other gradients",
           [](int, int, Model& model, auto& optimizer) {
             optimizer.zero_grad();
             model(samples()).backward();
             for (auto& parameter : model->owned_parameters()) {
               if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad().sign();
             }
             optimizer.step();
           }},
          {"clipped in place",
           [](int, int, Model& model, auto& optimizer) {
             optimizer.zero_grad();
             model(samples()).backward();
             model->clip_grad_norm_(1e-2);
             optimizer.step();
           }},
          {"clamped weights",
           [](int, int, Model& model, auto& optimizer) {
             train(model, optimizer);
             for (auto& parameter : model->owned_parameters()) parameter.data().clamp_(-0.3, 0.3);
           }},
          {"one gradient is dropped",
           [](int, int i, Model& model, auto& optimizer) {
             optimizer.zero_grad();
             model(samples()).backward();
             if (i < 3) model->module().layers.back()->weight.mutable_grad().reset();
             optimizer.step();
           }},
          {"most gradients are dropped", [](int, int i, Model& model, auto& optimizer) {
             optimizer.zero_grad();
             model(samples()).backward();
             for (const auto& item : model->named_parameters()) {
               if (i % 2 == 0 && item.key() != "first.weight") Tensor(item.value()).mutable_grad().reset();
             }
             optimizer.step();
           }}};
}

TEST_CASE("loops that all ranks run alike: are allowed") {
  const auto all = divisions();
  for (const auto& division : {all[0], all[2], all[4], all[5]}) {
    for (const auto& optimizer : few_kinds()) {
      for (const auto& loop : legal_loops()) {
        for (const auto& message : trained(division, optimizer.make, loop.step, 6)) {
          CAPTURE(division.name, optimizer.name, loop.name);
          CHECK(message == "");
        }
      }
    }
  }
}

TEST_CASE("rank dropping gradients or leaving out a step: is named") {
  const Division replicas = divisions().front(), stages{"stages", {.stages = 2, .microbatches = 2, .zero = 0}};
  for (const auto& optimizer : kinds()) {
    const auto dropping = trained(replicas, optimizer.make, [](int rank, int i, Model& model, auto& its_optimizer) {
      its_optimizer.zero_grad();
      model(samples()).backward();
      for (auto& parameter : model->parameters()) {
        if (i == 1 && rank == 1) parameter.mutable_grad().reset();
      }
      its_optimizer.step();
    });
    const auto leaving_out = trained(stages, optimizer.make, [](int rank, int i, Model& model, auto& its_optimizer) {
      model->zero_grad();
      model(samples()).backward();
      if (i != 1 || rank == 0) its_optimizer.step();
    });
    for (const auto* messages : {&dropping, &leaving_out}) {
      for (const auto& message : *messages) {
        CAPTURE(optimizer.name, message);
        CHECK(message.find("rank 0 has stepped") != std::string::npos);
        CHECK(message.find("rank 1 has not stepped") != std::string::npos);
      }
    }
  }
}

TEST_CASE("several optimizers: steps are counted separately") {
  for (const bool extra : {false, true}) {
    const auto messages = told(2, [&](ap::World& world) {
      Model model(world, std::make_shared<Net>(), {.stages = 2, .microbatches = 2, .zero = 0});
      torch::optim::Adam body(model->module().layers.front()->parameters(), 0.01);
      torch::optim::SGD head(model->module().layers.back()->parameters(), 0.1);
      model->attach(body);
      model->attach(head);
      for (int i = 0; i < 4; ++i) {
        body.zero_grad();
        head.zero_grad();
        model(samples()).backward();
        body.step();
        if (i % 2 == 0) head.step();
      }
      if (extra) {  // of parameters that one stage has alone: nobody else counts
        model(samples()).backward();
        body.step();
        body.step();
      }
      model(samples());
    });
    for (const auto& message : messages) CHECK(message == "");
  }
}

TEST_CASE("load between steps: does not count as a step") {
  for (const auto& optimizer : few_kinds()) {
    const TempFolder folder;
    const auto messages = told(2, [&](ap::World& world) {
      Model model(world, std::make_shared<Net>(), {.stages = 2, .microbatches = 2, .zero = 0});
      const auto own = optimizer.make(model->parameters());
      model->attach(*own);
      train(model, *own);
      model->save(folder / "saved", *own);
      for (int i = 0; i < 3; ++i) train(model, *own);
      model->load(folder / "saved", *own);
      for (int i = 0; i < 3; ++i) train(model, *own);
      model(samples());
    });
    for (const auto& message : messages) {
      CAPTURE(optimizer.name);
      CHECK(message == "");
    }
  }
}

}  // namespace steps_counted_test
