#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <says.hpp>

#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>

#include "whole_plans.hpp"

// Norms, dot products and clipping of what several ranks hold, against one process.
namespace norms_test {

using namespace whole_plans;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_number(const Tensor& got, const Tensor& want, const std::string& what) {
  if (got.dim() != 0 || got.scalar_type() != at::kDouble) throw Failure(what + ": no number in f64");
  check_close(got, want, kTolerance, what);
}

Tensor or_zeros(const Tensor& tensor, const Tensor& like) {
  return tensor.defined() ? tensor : torch::zeros_like(like);
}

TEST_CASE("norm and dot: equal one process, also for user tensors") {
  under_all_plans([&](ap::World& world, const Kind& kind) {
    Net net;
    Model model(
        world, [] { return std::make_shared<Net>(); }, kind.options);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    model->attach(optimizer);
    loss_on(model, world).backward();
    loss_of(net, world.size()).backward();
    const torch::NoGradGuard no_grad;
    const auto plain = net.parameters();
    const auto handles = model->parameters();
    std::vector<Tensor> gradients, momenta, whole_gradients, whole_momenta;
    for (std::size_t i = 0; i < handles.size(); ++i) {
      const auto& p = handles[i];
      const auto at = kind.name + ", parameter " + std::to_string(i);
      const auto want = plain[i].detach(), gradient = or_zeros(plain[i].grad(), plain[i]);
      for (const double ord : {1.0, 1.5, 2.0, 3.0, kInfinity}) {
        check_number(model->norm(p, ord), torch::linalg_vector_norm(want, ord), at + ", norm");
        check_number(model->norm(p.grad(), ord), torch::linalg_vector_norm(gradient, ord), at + ", of the gradient");
      }
      // A momentum of the user's own, where there is something to go with it.
      const auto momentum = model->owns(p) ? p.detach() * 2 + 1 : Tensor();
      const auto whole_momentum = want * 2 + 1;
      check_number(model->dot(p, p), (want * want).sum(), at + ", dot");
      check_number(model->dot(p.grad(), p), (want * gradient).sum(), at + ", dot of gradient and value");
      check_number(model->dot(momentum, p.grad()), (whole_momentum * gradient).sum(), at + ", dot of a momentum");
      check_number(model->dot(p.data(), momentum), (whole_momentum * want).sum(), at + ", dot of data()");
      gradients.push_back(p.grad());
      momenta.push_back(momentum);
      whole_gradients.push_back(gradient.reshape({-1}));
      whole_momenta.push_back(whole_momentum.reshape({-1}));
    }
    const auto g = torch::cat(whole_gradients), m = torch::cat(whole_momenta);
    check_number(model->dot(gradients, momenta), g.dot(m), kind.name + ", lists");
    check_number(model->dot(momenta, momenta), m.dot(m), kind.name + ", lists of a user's own");
  });
}

TEST_CASE("norm: differing or foreign tensors are refused on all ranks") {
  const DoublePrecision guard;
  for (const auto& options :
       {ap::Options{.stages = 1, .replicas = {2}}, ap::Options{.stages = 1, .zero = 1, .replicas = {2}},
        ap::Options{.stages = 2, .replicas = {1, 1}}}) {
    CHECK_NOTHROW(ap::loopback::run(2, [&](ap::World& world) {
      Model model(
          world, [] { return std::make_shared<Net>(); }, options);
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      model->attach(optimizer);
      auto &first = model->module().up->weight, &second = model->module().down->weight;
      check_says({"norm", "not deployed", "prepare(args...)"}, [&] { static_cast<void>(model->norm(first)); });
      loss_on(model, world).backward();
      const bool is_0 = world.rank() == 0;
      check_says({"norm: rank 0 names 'up.weight', rank 1 names 'down.weight'"},
                 [&] { static_cast<void>(model->norm(is_0 ? first : second)); });
      check_says({"norm type -1", "use a positive number or infinity"},
                 [&] { static_cast<void>(model->norm(first, -1)); });
      check_says({"rank 0", "rank 1", "norm", "clip_grad_norm_", "same calls"}, [&] {
        if (is_0)
          static_cast<void>(model->norm(first));
        else
          static_cast<void>(model->clip_grad_norm_(1.0));
      });
      check_says({"norm", "neither a parameter", "model->dot(t, t)"},
                 [&] { static_cast<void>(model->norm(torch::ones({3}))); });
      const auto own = torch::ones({3}), other = torch::ones({3});
      check_says({"dot", "lists as long as model->parameters()"}, [&] { static_cast<void>(model->dot(own, other)); });
      check_says({"dot of 'up.weight' and 'down.weight'"}, [&] { static_cast<void>(model->dot(first, second)); });
      check_says({"dot", "lists of 2 and 1"}, [&] {
        static_cast<void>(model->dot(std::vector<Tensor>{first, second}, std::vector<Tensor>{first}));
      });
      if (options.stages == 1) {
        check_says({"sizes", "'up.weight'", "like the handle"}, [&] { static_cast<void>(model->dot(first, own)); });
        if (options.zero == 0) {
          if (!is_0) second.mutable_grad().reset();
          check_says({"rank 0 names the gradient of 'down.weight', rank 1, which holds elements of it"},
                     [&] { static_cast<void>(model->norm(second.grad())); });
        }
      }
      loss_on(model, world).backward();  // it goes on
      check_number(model->norm(first), model->gather(first).norm(), "afterwards");
    }));
  }
}

// ---------------------------------------------------------------- clipping

/// Which parameters of the model, or of the plain net.
using Part = std::function<std::vector<Tensor>(Net&)>;

std::vector<std::pair<std::string, Part>> parts() {
  return {{"first", [](Net& net) { return net.first->parameters(); }},
          {"a pair",
           [](Net& net) {
             auto both = net.up->parameters();
             for (const auto& parameter : net.down->parameters()) both.push_back(parameter);
             return both;
           }},
          {"given twice",
           [](Net& net) {
             return std::vector<Tensor>{net.up->weight, net.scale, net.up->weight};
           }},
          {"without gradients",
           [](Net& net) {
             return std::vector<Tensor>{net.unread, net.frozen};
           }},
          {"of two names", [](Net& net) { return net.parameters(); }},
          {"none", [](Net&) { return std::vector<Tensor>(); }}};
}

TEST_CASE("clip_grad_norm_ of a part: equals one process for every p") {
  under_all_plans([&](ap::World& world, const Kind& kind) {
    Model model(
        world, [] { return std::make_shared<Net>(); }, kind.options);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    model->attach(optimizer);
    for (const double p : {1.0, 2.0, 2.5, kInfinity}) {
      Net net;
      const torch::NoGradGuard no_grad;
      model->zero_grad();
      {
        const torch::AutoGradMode grad(true);
        loss_on(model, world).backward();
        loss_of(net, world.size()).backward();
      }
      for (const auto& [name, part] : parts()) {
        const auto at = kind.name + ", " + name + ", p " + std::to_string(p);
        const auto want = torch::nn::utils::clip_grad_norm_(part(net), 0.01, p);
        const auto norm = name == "of two names" ? model->clip_grad_norm_(0.01, p)
                                                 : ap::clip_grad_norm_(model, part(model->module()), 0.01, p);
        check_number(norm, torch::tensor(want), at);
        check_gradients(model, net, at);
      }
      const auto want = torch::nn::utils::clip_grad_norm_(net.parameters(), 1e-3, p);
      const auto norm = torch::nn::utils::clip_grad_norm_(model->parameters(), 1e-3, p);
      check_number(torch::tensor(norm), torch::tensor(want), kind.name + ", libtorch's");
      check_gradients(model, net, kind.name + ", libtorch's");
    }
  });
}

/// An encoder and a head, as the report has it.
struct EncoderNet : nn::Module {
  EncoderNet() {
    nets::register_all(*this, "encoder", encoder, "head", head);
    const torch::NoGradGuard no_grad;
    double phase = 0;
    for (auto& parameter : parameters()) {
      parameter.copy_((torch::arange(parameter.numel(), torch::kDouble) + ++phase).cos().mul(0.3).view_as(parameter));
    }
  }
  Tensor forward(const Tensor& x, const Tensor& y) { return F::cross_entropy(head(encoder->forward(x)), y); }
  nn::Sequential encoder{nn::Linear(6, 64), nn::ReLU(), nn::Linear(64, 32), nn::Tanh()};
  nn::Linear head{32, 5};
};

TEST_CASE("clipped encoder: planner's plan equals one process") {
  const DoublePrecision guard;
  const auto x = (torch::arange(8 * 6, torch::kDouble) * 0.9).sin().view({8, 6}) * 3;
  const auto y = torch::arange(8, torch::kLong).remainder(5);
  EncoderNet plain;
  torch::optim::SGD plain_optimizer(plain.parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  for (int step = 0; step < 4; ++step) {
    plain_optimizer.zero_grad();
    plain.forward(x, y).backward();
    torch::nn::utils::clip_grad_norm_(plain.encoder->parameters(), 0.05);
    plain_optimizer.step();
  }
  for (const int ranks : {1, 2, 4}) {
    INFO(ranks << " ranks");
    CHECK_NOTHROW(ap::loopback::run(ranks, [&](ap::World& world) {
      ap::AutoParallel<EncoderNet> model(world, [] { return std::make_shared<EncoderNet>(); });
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
      model->attach(optimizer);
      const std::vector<std::int64_t> local(static_cast<std::size_t>(ranks), 8 / ranks);
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        model(numerics::share_of(x, 0, local, world.rank()), numerics::share_of(y, 0, local, world.rank())).backward();
        ap::clip_grad_norm_(model, model->module().encoder->parameters(), 0.05);
        optimizer.step();
      }
      const auto want = plain.named_parameters();
      for (const auto& item : model->named_parameters())
        check_close(model->gather(item.value()), want[item.key()], kTolerance, item.key());
    }));
  }
}

TEST_CASE("libtorch's clip_grad_norm_: equals one process or is refused") {
  under_all_plans([&](ap::World& world, const Kind& kind) {
    Net net;
    Model model(
        world, [] { return std::make_shared<Net>(); }, kind.options);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    model->attach(optimizer);
    loss_on(model, world).backward();
    loss_of(net, world.size()).backward();
    bool has_all = true;
    for (const auto& handle : model->module().parameters())
      has_all = has_all && (!handle.requires_grad() || model->owns(handle));
    double norm = 0;
    const auto refused = said_by([&] { norm = torch::nn::utils::clip_grad_norm_(model->module().parameters(), 1e-3); });
    if (!has_all && refused.empty()) throw Failure(kind.name + ": a rank has not all gradients, and clips");
    if (!refused.empty()) {
      auto handles = model->module().parameters();
      check_says({"ap::clip_grad_norm_(model, handles, max)"},
                 [&] { torch::nn::utils::clip_grad_norm_(handles, 1e-3); });
      norm = ap::clip_grad_norm_(model, handles, 1e-3).item<double>();
    }
    const auto want = torch::nn::utils::clip_grad_norm_(net.parameters(), 1e-3);
    check_number(torch::tensor(norm), torch::tensor(want), kind.name);
    check_gradients(model, net, kind.name);
  });
}

TEST_CASE("clip_grad_norm_: non-finite norm throws, changes nothing") {
  under_all_plans([&](ap::World& world, const Kind& kind) {
    Model model(
        world, [] { return std::make_shared<Net>(); }, kind.options);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    model->attach(optimizer);
    loss_on(model, world).backward();
    const torch::NoGradGuard no_grad;
    const auto& weight = model->module().up->weight;
    if (model->owns(weight) && weight.numel() > 0) weight.grad().fill_(kInfinity);
    const auto bias = model->module().up->bias.grad();
    const auto before = bias.defined() ? bias.clone() : Tensor();
    const auto unchanged = [&] {
      const ap::parameters::PartAccess access;  // a comparison of what is here
      if (bias.defined() && !bias.equal(before)) throw Failure("a gradient has changed");
    };
    check_says({"inf", "as they were"}, [&] { static_cast<void>(model->clip_grad_norm_(1.0, 2.0, true)); });
    unchanged();
    check_says({"inf", "as they were"},
               [&] { ap::clip_grad_norm_(model, model->module().up->parameters(), 1.0, kInfinity, true); });
    unchanged();
    check_says({"inf", "as they were"},
               [&] { static_cast<void>(torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0, 2.0, true)); });
    unchanged();
    const auto others = model->module().down->parameters();
    if (!std::isfinite(ap::clip_grad_norm_(model, others, 1.0, 2.0, true).item<double>()))
      throw Failure("the norm of other gradients");
    if (ap::clip_grad_norm_(model, model->module().up->parameters(), 1.0).item<double>() != kInfinity)
      throw Failure("a norm that is finite");
  });
}

