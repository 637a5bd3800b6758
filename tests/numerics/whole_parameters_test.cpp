#include <torch/torch.h>

#include <catch_shim.hpp>
#include <says.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>

#include "whole_plans.hpp"

// Work on whole parameters, whatever parts ranks hold, against one process.
namespace whole_parameters_test {

using namespace whole_plans;
using States = ap::WholeStates;

torch::optim::AdamW adamw(const std::vector<Tensor>& parameters) {
  return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(0.05).eps(1e-3));
}

/// `function` on all parameters of one process, as the model calls it.
void in_one_process(Net& net, torch::optim::AdamW& optimizer, const ap::WholeParameterFunction& function) {
  std::set<const void*> seen;
  const torch::NoGradGuard no_grad;
  for (auto& item : net.named_parameters()) {
    auto value = item.value().detach();
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    States states;
    const auto found = optimizer.state().find(item.value().unsafeGetTensorImpl());
    auto* state =
        found == optimizer.state().end() ? nullptr : static_cast<torch::optim::AdamWParamState*>(found->second.get());
    if (state != nullptr) {
      states = {
          {"step", torch::tensor(state->step())}, {"exp_avg", state->exp_avg()}, {"exp_avg_sq", state->exp_avg_sq()}};
    }
    auto gradient = item.value().grad();
    function(item.key(), value, gradient, states);
    item.value().detach().copy_(value);
    item.value().mutable_grad() = gradient;
    if (state != nullptr) {
      state->exp_avg(states.at("exp_avg"));
      state->exp_avg_sq(states.at("exp_avg_sq"));
    }
  }
}

/// Steps of AdamW with work on whole parameters behind each, on this rank and in one process.
void check_training(ap::World& world, const Kind& kind, const ap::WholeParameterFunction& function,
                    const std::string& work) {
  Net net;
  auto plain = adamw(net.parameters());
  Model model(
      world, [] { return std::make_shared<Net>(); }, kind.options);
  auto optimizer = adamw(model->parameters());
  model->attach(optimizer);
  for (int step = 0; step < 3; ++step) {
    plain.zero_grad();
    loss_of(net, world.size()).backward();
    in_one_process(net, plain, function);
    plain.step();
    in_one_process(net, plain, function);

    optimizer.zero_grad();
    loss_on(model, world).backward();
    ap::for_whole_parameters(model, function);
    optimizer.step();
    ap::for_whole_parameters(model, function);
    check_parameters(model, net, kind.name + ", " + work + ", step " + std::to_string(step));
  }
}

TEST_CASE("for_whole_parameters: norms, trust ratios equal one process") {
  const auto rows = [](const std::string&, Tensor& value, Tensor&, States&) {
    if (value.dim() == 2) value.copy_(F::normalize(value, F::NormalizeFuncOptions().dim(1)));
  };
  const auto ratios = [](const std::string&, Tensor& value, Tensor& grad, States& states) {
    if (grad.defined()) grad = grad * value.norm() / (grad.norm() + 1);  // another tensor in its place
    for (auto& [name, state] : states) {
      if (name != "step") state.div_(1 + state.norm());
    }
    const auto norm = value.norm().item<double>();
    if (norm > 1) value.div_(norm);
  };
  under_all_plans([&](ap::World& world, const Kind& kind) {
    check_training(world, kind, rows, "rows");
    check_training(world, kind, ratios, "ratios");
  });
}

/// Called for this parameter, on this rank.
struct Calls {
  void note(const std::string& name, int rank) {
    const std::lock_guard lock(mutex);
    by_name[name].push_back(rank);
    order[rank].push_back(name);
  }
  std::mutex mutex;
  std::map<std::string, std::vector<int>> by_name;
  std::map<int, std::vector<std::string>> order;
};

