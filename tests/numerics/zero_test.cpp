#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <temp_folder.hpp>
#include <trace_rows.hpp>

#include <memory>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"
#include "tied_net.hpp"

// What optimizers, files and users see of parameters that are held in shards (ZeRO), each time against one process.
namespace zero_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::check_close;
using torch::Tensor;
using namespace tied_net;

/// Two groups with options of their own; `a` is frozen in the first step and learns later.
std::unique_ptr<torch::optim::Optimizer> optimizer_of(const std::string& kind, const std::vector<Tensor>& parameters) {
  std::vector<torch::optim::OptimizerParamGroup> groups{{{parameters.begin(), parameters.begin() + 2}},
                                                        {{parameters.begin() + 2, parameters.end()}}};
  const auto finish = [&](auto optimizer, double rate) -> std::unique_ptr<torch::optim::Optimizer> {
    optimizer->param_groups()[1].options().set_lr(rate);
    return optimizer;
  };
  if (kind == "adagrad") {
    return finish(std::make_unique<torch::optim::Adagrad>(
                      groups, torch::optim::AdagradOptions(0.02).initial_accumulator_value(0.1)),
                  0.01);
  }
  if (kind == "sgd")
    return finish(std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1).momentum(0.9)), 0.05);
  if (kind == "rmsprop") {
    return finish(
        std::make_unique<torch::optim::RMSprop>(groups, torch::optim::RMSpropOptions(0.01).eps(1e-3).centered(true)),
        0.02);
  }
  if (kind == "adam")
    return finish(std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(0.01).eps(1e-3).amsgrad(true)),
                  0.02);
  return finish(std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(0.01).eps(1e-3)), 0.02);
}

/// One process, `ranks` ranks' samples: the state after each of `steps` steps.
std::vector<numerics::Snapshot> reference(const std::string& kind, int ranks, int steps) {
  const auto net = made();
  const auto optimizer = optimizer_of(kind, net->parameters());
  std::vector<numerics::Snapshot> out;
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    net->forward(ids(step, 0, ranks * kSamples), labels(step, 0, ranks * kSamples)).backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
    optimizer->step();
    out.push_back(numerics::copies_of(net->named_parameters()));
  }
  return out;
}

ap::Options options_for(std::vector<int> replicas, int zero, ap::ScheduleKind schedule = ap::ScheduleKind::kOneFOneB) {
  return {.stages = static_cast<int>(replicas.size()),
          .microbatches = 2,
          .zero = zero,
          .replicas = replicas,
          .schedule = schedule};
}

const std::vector<ap::Options> kPlans{options_for({2}, 1),    options_for({3}, 2),
                                      options_for({2}, 3),    options_for({2, 1}, 1),
                                      options_for({1, 2}, 2), options_for({2, 2}, 3, ap::ScheduleKind::kZbH1)};

TEST_CASE("ZeRO: any torch::optim optimizer steps on shards") {
  const DoublePrecision guard;
  for (const std::string kind : {"sgd", "adam", "adamw", "rmsprop", "adagrad"}) {
    for (std::size_t p = 0; p < kPlans.size(); ++p) {
      const auto& options = kPlans[p];
      const int ranks = ranks_of(options);
      const auto want = reference(kind, ranks, 2);
      INFO(kind << ", plan " << p);
      check_ranks(ranks, [&](ap::World& world) {
        const auto train = [&](auto& model, bool attach_late) {
          auto optimizer = optimizer_of(kind, model->parameters());
          model->attach(*optimizer);
          if (attach_late) {  // another object on the shares that are there
            const auto begin = world.rank() * kSamples;
            model->prepare(ids(0, begin, begin + kSamples), labels(0, begin, begin + kSamples));
            optimizer = optimizer_of(kind, model->parameters());
            model->attach(*optimizer);
          }
          for (int step = 0; step < 2; ++step) {
            train_step(world, model, *optimizer, step);
            check_state(world, model, want[static_cast<std::size_t>(step)], "step " + std::to_string(step));
          }
        };
        ap::AutoParallel<Net> from_module(world, made(), options);
        train(from_module, world.size() > 0 && p % 2 == 1);
        ap::AutoParallel<Net> from_callable(
            world, [] { return made(); }, options);
        train(from_callable, false);
      });
    }
  }
}

