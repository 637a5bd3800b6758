#include <ATen/autocast_mode.h>
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
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "matrix.hpp"
#include "tied_net.hpp"

// Optimizers and their parameters in host memory: each time against one process, or against the same plan without. Here
// the devices are CPUs, so that both memories are one; what differs is that handles refer to other memory than stages
// compute with.
namespace offload_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::check_close;
using torch::Tensor;
using namespace tied_net;

TEST_CASE("offloaded optimizer: pairwise matrix equals one process") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  using numerics::MatrixFactors;
  const auto rows = MatrixFactors::pairwise();
  constexpr std::size_t kEvery = 3;
  for (std::size_t i = 1; i < rows.size(); i += kEvery) {
    auto setup = MatrixFactors::setup(rows[i]);
    setup.options.offload = ap::Offload::kOptimizer;
    INFO(MatrixFactors::describe(rows[i]) << ", offloaded");
    const auto body =
        numerics::matrix_models()[static_cast<std::size_t>(rows[i][MatrixFactors::kModel])].prepare(setup, 17);
    CHECK_NOTHROW(ap::loopback::run(MatrixFactors::ranks(rows[i]), body));
  }
}

ap::Options options_for(std::vector<int> replicas, int zero, std::optional<ap::Offload> offload,
                        ap::ScheduleKind schedule = ap::ScheduleKind::kOneFOneB) {
  return {.stages = static_cast<int>(replicas.size()),
          .microbatches = 2,
          .zero = zero,
          .offload = offload,
          .replicas = replicas,
          .schedule = schedule};
}

torch::optim::AdamW adamw(const std::vector<Tensor>& parameters) {
  return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(0.01).eps(1e-3));
}

void require(bool holds, const std::string& what) {
  if (!holds) throw numerics::Failure(what);
}

TEST_CASE("offload checkpoint: loads with and without offload") {
  const DoublePrecision guard;
  const std::vector<ap::Options> plans{
      options_for({1}, 0, ap::Offload::kOptimizer), options_for({2}, 0, ap::Offload::kOptimizer),
      options_for({2, 1}, 1, ap::Offload::kOptimizer), options_for({2}, 3, ap::Offload::kOptimizer),
      options_for({1, 1}, 0, ap::Offload::kNone)};
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

TEST_CASE("offloaded parameters: flat under ZeRO, else sizes unchanged") {
  const DoublePrecision guard;
  for (const int zero : {0, 1, 2, 3}) {
    INFO("zero " << zero);
    check_ranks(2, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(), options_for({2}, zero, ap::Offload::kOptimizer));
      auto optimizer = adamw(model->parameters());
      model->attach(optimizer);
      train_step(world, model, optimizer, 0);
      require(model->plan().offload == ap::Offload::kOptimizer, "nothing is offloaded");
      for (const auto& parameter : model->parameters()) {
        const auto shard = model->shard(parameter);
        require(shard.whole == (zero == 0), "a parameter is whole that should be in shards, or the other way round");
        require(shard.end - shard.begin == parameter.numel(), "shard() is not what the handle has");
        require(zero > 0 || parameter.sizes() == at::IntArrayRef(shard.sizes), "a whole parameter has other sizes");
        const auto& state =
            static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
        require(state.exp_avg().sizes() == parameter.sizes(), "state of another size than the handle");
        require(parameter.grad().sizes() == parameter.sizes(), "a gradient of another size than the handle");
      }
    });
  }
}

TEST_CASE("offload: frozen weights, old gradients, evaluation are exact") {
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
      ap::AutoParallel<Net> model(world, own, options_for({2}, zero, ap::Offload::kOptimizer));
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
          check_close(model(ids(5, begin, begin + kSamples), labels(5, begin, begin + kSamples)), evaluated[at],
                      kTolerance, "evaluation");
        }
        optimizer.step();
        check_state(world, model, want[at], "step " + std::to_string(step));
      }
    });
  }
}

TEST_CASE("offload: fused optimizers and LAMB norms equal one process") {
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
      ap::AutoParallel<Net> model(world, made(), options_for({2}, zero, ap::Offload::kOptimizer));
      ap::optim::LAMB optimizer(model->parameters(), ap::optim::LAMBOptions(0.01).eps(1e-3));
      model->attach(optimizer);
      for (int step = 0; step < 3; ++step) train_step(world, model, optimizer, step);
      check_state(world, model, numerics::copies_of(net->named_parameters()), "at the end");
    });
  }
}

