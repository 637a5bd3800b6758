#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <temp_folder.hpp>

#include <memory>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "matrix.hpp"
#include "tied_net.hpp"

// Optimizers and their parameters in host memory: each time against one process, or against the same plan without. Here the
// devices are CPUs, so that both memories are one; what differs is that handles refer to other memory than stages compute with.
namespace offload_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::check_close;
using torch::Tensor;
using namespace tied_net;

TEST_CASE("offloaded optimizers equal one process: models, schedules, ZeRO, recompute, precision, accumulation, clipping") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  using numerics::MatrixFactors;
  const auto rows = MatrixFactors::pairwise();
  constexpr std::size_t kEvery = 3;
  for (std::size_t i = 1; i < rows.size(); i += kEvery) {
    auto setup = MatrixFactors::setup(rows[i]);
    setup.options.offload = "optimizer";
    INFO(MatrixFactors::describe(rows[i]) << ", offloaded");
    const auto body = numerics::matrix_models()[static_cast<std::size_t>(rows[i][MatrixFactors::kModel])].prepare(setup, 17);
    CHECK_NOTHROW(ap::loopback::run(MatrixFactors::ranks(rows[i]), body));
  }
}

ap::Options options_for(std::vector<int> replicas, int zero, const std::string& offload, const std::string& schedule = "1f1b") {
  return {.stages = static_cast<int>(replicas.size()), .microbatches = 2, .zero = zero, .offload = offload,
          .replicas = replicas, .schedule = schedule};
}

torch::optim::AdamW adamw(const std::vector<Tensor>& parameters) {
  return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(0.01).eps(1e-3));
}

void require(bool holds, const std::string& what) {
  if (!holds) throw numerics::Failure(what);
}

TEST_CASE("a checkpoint goes on between plans that offload and plans that do not") {
  const DoublePrecision guard;
  const std::vector<ap::Options> plans{options_for({1}, 0, "optimizer"), options_for({2}, 0, "optimizer"),
                                       options_for({2, 1}, 1, "optimizer"), options_for({2}, 3, "optimizer"),
                                       options_for({1, 1}, 0, "none")};
  for (std::size_t from = 0; from < plans.size(); ++from) {
    const TempFolder folder;
    check_ranks(ranks_of(plans[from]), [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(), plans[from]);
      auto optimizer = adamw(model->parameters());
      model->attach(optimizer);
      train_step(world, model, optimizer, 0);
      model->save(folder / "saved", optimizer);
    });
    for (std::size_t to = 0; to < plans.size(); ++to) {
      INFO("from plan " << from << " to plan " << to);
      const auto continued = made();
      auto reference = adamw(continued->parameters());
      for (int step = 0; step < 3; ++step) {
        const auto samples = ranks_of(plans[step == 0 ? from : to]) * kSamples;
        reference.zero_grad();
        continued->forward(ids(step, 0, samples), labels(step, 0, samples)).backward();
        torch::nn::utils::clip_grad_norm_(continued->parameters(), 0.5);
        reference.step();
      }
      check_ranks(ranks_of(plans[to]), [&](ap::World& world) {
        ap::AutoParallel<Net> model(world, made(), plans[to]);
        auto optimizer = adamw(model->parameters());
        model->attach(optimizer);
        model->load(folder / "saved", optimizer);
        for (int step = 1; step < 3; ++step) train_step(world, model, optimizer, step);
        check_state(world, model, numerics::copies_of(continued->named_parameters()), "continued");
      });
    }
  }
}

TEST_CASE("without shares handles keep their sizes, with them they and the state are flat") {
  const DoublePrecision guard;
  for (const int zero : {0, 1, 2, 3}) {
    INFO("zero " << zero);
    check_ranks(2, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(), options_for({2}, zero, "optimizer"));
      auto optimizer = adamw(model->parameters());
      model->attach(optimizer);
      train_step(world, model, optimizer, 0);
      require(model->plan().offload == ap::Offload::kOptimizer, "nothing is offloaded");
      for (const auto& parameter : model->parameters()) {
        const auto shard = model->shard(parameter);
        require(shard.whole == (zero == 0), "a parameter is whole that should be in shares, or the other way round");
        require(shard.end - shard.begin == parameter.numel(), "shard() is not what the handle has");
        require(zero > 0 || parameter.sizes() == at::IntArrayRef(shard.sizes), "a whole parameter has other sizes");
        const auto& state = static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
        require(state.exp_avg().sizes() == parameter.sizes(), "state of another size than the handle");
        require(parameter.grad().sizes() == parameter.sizes(), "a gradient of another size than the handle");
      }
    });
  }
}