TEST_CASE("checkpoint: any ZeRO level loads under any other") {
  const DoublePrecision guard;
  const std::vector<ap::Options> plans{options_for({1}, 0), options_for({2}, 1), options_for({3}, 2),
                                       options_for({2, 1}, 3), options_for({2}, 0)};
  for (std::size_t from = 0; from < plans.size(); ++from) {
    const TempFolder folder;
    check_ranks(ranks_of(plans[from]), [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(), plans[from]);
      const auto optimizer = optimizer_of("adamw", model->parameters());
      model->attach(*optimizer);
      train_step(world, model, *optimizer, 0);
      model->save(folder / "state", static_cast<torch::optim::AdamW&>(*optimizer));
    });
    for (std::size_t to = 0; to < plans.size(); ++to) {
      INFO("from plan " << from << " to plan " << to);
      const auto continued = made();
      const auto reference_optimizer = optimizer_of("adamw", continued->parameters());
      for (int step = 0; step < 2; ++step) {
        const auto samples = ranks_of(plans[step == 0 ? from : to]) * kSamples;
        reference_optimizer->zero_grad();
        continued->forward(ids(step, 0, samples), labels(step, 0, samples)).backward();
        torch::nn::utils::clip_grad_norm_(continued->parameters(), 0.5);
        reference_optimizer->step();
      }
      check_ranks(ranks_of(plans[to]), [&](ap::World& world) {
        ap::AutoParallel<Net> model(world, made(), plans[to]);
        const auto optimizer = optimizer_of("adamw", model->parameters());
        model->attach(*optimizer);
        model->load(folder / "state", static_cast<torch::optim::AdamW&>(*optimizer));
        train_step(world, model, *optimizer, 1);
        check_state(world, model, numerics::copies_of(continued->named_parameters()), "continued");
      });
    }
  }
}

TEST_CASE("ZeRO: each rank keeps its own state, sums count once") {
  const DoublePrecision guard;
  for (const int zero : {1, 2, 3}) {
    check_ranks(3, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(), options_for({3}, zero));
      torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.01).eps(1e-3));
      model->attach(optimizer);
      train_step(world, model, optimizer, 0);
      int64_t held = 0, all = 0;
      for (const auto& parameter : model->parameters()) {
        const auto shard = model->shard(parameter);
        if (shard.whole) throw numerics::Failure("a parameter is held whole");
        if (shard.end - shard.begin != parameter.numel()) throw numerics::Failure("shard() is not what the handle has");
        const auto& state =
            static_cast<torch::optim::AdamParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
        if (state.exp_avg().numel() != parameter.numel()) throw numerics::Failure("state of more than the share");
        held += parameter.numel();
        int64_t elements = 1;
        for (const auto size : shard.sizes) elements *= size;
        all += elements;
      }
      if (held > all / 3 + 64 * 16 || all != model->parameter_count()) throw numerics::Failure("shares are not even");
      std::vector<std::int64_t> total{held};
      world.all_reduce_sum(std::span(total), "test");
      if (total[0] != all) throw numerics::Failure("the shares are not all");
    });
  }
}

TEST_CASE("ZeRO: frozen parameters, mode switches equal one process") {
  const DoublePrecision guard;
  for (const int zero : {1, 2, 3}) {
    const int ranks = 2;
    const auto net = made();
    torch::optim::SGD expected(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    std::vector<numerics::Snapshot> want;
    Tensor evaluated;
    const auto freeze = [](Net& each, bool on) { each.a->weight.set_requires_grad(!on); };
    for (int step = 0; step < 4; ++step) {
      freeze(*net, step % 2 == 1);
      expected.zero_grad();
      net->forward(ids(step, 0, ranks * kSamples), labels(step, 0, ranks * kSamples)).backward();
      expected.step();
      want.push_back(numerics::copies_of(net->named_parameters()));
    }
    {
      const torch::NoGradGuard no_grad;
      evaluated = net->forward(ids(5, 0, ranks * kSamples), labels(5, 0, ranks * kSamples));
    }
    INFO("zero " << zero);
    check_ranks(ranks, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(), options_for({2}, zero));
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      model->attach(optimizer);
      const auto begin = world.rank() * kSamples;
      for (int step = 0; step < 4; ++step) {
        freeze(model->module(), step % 2 == 1);
        optimizer.zero_grad();
        model(ids(step, begin, begin + kSamples), labels(step, begin, begin + kSamples)).backward();
        optimizer.step();
        check_state(world, model, want[static_cast<std::size_t>(step)], "step " + std::to_string(step));
      }
      model->eval();
      const torch::NoGradGuard no_grad;
      check_close(model(ids(5, begin, begin + kSamples), labels(5, begin, begin + kSamples)), evaluated, kTolerance,
                  "evaluation");
    });
  }
}

