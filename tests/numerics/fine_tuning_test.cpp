#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>
#include <temp_folder.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"
#include "loading_ways.hpp"
#include "torch/parameters/hyper_parameters.hpp"
#include "torch/parameters/optimizer_state.hpp"

// Training that begins with a part of another model, under every kind of plan, against one process.
namespace fine_tuning_numerics_test {

namespace ap = autopar;
namespace fs = std::filesystem;
namespace nn = torch::nn;
using torch::Tensor;
using torch::optim::AdamWOptions;
using Names = std::vector<std::string>;

constexpr double kTolerance = 1e-12;
constexpr int64_t kSamples = 2;  // of each rank

/// What both models share: two layers that can be cut in slices, a table, a buffer.
struct Body : nn::Module {
  Body() {
    nets::register_all(*this, "table", table, "first", first, "second", second);
    scale = register_buffer("scale", torch::rand({6}) + 0.5);
  }
  Tensor forward(const Tensor& ids) { return torch::tanh(second(torch::tanh(first(table(ids) * scale)))); }
  nn::Embedding table{nn::EmbeddingOptions(8, 6)};
  nn::Linear first{6, 16}, second{16, 6};
  Tensor scale;
};

/// What is pre-trained.
struct Base : nn::Module {
  Base() { nets::register_all(*this, "backbone", nn::ModuleHolder<Body>(body), "head", head, "extra", extra); }
  Tensor forward(const Tensor& ids) { return (head(body->forward(ids)) + extra(body->forward(ids))).pow(2).mean(); }
  std::shared_ptr<Body> body = std::make_shared<Body>();
  nn::Linear head{6, 4}, extra{nn::LinearOptions(6, 4).bias(false)};
};

/// What is fine-tuned: another name for the body, a head of another size, a layer more, and none of `extra`.
struct Net : nn::Module {
  Net() { nets::register_all(*this, "encoder", nn::ModuleHolder<Body>(body), "middle", middle, "head", head); }
  Tensor forward(const Tensor& ids) { return head(torch::tanh(middle(body->forward(ids)))).pow(2).mean(); }
  std::shared_ptr<Body> body = std::make_shared<Body>();
  nn::Linear middle{6, 6}, head{6, 3};
};

const ap::LoadOptions kOptions{.missing = ap::Missing::kAllowed,
                               .unexpected = ap::Missing::kAllowed,
                               .rename = {{"backbone.", "encoder."}},
                               .skip = {"head.", "encoder.second.bias"}};

Tensor ids(int step, int64_t begin, int64_t end) { return torch::arange(begin, end).mul(3).add(step).remainder(8); }

std::unique_ptr<torch::optim::AdamW> adamw(const std::vector<Tensor>& parameters, double rate) {
  return std::make_unique<torch::optim::AdamW>(parameters, AdamWOptions(rate).eps(1e-3));
}

template <class Forward>
void step(torch::optim::Optimizer& optimizer, const Forward& forward) {
  optimizer.zero_grad();
  forward().backward();
  optimizer.step();
}

using loading::Way;

std::vector<Way> ways() {
  auto all = loading::ways();
  all.push_back(loading::way("ZeRO 2, offloaded", {2}, 2));
  for (auto& way : all) way.options.offload = ap::Offload::kNone;
  all.back().options.offload = ap::Offload::kOptimizer;
  return all;
}

template <class Module>
struct Plain {
  std::shared_ptr<Module> net;
  std::unique_ptr<torch::optim::AdamW> optimizer;
};

/// The base after a step, in one process.
Plain<Base> trained_base() {
  Plain<Base> base{nets::made<Base>(1), nullptr};
  base.optimizer = adamw(base.net->parameters(), 0.1);
  step(*base.optimizer, [&] { return base.net->forward(ids(0, 0, 8)); });
  return base;
}

/// The same, in a checkpoint.
void make_checkpoint(const fs::path& folder) {
  ap::loopback::run(1, [&](ap::World& world) {
    ap::AutoParallel<Base> model(world, nets::made<Base>(1));
    const auto optimizer = adamw(model->parameters(), 0.1);
    model->attach(*optimizer);
    step(*optimizer, [&] { return model(ids(0, 0, 8)); });
    model->save(folder.string(), *optimizer);
    model->export_weights((folder / "weights").string());
  });
}

bool is_loaded(const std::string& name) { return name.starts_with("encoder.") && name != "encoder.second.bias"; }

/// What kOptions say, by hand: values, and with `with_state` the state and hyper-parameters.
void load_by_hand(Plain<Net>& plain, bool with_state) {
  const auto base = trained_base();
  const torch::NoGradGuard no_grad;
  auto from = base.net->named_parameters();
  for (auto& item : plain.net->named_parameters()) {
    if (with_state) plain.optimizer->state().erase(item.value().unsafeGetTensorImpl());
    if (!is_loaded(item.key())) continue;
    const auto& source = from["backbone." + item.key().substr(8)];
    item.value().copy_(source);
    if (with_state)
      ap::parameters::set_state(*plain.optimizer, item.value(), ap::parameters::state_of(*base.optimizer, source));
  }
  plain.net->body->scale.copy_(base.net->body->scale);
  if (with_state) plain.optimizer->param_groups()[0].options().set_lr(0.1);
}

numerics::Snapshot state_of(const Net& net) {
  auto all = numerics::copies_of(net.named_parameters());
  for (const auto& item : net.named_buffers()) all.emplace_back(item.key(), item.value().detach().clone());
  return all;
}

using Model = ap::AutoParallel<Net>;

void require(bool holds, const std::string& what) {
  if (!holds) throw numerics::Failure(what);
}

void require_report(const ap::LoadReport& report) {
  Names loaded;
  const Net net;
  for (const auto& item : net.named_parameters())
    if (is_loaded(item.key())) loaded.push_back(item.key());
  loaded.emplace_back("encoder.scale");
  require(report.loaded == loaded, "loaded");
  require(report.missing == Names{"middle.weight", "middle.bias"}, "missing");
  require(report.skipped == Names{"encoder.second.bias", "head.weight", "head.bias"}, "skipped");
  require(report.unexpected == Names{"extra.weight"}, "unexpected");
}

/// The model has these values. @param close  equal but for rounding
void compare(Model& model, ap::World& world, const numerics::Snapshot& want, bool close, const std::string& what) {
  const auto state = model->gather_state();
  if (world.rank() != 0) return;
  for (const auto& item : state) {
    const auto& wanted = numerics::find(want, item.key());
    if (close)
      numerics::check_close(item.value(), wanted, kTolerance, what + ", " + item.key());
    else
      require(torch::equal(item.value(), wanted), what + ", " + item.key() + " has other bits");
  }
}

/// A model of seed 3, of an existing module or recorded.
Model model_of(ap::World& world, bool recorded, const ap::Options& options) {
  if (recorded)
    return Model(
        world, [] { return nets::made<Net>(3); }, options);
  return Model(world, nets::made<Net>(3), options);
}

using Load = std::function<void(Model&, torch::optim::AdamW&)>;

/// Loads before the first call or after a step, and trains. @param by_hand  what the load does, to one process
void check_everywhere(const Load& load, const std::function<void(Plain<Net>&)>& by_hand) {
  for (const auto& [name, options, ranks] : ways()) {
    for (const bool early : {true, false}) {
      INFO(name << (early ? ", before" : ", after") << " the first call");
      Plain<Net> plain{nets::made<Net>(3), nullptr};
      plain.optimizer = adamw(plain.net->parameters(), 0.7);
      const auto batch = [&ranks = ranks](int k) { return ids(k, 0, ranks * kSamples); };
      if (!early) step(*plain.optimizer, [&] { return plain.net->forward(batch(1)); });
      by_hand(plain);
      const auto loaded = state_of(*plain.net);
      for (int k = 2; k < 4; ++k) step(*plain.optimizer, [&] { return plain.net->forward(batch(k)); });
      const auto trained = state_of(*plain.net);
      ap::loopback::run(ranks, [&, &options = options](ap::World& world) {
        for (const bool recorded : {false, true}) {
          auto model = model_of(world, recorded, options);
          const auto optimizer = adamw(model->parameters(), 0.7);
          model->attach(*optimizer);
          const auto begin = world.rank() * kSamples;
          const auto mine = [&](int k) { return ids(k, begin, begin + kSamples); };
          if (!early) step(*optimizer, [&] { return model(mine(1)); });
          load(model, *optimizer);
          if (early) model->prepare(mine(2));
          const std::string kind = recorded ? "a callable" : "a module";
          compare(model, world, loaded, !early, kind + ", loaded");
          for (int k = 2; k < 4; ++k) step(*optimizer, [&] { return model(mine(k)); });
          compare(model, world, trained, true, kind + ", trained");
        }
      });
    }
  }
}

TEST_CASE("fine-tuning: a part of a checkpoint with its state, any plan") {
  const DoublePrecision guard;
  const TempFolder folder;
  make_checkpoint(folder / "base");
  check_everywhere(
      [&](Model& model, torch::optim::AdamW& optimizer) {
        require_report(model->load((folder / "base").string(), optimizer, kOptions));
      },
      [](Plain<Net>& plain) { load_by_hand(plain, true); });
}

TEST_CASE("fine-tuning: a part of a file of weights, any plan") {
  const DoublePrecision guard;
  const TempFolder folder;
  make_checkpoint(folder / "base");
  check_everywhere(
      [&](Model& model, torch::optim::AdamW&) {
        require_report(model->load((folder / "base" / "weights").string(), kOptions));
      },
      [](Plain<Net>& plain) { load_by_hand(plain, false); });
}

TEST_CASE("fine-tuning: two loads each bring their part, any plan") {
  const DoublePrecision guard;
  const TempFolder folder;
  make_checkpoint(folder / "base");
  const auto head = torch::arange(18, torch::kDouble).view({3, 6}).div(20);
  const auto with_head = [&](Net& net) {
    const torch::NoGradGuard no_grad;
    net.head->weight.copy_(head);
    net.body->first->bias.fill_(0.25);
  };
  ap::loopback::run(1, [&](ap::World& world) {
    const auto net = nets::made<Net>(5);
    with_head(*net);
    Model model(world, net);
    model->prepare(ids(0, 0, 2));
    model->export_weights((folder / "other").string());
  });
  ap::LoadOptions second{.unexpected = ap::Missing::kAllowed};
  second.skip = {"encoder.table", "encoder.first.weight", "encoder.second", "encoder.scale", "middle.", "head.bias"};
  check_everywhere(
      [&](Model& model, torch::optim::AdamW&) {
        model->load((folder / "base" / "weights").string(), kOptions);
        const torch::NoGradGuard no_grad;
        if (!model->stats().calls) model->module().body->second->weight.mul_(2);  // of the first load, written before
        const auto report = model->load((folder / "other").string(), second);
        require(report.loaded == Names{"encoder.first.bias", "head.weight"}, "the second load");
      },
      [&](Plain<Net>& plain) {
        const bool early = plain.optimizer->state().empty();
        load_by_hand(plain, false);
        const torch::NoGradGuard no_grad;
        if (early) plain.net->body->second->weight.mul_(2);
        with_head(*plain.net);
      });
}

}  // namespace fine_tuning_numerics_test