TEST_CASE("for_whole_parameters: visits each once, in module order") {
  const DoublePrecision guard;
  for (const auto& kind : kinds()) {
    INFO(kind.name);
    Calls calls;
    CHECK_NOTHROW(ap::loopback::run(kind.ranks, [&](ap::World& world) {
      Model model(
          world, [] { return std::make_shared<Net>(); }, kind.options);
      auto optimizer = adamw(model->parameters());
      model->attach(optimizer);
      loss_on(model, world).backward();
      optimizer.step();
      ap::for_whole_parameters(model, [&](const std::string& name, Tensor& value, Tensor& grad, States& states) {
        calls.note(name, world.rank());
        const bool trains = name != "frozen" && name != "unread";
        if (grad.defined() != trains) throw Failure("gradient of " + name);
        if (trains && grad.sizes() != value.sizes()) throw Failure("sizes of the gradient of " + name);
        if (states.size() != (trains ? 3 : 0)) throw Failure("state of " + name);
        const int steps = name.find("mixed") == 0 ? 2 : 1;  // libtorch steps what has two names twice
        if (trains && states.at("step").item<std::int64_t>() != steps) throw Failure("steps of " + name);
        if (trains && states.at("exp_avg").sizes() != value.sizes()) throw Failure("sizes of the state of " + name);
      });
    }));
    const Net net;
    std::vector<std::string> names;
    for (const auto& item : net.named_parameters()) {
      if (item.key().find("again") == std::string::npos) names.push_back(item.key());
    }
    CHECK(calls.by_name.size() == names.size());
    for (const auto& name : names) CHECK(calls.by_name[name].size() == 1);
    for (const auto& [rank, seen] : calls.order) {
      CHECK(std::ranges::is_sorted(seen, {}, [&](const auto& name) { return std::ranges::find(names, name); }));
    }
    if (kind.name == "zero 1" || kind.name == "replicas") CHECK(calls.order.size() == 2);  // spread
  }
}

TEST_CASE("for_whole_parameters: RNG is plan-independent and isolated") {
  // Noise of gradients, and a spectral norm by an iteration that begins with a draw.
  const auto draw = [](const std::string&, Tensor& value, Tensor& grad, States&) {
    if (grad.defined()) grad.add_(torch::randn_like(grad), 0.1);
    if (value.dim() != 2) return;
    auto u = torch::randn({value.size(0)});
    for (int k = 0; k < 3; ++k) {
      const auto v = F::normalize(value.t().mv(u), F::NormalizeFuncOptions().dim(0));
      u = F::normalize(value.mv(v), F::NormalizeFuncOptions().dim(0));
    }
    value.div_(u.dot(value.mv(F::normalize(value.t().mv(u), F::NormalizeFuncOptions().dim(0)))));
  };
  std::mutex mutex;
  std::map<std::string, Tensor> first;  // by parameter and step
  torch::manual_seed(17);
  under_all_plans([&](ap::World& world, const Kind& kind) {
    Model model(
        world, [] { return std::make_shared<Net>(); }, kind.options);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    model->attach(optimizer);
    for (int step = 0; step < 2; ++step) {
      model->prepare(samples(0, 4), targets(0, 4));
      for (auto& parameter : model->owned_parameters()) {  // gradients that do not tell the number of ranks
        parameter.mutable_grad() = torch::ones_like(parameter.detach());
      }
      if (world.size() == 1) {
        torch::manual_seed(step);
        const auto before = torch::rand({2});
        torch::manual_seed(step);
        ap::for_whole_parameters(model, draw);
        if (!torch::rand({2}).equal(before)) throw Failure("the rank's own draws have changed");
        torch::manual_seed(17);
      } else {
        ap::for_whole_parameters(model, draw);
      }
      optimizer.step();
      for (const auto& item : model->named_parameters()) {
        const auto value = model->gather(item.value());
        const std::lock_guard lock(mutex);
        const auto [known, is_new] = first.try_emplace(item.key() + std::to_string(step), value);
        check_close(value, known->second, kTolerance, kind.name + ", " + item.key());
      }
    }
  });
  CHECK_FALSE(
      first["up.weight0"].allclose(first["up.weight1"] * first["up.weight0"].norm() / first["up.weight1"].norm()));
}