TEST_CASE("no_sync: ZeRO 1 defers sums, ZeRO 2 and 3 sum into shards") {
  const DoublePrecision guard;
  constexpr int kRanks = 2, kCalls = 3;
  const auto net = made();
  for (int k = 0; k < kCalls; ++k) {
    net->forward(ids(k, 0, kRanks * kSamples), labels(k, 0, kRanks * kSamples)).backward();
  }
  for (const int zero : {0, 1, 2, 3}) {
    const TempFolder folder;
    auto options = options_for({kRanks}, zero);
    options.trace_file = folder / "trace.json";
    options.trace_every = 1;
    INFO("zero " << zero);
    check_ranks(kRanks, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(), options);
      const auto optimizer = optimizer_of("sgd", model->parameters());
      model->attach(*optimizer);
      const auto begin = world.rank() * kSamples;
      const auto call = [&](int k, bool sums) {
        model(ids(k, begin, begin + kSamples), labels(k, begin, begin + kSamples)).backward();
        world.barrier("the trace is written");
        const auto trace = trace_rows::latest_step_of(ap::read_text_file(folder / "trace.json"), world.rank());
        if ((trace.find("reduction") != std::string::npos) != sums)
          throw numerics::Failure("call " + std::to_string(k));
      };
      for (const bool explicitly : {false, true}) {
        optimizer->zero_grad();
        {
          const auto accumulates = model->no_sync();
          for (int k = 0; k + 1 < kCalls; ++k) call(k, zero >= 2);
          if (explicitly) call(kCalls - 1, zero >= 2);
        }
        if (explicitly)
          model->sync_gradients();
        else
          call(kCalls - 1, true);
        for (const auto& item : model->named_parameters()) {
          const auto want = numerics::held_part(net->named_parameters()[item.key()].grad(), model->shard(item.value()));
          check_close(item.value().grad(), want, kTolerance, "gradient of " + item.key());
        }
      }
    });
  }
}

TEST_CASE("ZeRO: optimizer with initial state is exact once attached") {
  const DoublePrecision guard;
  constexpr int kRanks = 2;
  const auto net = made();
  torch::optim::Adagrad expected(net->parameters(), torch::optim::AdagradOptions(0.05).initial_accumulator_value(0.1));
  for (int step = 0; step < 2; ++step) {
    expected.zero_grad();
    net->forward(ids(step, 0, kRanks * kSamples), labels(step, 0, kRanks * kSamples)).backward();
    expected.step();
  }
  for (const auto& replicas : std::vector<std::vector<int>>{{2}, {1, 1}}) {
    INFO(replicas.size() << " stages");
    check_ranks(kRanks, [&](ap::World& world) {
      ap::AutoParallel<Net> model(
          world, [] { return nets::seeded(11, [] { return Net(); }); }, options_for(replicas, 0));
      torch::optim::Adagrad optimizer(model->parameters(),
                                      torch::optim::AdagradOptions(0.05).initial_accumulator_value(0.1));
      const auto begin = world.rank() * kSamples;
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        model(ids(step, begin, begin + kSamples), labels(step, begin, begin + kSamples)).backward();
        if (step == 0) {
          std::string refused;
          try {
            optimizer.step();
          } catch (const ap::InvalidArgument& error) {
            refused = error.what();
          }
          if (refused.find("model->attach(optimizer)") == std::string::npos)
            throw numerics::Failure("not refused: " + refused);
          model->attach(optimizer);
        }
        optimizer.step();
      }
      check_state(world, model, numerics::copies_of(net->named_parameters()), "at the end");
    });
  }
}

template <class Attach>
std::string refusal(Attach attach) {
  try {
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(), options_for({2}, 1));
      attach(world, model);
    });
  } catch (const ap::InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("ZeRO: missing or unknown optimizer is refused by name") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const auto call = [](ap::World& world, auto& model) {
    const auto begin = world.rank() * kSamples;
    static_cast<void>(model(ids(0, begin, begin + kSamples), labels(0, begin, begin + kSamples)));
  };
  CHECK_THAT(refusal(call), Catch::Contains("ZeRO 1") && Catch::Contains("attach"));
  CHECK_THAT(refusal([&](ap::World& world, auto& model) {
               torch::optim::LBFGS optimizer(model->parameters(), torch::optim::LBFGSOptions(0.1));
               model->attach(optimizer);
               call(world, model);
             }),
             Catch::Contains("LBFGS"));
}

}  // namespace zero_test
