#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>
#include <says.hpp>
#include <temp_folder.hpp>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <autopar/autopar.hpp>
#include <autopar/io/file.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"
#include "loading_ways.hpp"

// `load` before the first call, and what the program does between the two, each time against one process.
namespace early_load_test {

namespace ap = autopar;
namespace fs = std::filesystem;
namespace nn = torch::nn;
using torch::Tensor;
using torch::optim::AdamWOptions;

constexpr double kTolerance = 1e-12;
constexpr int64_t kSamples = 2;  // of each rank

/// With a table, a buffer that forward reads, and linear layers that can be cut in slices.
struct Net : nn::Module {
  Net() {
    nets::register_all(*this, "table", table, "first", first, "second", second, "head", head);
    scale = register_buffer("scale", torch::ones({6}));
  }
  Tensor forward(const Tensor& ids) {
    const auto hidden = torch::tanh(second(torch::tanh(first(table(ids) * scale))));
    return head(hidden).pow(2).mean();
  }
  nn::Embedding table{nn::EmbeddingOptions(8, 6)};
  nn::Linear first{6, 16}, second{16, 6}, head{6, 4};
  Tensor scale;
};

std::shared_ptr<Net> made(uint64_t seed) { return nets::made<Net>(seed); }

Tensor ids(int step, int64_t begin, int64_t end) { return torch::arange(begin, end).mul(3).add(step).remainder(8); }

std::unique_ptr<torch::optim::AdamW> adamw(const std::vector<Tensor>& parameters, double rate = 0.1) {
  return std::make_unique<torch::optim::AdamW>(parameters, AdamWOptions(rate).eps(1e-3));
}

/// What a program does after its load: the same lines in one process.
struct Program {
  std::string name;
  std::function<void(Net&, torch::optim::AdamW&)> after_load = [](Net&, torch::optim::AdamW&) {};
  std::function<double(int)> rate{};  ///< of each step, if it has a schedule
};

AdamWOptions& options_of(torch::optim::AdamW& optimizer) {
  return static_cast<AdamWOptions&>(optimizer.param_groups()[0].options());
}

const std::vector<Program> kPrograms{
    {"nothing"},
    {"a schedule", [](Net&, torch::optim::AdamW&) {}, [](int step) { return step == 0 ? 1e-3 : 5e-4; }},
    {"hyper-parameters",
     [](Net&, torch::optim::AdamW& optimizer) {
       optimizer.param_groups()[0].options().set_lr(1e-4);
       options_of(optimizer).betas({0.5, 0.6}).weight_decay(0.3);
     }},
    {"a new head and a row",
     [](Net& net, torch::optim::AdamW&) {
       const torch::NoGradGuard no_grad;
       nn::init::constant_(net.head->weight, 0.25);
       net.head->bias.zero_();
       net.table->weight[1].fill_(0.5);
       net.table->weight.slice(0, 5, 7).mul_(2);
     }},
    {"in place of all kinds",
     [](Net& net, torch::optim::AdamW&) {
       net.first->weight.data().mul_(0.5);
       net.second->bias.data().add_(0.125);
       const torch::NoGradGuard no_grad;
       net.second->weight.copy_(net.first->weight.t());
       net.scale.mul_(1.5);
     }},
    {"from loaded rows",
     [](Net& net, torch::optim::AdamW&) {
       const torch::NoGradGuard no_grad;
       net.head->weight.copy_(net.table->weight.slice(0, 2, 6));
     }},
    {"random numbers",
     [](Net& net, torch::optim::AdamW&) {
       const std::lock_guard lock(numerics::generator_mutex());
       torch::manual_seed(11);
       nn::init::xavier_normal_(net.head->weight);
       net.apply([](nn::Module& part) {
         if (auto* linear = part.as<nn::LinearImpl>()) nn::init::uniform_(linear->bias, -0.5, 0.5);
       });
     }},
    {"other state", [](Net&, torch::optim::AdamW& optimizer) { optimizer.state().clear(); }},
};

using loading::Way;

/// Steps of one process, from step `first`.
template <class Forward>
void steps(torch::optim::AdamW& optimizer, const Program& program, int first, const Forward& forward) {
  for (int step = 0; step < 2; ++step) {
    if (program.rate) optimizer.param_groups()[0].options().set_lr(program.rate(step));
    optimizer.zero_grad();
    forward(first + step).backward();
    optimizer.step();
  }
}

/// A checkpoint after one step from `seed`, made by one rank, and the same in one process.
void make_checkpoint(const fs::path& folder, uint64_t seed, double rate = 0.1) {
  ap::loopback::run(1, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made(seed));
    const auto optimizer = adamw(model->parameters(), rate);
    options_of(*optimizer).betas({0.8, 0.9});
    model->attach(*optimizer);
    model(ids(0, 0, 8)).backward();
    optimizer->step();
    model->save(folder.string(), *optimizer);
  });
}