TEST_CASE("clip_grad_norm_: foreign or differing handles are refused") {
  const DoublePrecision guard;
  CHECK_NOTHROW(ap::loopback::run(2, [&](ap::World& world) {
    Model model(world, [] { return std::make_shared<Net>(); }), other(world, [] { return std::make_shared<Net>(); });
    loss_on(model, world).backward();
    loss_on(other, world).backward();
    auto mixed = model->module().up->parameters();
    mixed.push_back(other->module().up->weight);
    const bool is_0 = world.rank() == 0;
    check_says({"no parameter or buffer of the model"}, [&] { ap::clip_grad_norm_(model, mixed, 1.0); });
    check_says({"no parameter or buffer of the model"},
               [&] { ap::clip_grad_norm_(model, is_0 ? mixed : model->module().up->parameters(), 1.0); });
    check_says({"no parameter or buffer of the model"}, [&] { ap::clip_grad_norm_(model, {torch::ones({2})}, 1.0); });
    check_says({"rank 0", "rank 1", "up.weight", "down.weight"}, [&] {
      ap::clip_grad_norm_(model, is_0 ? model->module().up->parameters() : model->module().down->parameters(), 1.0);
    });
    ap::clip_grad_norm_(model, model->module().up->parameters(), 1.0);
  }));
}

}  // namespace norms_test