TEST_CASE("frozen parameters, gradients from before, evaluation right before a step, results without a loss") {
  const DoublePrecision guard;
  for (const int zero : {0, 2, 3}) {
    const int ranks = 2;
    const auto net = made();
    torch::optim::SGD expected(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    net->b->weight.mutable_grad() = torch::ones_like(net->b->weight);
    std::vector<numerics::Snapshot> want;
    std::vector<Tensor> evaluated;
    const auto freeze = [](Net& each, bool on) { each.a->weight.set_requires_grad(!on); };
    for (int step = 0; step < 4; ++step) {
      freeze(*net, step % 2 == 1);
      if (step > 0) expected.zero_grad();
      net->forward(ids(step, 0, ranks * kSamples), labels(step, 0, ranks * kSamples)).backward();
      {
        const torch::NoGradGuard no_grad;
        evaluated.push_back(net->forward(ids(5, 0, ranks * kSamples), labels(5, 0, ranks * kSamples)));
      }
      expected.step();
      want.push_back(numerics::copies_of(net->named_parameters()));
    }
    INFO("zero " << zero);
    check_ranks(ranks, [&](ap::World& world) {
      const auto own = made();
      own->b->weight.mutable_grad() = torch::ones_like(own->b->weight);
      ap::AutoParallel<Net> model(world, own, options_for({2}, zero, "optimizer"));
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      model->attach(optimizer);
      const auto begin = world.rank() * kSamples;
      for (int step = 0; step < 4; ++step) {
        const auto at = static_cast<std::size_t>(step);
        freeze(model->module(), step % 2 == 1);
        if (step > 0) optimizer.zero_grad();
        model(ids(step, begin, begin + kSamples), labels(step, begin, begin + kSamples)).backward();
        {
          const torch::NoGradGuard no_grad;
          check_close(model(ids(5, begin, begin + kSamples), labels(5, begin, begin + kSamples)), evaluated[at], kTolerance,
                      "evaluation");
        }
        optimizer.step();
        check_state(world, model, want[at], "step " + std::to_string(step));
      }
    });
  }
}

TEST_CASE("fused optimizers, and norms of layers over shares") {
  const DoublePrecision guard;
  for (const int zero : {0, 1}) {
    const int ranks = 2;
    const auto net = made();
    ap::optim::LAMB expected(net->parameters(), ap::optim::LAMBOptions(0.01).eps(1e-3));
    for (int step = 0; step < 3; ++step) {
      expected.zero_grad();
      net->forward(ids(step, 0, ranks * kSamples), labels(step, 0, ranks * kSamples)).backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
      expected.step();
    }
    INFO("zero " << zero);
    check_ranks(ranks, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(), options_for({2}, zero, "optimizer"));
      ap::optim::LAMB optimizer(model->parameters(), ap::optim::LAMBOptions(0.01).eps(1e-3));
      model->attach(optimizer);
      for (int step = 0; step < 3; ++step) train_step(world, model, optimizer, step);
      check_state(world, model, numerics::copies_of(net->named_parameters()), "at the end");
    });
  }
}

/// Parameters after three steps in 32 bits or less, of one rank.
numerics::Snapshot trained(const std::string& precision, const std::string& offload, std::vector<int> replicas,
                           double& scale) {
  numerics::Snapshot out;
  auto options = options_for(replicas, 0, offload);
  options.precision = precision;
  check_ranks(ranks_of(options), [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made(), options);
    auto optimizer = adamw(model->parameters());
    model->attach(optimizer);
    for (int step = 0; step < 3; ++step) train_step(world, model, optimizer, step);
    const auto state = model->gather_state();
    if (world.rank() == 0) out = numerics::copies_of(state);
    if (world.rank() == 0) scale = model->stats().loss_scale;
  });
  return out;
}

TEST_CASE("offloading changes no bit, in low precision neither, and the loss scale goes on") {
  for (const std::string precision : {"module", "bf16", "fp16"}) {
    for (const auto& replicas : std::vector<std::vector<int>>{{2}, {1, 1}}) {
      INFO(precision << ", " << replicas.size() << " stages");
      double scale = 0, offloaded_scale = 0;
      const auto plain = trained(precision, "none", replicas, scale);
      const auto offloaded = trained(precision, "optimizer", replicas, offloaded_scale);
      REQUIRE(plain.size() == offloaded.size());
      for (std::size_t i = 0; i < plain.size(); ++i) CHECK(torch::equal(plain[i].second, offloaded[i].second));
      CHECK(scale == offloaded_scale);
    }
  }
}

TEST_CASE("no plan offloads by itself where memory is one, or without an optimizer; asked for without one, it is refused") {
  const DoublePrecision guard;
  check_ranks(2, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made(), options_for({2}, -1, "auto"));
    auto optimizer = adamw(model->parameters());
    model->attach(optimizer);
    train_step(world, model, optimizer, 0);
    require(model->plan().offload == ap::Offload::kNone, "the optimizer is offloaded for nothing");
  });
  std::string refused;
  try {
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(), options_for({2}, 0, "optimizer"));
      const auto begin = world.rank() * kSamples;
      static_cast<void>(model(ids(0, begin, begin + kSamples), labels(0, begin, begin + kSamples)));
    });
  } catch (const ap::InvalidArgument& error) {
    refused = error.what();
  }
  CHECK_THAT(refused, Catch::Contains("offload = optimizer") && Catch::Contains("attach"));
}

}  // namespace offload_test