/// Of three steps in 32 bits or less, as one rank sees it at their end.
struct Trained {
  numerics::Snapshot state;
  double scale = 0;  ///< of the loss
};
Trained trained(const ap::Options& options, bool accumulates = false, const std::string& from = {},
                const std::string& to = {}) {
  Trained out;
  check_ranks(ranks_of(options), [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made(), options);
    auto optimizer = adamw(model->parameters());
    model->attach(optimizer);
    if (!from.empty()) model->load(from, optimizer);
    for (int step = 0; step < 3; ++step) {
      if (accumulates) {
        const auto guard = model->no_sync();
        const auto begin = world.rank() * kSamples;
        model(ids(step + 5, begin, begin + kSamples), labels(step + 5, begin, begin + kSamples)).backward();
      }
      train_step(world, model, optimizer, step);
    }
    for (const auto& parameter : model->owned_parameters()) {
      require(parameter.scalar_type() == torch::kFloat, "an owner is not in 32 bits");
    }
    if (!to.empty()) model->save(to, optimizer);
    const auto state = model->gather_state();
    if (world.rank() == 0) out = {numerics::copies_of(state), model->stats().loss_scale};
  });
  return out;
}

void check_same(const Trained& plain, const Trained& offloaded) {
  REQUIRE(plain.state.size() == offloaded.state.size());
  for (std::size_t i = 0; i < plain.state.size(); ++i)
    CHECK(torch::equal(plain.state[i].second, offloaded.state[i].second));
  CHECK(plain.scale == offloaded.scale);
}

TEST_CASE("offload: changes no bit in any precision, loss scale goes on") {
  struct Way {
    std::vector<int> replicas;
    int zero = 0;
    ap::ScheduleKind schedule = ap::ScheduleKind::kOneFOneB;
    ap::RecomputeOption recompute = ap::Recompute::kNever;
    bool accumulates = false;
  };
  const std::vector<Way> ways{{{2}},
                              {{1, 1}, 0, ap::ScheduleKind::kZbH1},
                              {{2}, 1, ap::ScheduleKind::kGPipe, ap::Recompute::kAlways, true},
                              {{2, 1}, 2, ap::ScheduleKind::kOneFOneB, ap::Recompute::kNever, true},
                              {{2, 2}, 3, ap::ScheduleKind::kZbH1, ap::Recompute::kAlways},
                              {{2}, 3, ap::ScheduleKind::kOneFOneB, ap::Recompute::kNever, true}};
  for (const ap::Precision precision : {ap::Precision::kModule, ap::Precision::kBf16, ap::Precision::kFp16}) {
    for (const auto& way : ways) {
      INFO(ap::option_text(precision) << ", " << way.replicas.size() << " stages, zero " << way.zero << ", "
                                      << ap::option_text(way.schedule) << ", recompute "
                                      << ap::option_text(way.recompute) << (way.accumulates ? ", accumulates" : ""));
      auto options = options_for(way.replicas, way.zero, ap::Offload::kNone, way.schedule);
      options.precision = precision;
      options.recompute = way.recompute;
      const auto plain = trained(options, way.accumulates);
      options.offload = ap::Offload::kOptimizer;
      check_same(plain, trained(options, way.accumulates));
    }
  }
}

TEST_CASE("16-bit checkpoint: offload may change, bits do not") {
  for (const int zero : {0, 3}) {
    for (const ap::Precision precision : {ap::Precision::kBf16, ap::Precision::kFp16}) {
      INFO(ap::option_text(precision) << ", zero " << zero);
      auto plain = options_for({2}, zero, ap::Offload::kNone),
           offloading = options_for({2}, zero, ap::Offload::kOptimizer);
      plain.precision = offloading.precision = precision;
      const TempFolder folder;
      static_cast<void>(trained(plain, false, {}, folder / "plain"));
      static_cast<void>(trained(offloading, false, {}, folder / "offloaded"));
      check_same(trained(plain, false, folder / "offloaded"), trained(offloading, false, folder / "plain"));
    }
  }
}

TEST_CASE("offloaded parameter: a mode with another dtype is refused") {
  std::string refused;
  try {
    ap::loopback::run(1, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(), options_for({1}, 0, ap::Offload::kOptimizer));
      auto optimizer = adamw(model->parameters());
      model->attach(optimizer);
      {
        at::autocast::set_autocast_enabled(at::kCPU, true);
        at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
        model(ids(0, 0, kSamples), labels(0, 0, kSamples)).backward();
        at::autocast::set_autocast_enabled(at::kCPU, false);
      }
      model->eval();
      const torch::NoGradGuard no_grad;
      static_cast<void>(model(ids(0, 0, kSamples), labels(0, 0, kSamples)));
    });
  } catch (const ap::InvalidArgument& error) {
    refused = error.what();
  }
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  CHECK_THAT(refused, Catch::Contains("on the device as BFloat16 only (offload)") && Catch::Contains("offload = none"));
}