struct Plain {
  std::shared_ptr<Net> net;
  std::unique_ptr<torch::optim::AdamW> optimizer;
};

Plain plain_checkpoint(uint64_t seed, double rate = 0.1) {
  Plain plain{made(seed), nullptr};
  plain.optimizer = adamw(plain.net->parameters(), rate);
  options_of(*plain.optimizer).betas({0.8, 0.9});
  plain.net->forward(ids(0, 0, 8)).backward();
  plain.optimizer->step();
  return plain;
}

numerics::Snapshot state_of(const Net& net) {
  auto all = numerics::copies_of(net.named_parameters());
  for (const auto& item : net.named_buffers()) all.emplace_back(item.key(), item.value().detach().clone());
  return all;
}

using Model = ap::AutoParallel<Net>;
using Load = std::function<void(Model&, torch::optim::AdamW&, ap::World&)>;

void train_and_compare(ap::World& world, Model& model, const Load& load, const Program& program,
                       const numerics::Snapshot& want, const std::string& what) {
  const auto optimizer = adamw(model->parameters(), 0.7);
  model->attach(*optimizer);
  load(model, *optimizer, world);
  program.after_load(model->module(), *optimizer);
  const auto begin = world.rank() * kSamples;
  steps(*optimizer, program, 1, [&](int step) { return model(ids(step, begin, begin + kSamples)); });
  const auto state = model->gather_state();
  if (world.rank() != 0) return;
  for (const auto& item : state)
    numerics::check_close(item.value(), numerics::find(want, item.key()), kTolerance, what + ", " + item.key());
}

/// Under every kind of plan, of an existing module and of a recorded construction.
void check_programs(const std::vector<Program>& programs, const Load& load,
                    const std::function<Plain()>& loaded_in_one_process) {
  for (const auto& program : programs) {
    for (const auto& [name, options, ranks] : loading::ways()) {
      INFO(program.name << ", " << name);
      auto plain = loaded_in_one_process();
      program.after_load(*plain.net, *plain.optimizer);
      steps(*plain.optimizer, program, 1, [&](int step) { return plain.net->forward(ids(step, 0, ranks * kSamples)); });
      const auto want = state_of(*plain.net);
      ap::loopback::run(ranks, [&](ap::World& world) {
        Model existing(world, made(3), options);
        train_and_compare(world, existing, load, program, want, program.name + ", " + name + ", a module");
        Model recorded(
            world, [] { return made(3); }, options);
        train_and_compare(world, recorded, load, program, want, program.name + ", " + name + ", a callable");
      });
    }
  }
}

TEST_CASE("load before first call: later settings stay, any plan") {
  const DoublePrecision guard;
  const TempFolder folder;
  make_checkpoint(folder / "state", 1);
  check_programs(
      kPrograms,
      [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) { model->load(folder / "state", optimizer); },
      [] { return plain_checkpoint(1); });
}

TEST_CASE("loads before first call: add up, a failed one has no effect") {
  const DoublePrecision guard;
  const TempFolder folder;
  make_checkpoint(folder / "state", 1);
  make_checkpoint(folder / "weights", 2, 0.3);
  ap::write_text_file(folder / "damaged.safetensors", "no checkpoint, and longer than eight bytes");
  const auto load = [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
    check_says({"cannot load", "none"}, [&] { model->load(folder / "none", optimizer); });
    model->load(folder / "state", optimizer);
    check_says({"damaged.safetensors"}, [&] { model->load((folder / "damaged.safetensors").string(), optimizer); });
    const torch::NoGradGuard no_grad;
    model->module().head->bias.fill_(7);  // which the next load writes over
    model->load(folder / "weights");
  };
  check_programs({kPrograms[0], kPrograms[3], kPrograms[5]}, load, [] {
    auto plain = plain_checkpoint(1);
    const auto other = plain_checkpoint(2, 0.3);
    const torch::NoGradGuard no_grad;
    for (auto& item : plain.net->named_parameters()) item.value().copy_(other.net->named_parameters()[item.key()]);
    return plain;
  });
}

TEST_CASE("loads before first call: values read in between stay valid") {
  const DoublePrecision guard;
  const TempFolder folder;
  make_checkpoint(folder / "one", 1);
  make_checkpoint(folder / "two", 2, 0.3);
  Program program{"halves of two loads", [](Net&, torch::optim::AdamW&) {}};
  const auto load = [&](Model& model, torch::optim::AdamW& optimizer, ap::World&) {
    const torch::NoGradGuard no_grad;
    model->load(folder / "one", optimizer);
    const auto first = model->module().head->weight.clone();
    model->load(folder / "two", optimizer);
    model->module().head->weight.add_(first).div_(2);
  };
  check_programs({program}, load, [] {
    auto plain = plain_checkpoint(2, 0.3);
    const auto other = plain_checkpoint(1);
    const torch::NoGradGuard no_grad;
    plain.net->head->weight.add_(other.net->head->weight).div_(2);
    return plain;
  });
}