TEST_CASE("for_whole_parameters: exception on one rank throws on all") {
  under_all_plans([&](ap::World& world, const Kind& kind) {
    Net net;
    Model model(
        world, [] { return std::make_shared<Net>(); }, kind.options);
    auto optimizer = adamw(model->parameters());
    model->attach(optimizer);
    loss_on(model, world).backward();
    loss_of(net, world.size()).backward();
    for (const bool of_ours : {false, true}) {
      const auto refused = [&](const std::string& name, Tensor& value, Tensor& grad, States&) {
        if (name != "down.weight") return;
        value.zero_();
        grad.zero_();
        if (of_ours) throw ap::InvalidArgument("this weight is unhappy");
        throw std::domain_error("this weight is unhappy");
      };
      std::string said;
      try {
        ap::for_whole_parameters(model, refused);
      } catch (const std::exception& error) {
        said = error.what();
      }
      if (said.find("this weight is unhappy") == std::string::npos) throw Failure("nothing thrown: " + said);
      check_parameters(model, net, kind.name);
      check_gradients(model, net, kind.name);
    }
    ap::for_whole_parameters(model, [](const auto&, Tensor& value, Tensor&, States&) { value.mul_(2); });
    const torch::NoGradGuard no_grad;
    std::set<const void*> seen;
    for (auto& parameter : net.parameters()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameter.mul_(2);
    }
    check_parameters(model, net, kind.name + ", afterwards");
  });
}

TEST_CASE("for_whole_parameters: forbidden actions are refused by name") {
  using Wrong = std::pair<std::vector<std::string>, ap::WholeParameterFunction>;
  under_all_plans([&](ap::World& world, const Kind& kind) {
    Model model(
        world, [] { return std::make_shared<Net>(); }, kind.options);
    auto optimizer = adamw(model->parameters());
    model->attach(optimizer);
    const auto nothing = [](const auto&, Tensor&, Tensor&, States&) {};
    check_says({"for_whole_parameters", "not deployed yet", "prepare(args...)"},
               [&] { ap::for_whole_parameters(model, nothing); });
    model->prepare(samples(0, 4), targets(0, 4));  // the way out
    ap::for_whole_parameters(model, nothing);
    loss_on(model, world).backward();
    optimizer.step();
    const auto on = [](const std::string& name, auto work) {
      return [name, work](const std::string& at, Tensor& value, Tensor& grad, States& states) {
        if (at == name) work(value, grad, states);
      };
    };
    const std::vector<Wrong> wrong{
        {{"added state 'mine'", "up.weight"}, on("up.weight", [](auto& value, auto&, auto& s) { s["mine"] = value; })},
        {{"removed state 'exp_avg'", "head.bias"}, on("head.bias", [](auto&, auto&, auto& s) { s.erase("exp_avg"); })},
        {{"counter", "'step'", "scale"}, on("scale", [](auto&, auto&, auto& s) { s.at("step").add_(1); })},
        {{"exp_avg_sq", "up.weight", "sizes"},
         on("up.weight", [](auto&, auto&, auto& s) { s.at("exp_avg_sq") = torch::ones({2}); })},
        {{"value", "down.weight", "sizes"}, on("down.weight", [](auto& value, auto&, auto&) { value = value.t(); })},
        {{"value", "up.bias", "Float"}, on("up.bias", [](auto& value, auto&, auto&) { value = value.to(at::kFloat); })},
        {{"gradient", "unread", "undefined"},
         on("unread", [](auto& value, auto& grad, auto&) { grad = torch::ones_like(value); })},
        {{"gradient", "up.bias", "undefined"}, on("up.bias", [](auto&, auto& grad, auto&) { grad = Tensor(); })},
        {{"clip_grad_norm_", "for_whole_parameters", "before or after"},
         on("up.bias", [&](auto&, auto&, auto&) { static_cast<void>(model->clip_grad_norm_(1.0)); })}};
    for (const auto& [parts, function] : wrong) check_says(parts, [&] { ap::for_whole_parameters(model, function); });
    loss_on(model, world).backward();
  });
}

TEST_CASE("for_whole_parameters: differing gradients name the ranks") {
  const DoublePrecision guard;
  std::mutex mutex;
  CHECK_NOTHROW(ap::loopback::run(2, [&](ap::World& world) {
    Model model(world, [] { return std::make_shared<Net>(); }, {.stages = 1, .replicas = {2}});
    loss_on(model, world).backward();
    if (world.rank() == 1) model->module().up->weight.mutable_grad().reset();
    check_says({"gradient", "up.weight", "Double on rank 0", "undefined on rank 1"},
               [&] { ap::for_whole_parameters(model, [](const auto&, Tensor&, Tensor&, States&) {}); });
    check_says({"rank 0", "rank 1", "for_whole_parameters", "gather", "same calls"}, [&] {
      if (world.rank() == 0)
        static_cast<void>(model->gather_state());
      else
        ap::for_whole_parameters(model, [](const auto&, Tensor&, Tensor&, States&) {});
    });
  }));
}

}  // namespace whole_parameters_test