/// Large layers; what is read besides: nothing, by a running average outside the stages, or a table as the last layer.
struct LargeNet : nets::Linears {
  enum class Reads { kOnce, kAveraged, kTied };
  explicit LargeNet(Reads reads_like) : Linears(kWidth, nets::repeated("layer", kLayers, kWidth)), reads(reads_like) {
    table = register_parameter("table", torch::randn({kWidth, kWidth}) * 0.05);
    if (reads == Reads::kAveraged) average = register_buffer("average", torch::zeros({kWidth, kWidth}));
  }
  Tensor forward(const Tensor& x, const Tensor& y) {
    auto h = torch::tanh(Linears::forward(x));
    if (reads == Reads::kAveraged) average.mul_(0.5).add_(table.detach(), 0.5);
    if (reads == Reads::kTied) h = h + F::embedding(y, table);
    return F::cross_entropy(F::linear(h, table), y);
  }
  static constexpr int64_t kWidth = 256;
  static constexpr int kLayers = 8;
  Reads reads;
  Tensor table, average;
};

/// (predicted - held) / held of each rank.
std::vector<double> errors_of(const ap::Options& options, LargeNet::Reads reads) {
  std::vector<double> errors(static_cast<std::size_t>(ranks_of(options)));
  check_ranks(ranks_of(options), [&](ap::World& world) {
    auto& ledger = RankMemory::install().open();
    const auto x = torch::randn({2, LargeNet::kWidth});
    const auto y = torch::tensor({1L, 2L});
    const RankMemory::Scope scope(ledger);
    ap::AutoParallel<LargeNet> model(
        world,
        [&] {
          const std::lock_guard lock(numerics::generator_mutex());
          torch::manual_seed(5);
          return LargeNet(reads);
        },
        options);
    auto optimizer = adamw(model->parameters());
    model->attach(optimizer);
    model->prepare(x, y);
    ledger.forget_peak();
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model(x, y).backward();
      optimizer.step();
    }
    const auto predicted = static_cast<double>(model->plan().stages.front().peak_memory.value());
    errors[static_cast<std::size_t>(world.rank())] = predicted / static_cast<double>(ledger.peak()) - 1;
  });
  return errors;
}

TEST_CASE("offload memory: as predicted, 16-bit copies on the device") {
  constexpr double kWithin = 0.05;
  // What no plan may lack, it may have too much: units of shares are counted as large as they may be.
  constexpr double kUnits = 0.1;
  for (const auto reads : {LargeNet::Reads::kOnce, LargeNet::Reads::kAveraged, LargeNet::Reads::kTied}) {
    for (const ap::Precision precision : {ap::Precision::kModule, ap::Precision::kBf16}) {
      for (const int zero : {0, 1, 2, 3}) {
        INFO(ap::option_text(precision) << ", zero " << zero << ", reads " << static_cast<int>(reads));
        auto options = options_for({2}, zero, ap::Offload::kOptimizer);
        options.precision = precision;
        for (const double error : errors_of(options, reads)) {
          CHECK(error > -kWithin);
          if (zero == 0)
            CHECK(error < kWithin);
          else if (zero < 3 && reads != LargeNet::Reads::kTied)
            CHECK(error < kUnits);
        }
      }
    }
  }
}

TEST_CASE("parameter read outside the stages: is not offloaded, trains") {
  const DoublePrecision guard;
  for (const int zero : {0, 1, 3}) {
    INFO("zero " << zero);
    const auto made_large = [] { return nets::made<LargeNet>(5, LargeNet::Reads::kAveraged); };
    const auto x = torch::randn({4, LargeNet::kWidth});
    const auto y = torch::tensor({1L, 2L, 3L, 0L});
    const auto net = made_large();
    auto expected = adamw(net->parameters());
    for (int step = 0; step < 2; ++step) {
      expected.zero_grad();
      net->forward(x, y).backward();
      expected.step();
    }
    check_ranks(2, [&](ap::World& world) {
      ap::AutoParallel<LargeNet> model(world, made_large(), options_for({2}, zero, ap::Offload::kOptimizer));
      auto optimizer = adamw(model->parameters());
      model->attach(optimizer);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        model(x.narrow(0, 2 * world.rank(), 2), y.narrow(0, 2 * world.rank(), 2)).backward();
        optimizer.step();
      }
      auto want = numerics::copies_of(net->named_parameters());
      want.emplace_back("average", net->average);
      check_state(world, model, want, "at the end");
    });
  }
}

TEST_CASE("offload on the CPU: not automatic, refused if unattached") {
  const DoublePrecision guard;
  check_ranks(2, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made(), options_for({2}, -1, std::nullopt));
    auto optimizer = adamw(model->parameters());
    model->attach(optimizer);
    train_step(world, model, optimizer, 0);
    require(model->plan().offload == ap::Offload::kNone, "the optimizer is offloaded for nothing");
  });
  std::string refused;
  try {
    ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(), options_for({2}, 0, ap::Offload::kOptimizer));
      const auto begin = world.rank() * kSamples;
      static_cast<void>(model(ids(0, begin, begin + kSamples), labels(0, begin, begin + kSamples)));
    });
  } catch (const ap::InvalidArgument& error) {
    refused = error.what();
  }
  CHECK_THAT(refused, Catch::Contains("offload = optimizer") && Catch::Contains("attach"));
}

}  // namespace offload_test