TEST_CASE("load before first call: folder may vanish, attach may follow") {
  const DoublePrecision guard;
  const TempFolder folder;
  make_checkpoint(folder / "good", 1);
  make_checkpoint(folder / "other", 2, 0.3);
  int count = 0;
  std::mutex mutex;
  const auto want = [&](int ranks) {
    auto plain = plain_checkpoint(1);
    steps(*plain.optimizer, kPrograms[0], 1,
          [&](int step) { return plain.net->forward(ids(step, 0, ranks * kSamples)); });
    return state_of(*plain.net);
  };
  for (const auto& [name, options, ranks] : loading::ways()) {
    INFO(name);
    const auto place = folder / ("run" + std::to_string(count++));
    const auto wanted = want(ranks);
    ap::loopback::run(ranks, [&](ap::World& world) {
      for (const bool recorded : {false, true}) {
        if (world.rank() == 0) {
          fs::remove_all(place);
          fs::copy(folder / "good", place);
        }
        world.barrier();
        const auto module = recorded ? nullptr : made(3);
        auto model = recorded ? Model(
                                    world, [] { return made(3); }, options)
                              : Model(world, module, options);
        const auto optimizer = adamw(model->parameters(), 0.7);
        model->load(place.string(), *optimizer);
        if (optimizer->param_groups()[0].options().get_lr() != 0.1) throw numerics::Failure("the rate came late");
        world.barrier();
        if (world.rank() == 0) {
          fs::remove_all(place);
          if (recorded) fs::copy(folder / "other", place);
        }
        world.barrier();
        model->attach(*optimizer);
        const auto begin = world.rank() * kSamples;
        steps(*optimizer, kPrograms[0], 1, [&](int step) { return model(ids(step, begin, begin + kSamples)); });
        const auto state = model->gather_state();
        if (world.rank() != 0) continue;
        for (const auto& item : state)
          numerics::check_close(item.value(), numerics::find(wanted, item.key()), kTolerance, item.key());
      }
    });
  }
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<Tensor>&)>;

const std::vector<std::pair<std::string, MakeOptimizer>> kOptimizers{
    {"SGD",
     [](const auto& parameters) {
       return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
     }},
    {"plain SGD",
     [](const auto& parameters) {
       return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1));
     }},
    {"Adam",
     [](const auto& parameters) {
       return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.05).eps(1e-3).amsgrad(true));
     }},
    {"RMSprop",
     [](const auto& parameters) {
       return std::make_unique<torch::optim::RMSprop>(parameters,
                                                      torch::optim::RMSpropOptions(0.01).eps(1e-3).centered(true));
     }},
    {"Adagrad", [](const auto& parameters) {
       return std::make_unique<torch::optim::Adagrad>(
           parameters, torch::optim::AdagradOptions(0.05).initial_accumulator_value(0.1));
     }}};

TEST_CASE("load before first call: sets every optimizer's state") {
  const DoublePrecision guard;
  const TempFolder folder;
  const auto step = [](torch::optim::Optimizer& optimizer, const auto& forward) {
    optimizer.zero_grad();
    forward().backward();
    optimizer.step();
  };
  for (const auto& [kind, make] : kOptimizers) {
    const auto plain = made(1);
    const auto its = make(plain->parameters());
    step(*its, [&] { return plain->forward(ids(0, 0, 8)); });
    ap::loopback::run(1, [&, &make = make, &kind = kind](ap::World& world) {
      ap::AutoParallel<Net> model(world, made(1));
      const auto optimizer = make(model->parameters());
      model->attach(*optimizer);
      step(*optimizer, [&] { return model(ids(0, 0, 8)); });
      model->save((folder / kind).string(), *optimizer);
    });
    step(*its, [&] { return plain->forward(ids(1, 0, 2 * kSamples)); });
    const auto want = state_of(*plain);
    for (const auto& [name, options, ranks] : loading::ways()) {
      if (ranks != 2) continue;
      INFO(kind << ", " << name);
      ap::loopback::run(2, [&, &make = make, &kind = kind, &options = options](ap::World& world) {
        const bool must_attach = options.zero > 0 || options.tensor_parallel > 1;
        for (const bool recorded : {false, true}) {
          auto model = recorded ? Model(
                                      world, [] { return made(3); }, options)
                                : Model(world, made(3), options);
          const auto optimizer = make(model->parameters());
          if (must_attach) model->attach(*optimizer);
          model->load((folder / kind).string(), *optimizer, ap::LoadOptions{});
          const auto begin = world.rank() * kSamples;
          step(*optimizer, [&] { return model(ids(1, begin, begin + kSamples)); });
          const auto state = model->gather_state();
          if (world.rank() != 0) continue;
          for (const auto& item : state)
            numerics::check_close(item.value(), numerics::find(want, item.key()), kTolerance, item.key());
        }
      });
    }
  }
}

}  // namespace early_load_test
