#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Methods besides forward, and losses by name: as in one process, before the first forward call and after it.
namespace methods_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::check_close;
using torch::Tensor;

constexpr double kTolerance = 1e-12;

struct Code {
  Tensor mean, spread;
};

struct AutoEncoderImpl : nn::Module {
  AutoEncoderImpl() { nets::register_all(*this, "encoder", encoder, "middle", middle, "decoder", decoder); }
  Tensor forward(const Tensor& x) { return decode(encode(x).mean); }
  Code encode(const Tensor& x) const {
    auto hidden = const_cast<nn::Linear&>(encoder)->forward(x).tanh();
    return {hidden, hidden.pow(2).mean()};
  }
  Tensor decode(const Tensor& z) { return decoder(torch::tanh(middle(z))); }
  Tensor decode(const Tensor& z, double scale) { return decode(z) * scale; }
  Tensor generate(Tensor z, int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) z = torch::tanh(middle(z));
    return decoder(z);
  }
  Tensor sharpen(const Tensor& z) { return decode(encode(decode(z)).mean); }  // back to parts that ran before
  nn::Linear encoder{4, 6}, middle{6, 6}, decoder{6, 4};
};
TORCH_MODULE(AutoEncoder);

AutoEncoder made() {
  return nets::seeded(5, [] { return AutoEncoder(); });
}

struct Layout {
  ap::Options options;
  std::vector<int64_t> local;
};

std::vector<Layout> layouts() {
  return {{{}, {8}},
          {{.stages = 2, .microbatches = 2, .replicas = {1, 1}}, {5, 3}},
          {{.stages = 1, .microbatches = 2, .replicas = {2}}, {4, 4}},
          {{.stages = 2, .microbatches = 2, .replicas = {2, 1}}, {2, 5, 1}}};
}

void on_ranks(const Layout& layout, const std::function<void(ap::World&)>& body) {
  torch::set_num_threads(1);
  CHECK_NOTHROW(ap::loopback::run(static_cast<int>(layout.local.size()), body));
}

template <class Model, class Module>
void check_gradients(Model& model, Module& reference, const std::string& when) {
  const auto expected = reference.named_parameters();
  for (const auto& item : model->named_parameters()) {
    if (!model->owns(item.value())) continue;
    check_close(item.value().grad(), expected[item.key()].grad(), kTolerance, when + ", gradient of " + item.key());
  }
}

TEST_CASE("other methods: run before and after the first forward") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), z = torch::randn({8, 6});
  const auto one = static_cast<Tensor (AutoEncoderImpl::*)(const Tensor&)>(&AutoEncoderImpl::decode);
  const auto scaled = static_cast<Tensor (AutoEncoderImpl::*)(const Tensor&, double)>(&AutoEncoderImpl::decode);
  auto reference = made();
  const auto code = reference->encode(x);
  (code.mean.pow(2).sum() / 8 + code.spread).backward();
  (reference->decode(z).pow(2).sum() / 8).backward();
  F::mse_loss(reference->forward(x), x).backward();
  for (const auto& layout : layouts()) {
    for (const bool first : {true, false}) {
      INFO(layout.local.size() << " ranks, " << (first ? "before forward" : "after forward"));
      on_ranks(layout, [&](ap::World& world) {
        const auto mine = [&](const Tensor& whole) {
          return numerics::share_of(whole, 0, layout.local, world.rank()).clone();
        };
        const auto own_z = mine(z), own_x = mine(x);
        const auto n = own_z.size(0);
        ap::AutoParallel<AutoEncoder> model(world, made(), layout.options);
        const auto forward = [&] { model->train_step(F::mse_loss, own_x, own_x).backward(); };
        if (!first) forward();
        ap::global_mean(world, model->call(one, own_z).pow(2).sum(), n).backward();
        const auto own = model->call(&AutoEncoderImpl::encode, own_x);
        (ap::global_mean(world, own.mean.pow(2).sum(), n) + own.spread).backward();
        if (first) forward();
        check_gradients(model, *reference, "methods");
        const torch::NoGradGuard no_grad;
        check_close(model->call(scaled, own_z, 3.0), mine(reference->decode(z, 3.0)), kTolerance, "an overload");
        check_close(model->call(scaled, own_z, 2.0), mine(reference->decode(z, 2.0)), kTolerance, "another constant");
        check_close(model->call(&AutoEncoderImpl::generate, own_z, 3), mine(reference->generate(z, 3)), kTolerance,
                    "generate");
        const auto by_lambda = [](AutoEncoderImpl& net, const Tensor& in) { return net.decode(in, 0.5); };
        check_close(model->call(by_lambda, own_z), mine(reference->decode(z, 0.5)), kTolerance, "a lambda");
        if (layout.options.stages < 2) {
          check_close(model->call(&AutoEncoderImpl::sharpen, own_z), mine(reference->sharpen(z)), kTolerance,
                      "sharpen");
        }
        check_close(model->call(&AutoEncoderImpl::encode, own_x).spread, reference->encode(x).spread, kTolerance,
                    "a field");
      });
    }
  }
}

TEST_CASE("method reaching back a stage: is refused, model continues") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), z = torch::randn({8, 6});
  auto reference = made();
  const Layout layout{{.stages = 2, .microbatches = 1}, {4, 4}};
  on_ranks(layout, [&](ap::World& world) {
    const auto mine = [&](const Tensor& whole) { return whole.chunk(2)[static_cast<size_t>(world.rank())]; };
    ap::AutoParallel<AutoEncoder> model(world, made(), layout.options);
    const torch::NoGradGuard no_grad;
    check_close(model(mine(x)), mine(reference->forward(x)), kTolerance, "forward");
    std::string message;
    try {
      (void)model->call(&AutoEncoderImpl::sharpen, mine(z));
    } catch (const ap::CaptureError& error) {
      message = error.what();
    }
    if (message.find("near encoder.weight") == std::string::npos ||
        message.find("use one stage") == std::string::npos) {
      throw numerics::Failure("not refused by name: " + message);
    }
    check_close(model(mine(x)), mine(reference->forward(x)), kTolerance, "forward, after the refusal");
  });
}

Tensor by_hand(const Tensor& out, const Tensor& y) { return (out - y).abs().mean(); }

TEST_CASE("train_step: loss may be a function, a module or a lambda") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 4});
  const auto classes = torch::randint(4, {8}, torch::kLong);
  const auto compare = [&](const std::string& name, const auto& loss, const Tensor& target, const auto& plain) {
    auto reference = made();
    const Tensor expected = plain(reference->forward(x), target);
    expected.backward();
    for (const auto& layout : layouts()) {
      INFO(name);
      on_ranks(layout, [&](ap::World& world) {
        const auto mine = [&](const Tensor& whole) {
          return numerics::share_of(whole, 0, layout.local, world.rank()).clone();
        };
        ap::AutoParallel<AutoEncoder> model(world, made(), layout.options);
        const auto got = model->train_step(loss, mine(x), mine(target));
        check_close(got, expected, kTolerance, "loss");
        got.backward();
        check_gradients(model, *reference, name);
      });
    }
  };
  const auto cross = [](const Tensor& out, const Tensor& target) { return F::cross_entropy(out, target); };
  const auto squared = [](const Tensor& out, const Tensor& target) { return torch::mse_loss(out, target); };
  compare("F::cross_entropy", F::cross_entropy, classes, cross);
  compare("AUTOPAR_FUNCTION", AUTOPAR_FUNCTION(torch::cross_entropy_loss), classes, cross);
  compare("nn::CrossEntropyLoss", nn::CrossEntropyLoss(), classes, cross);
  compare("torch::mse_loss", torch::mse_loss, y, squared);
  compare("a function", by_hand, y, by_hand);
  compare("a pointer", &by_hand, y, by_hand);
}

// ---------------------------------------------------------------- parameters that one method reads in more stages than
// another

/// The critic is read before and behind the generator by its own loss, and behind it alone by the generator's.
struct Adversaries : nn::Module {
  Adversaries() { nets::register_all(*this, "generator", generator, "critic", critic, "score", score); }
  Tensor judge(const Tensor& x) { return score(torch::tanh(critic(x))); }
  Tensor critic_loss(const Tensor& x, const Tensor& z) {
    return judge(x).sin().mean() + judge(generator(z).detach()).mean();
  }
  Tensor generator_loss(const Tensor& z) { return judge(generator(z)).pow(2).mean(); }
  Tensor forward(const Tensor& x) { return judge(x); }
  nn::Linear generator{3, 4}, critic{4, 5}, score{5, 1};
};

std::shared_ptr<Adversaries> adversaries() { return nets::made<Adversaries>(5); }

/// Both losses, then each alone, the generator's twice without a sum in between; each time all parameters step.
template <class Loss, class Accumulate>
void train_adversaries(torch::optim::Optimizer& optimizer, const Loss& loss, const Accumulate& accumulate,
                       const std::function<void(const std::string&)>& check) {
  const auto step = [&](const std::string& name, const auto& backwards) {
    optimizer.zero_grad();
    backwards();
    check("gradients of " + name);
    optimizer.step();
    check("a step of " + name);
  };
  for (int i = 0; i < 2; ++i) {
    step("both", [&] {
      loss(true).backward();
      loss(false).backward();
    });
    step("the generator's loss", [&] { loss(false).backward(); });
    step("the critic's loss", [&] { loss(true).backward(); });
    step("the generator's loss, twice", [&] {
      {
        [[maybe_unused]] const auto guard = accumulate();
        loss(false).backward();
      }
      loss(false).backward();
    });
  }
}

TEST_CASE("parameter copies on stages: stay equal whichever is read") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), z = torch::randn({8, 3});
  numerics::Snapshot wanted;
  const auto reference = adversaries();
  torch::optim::SGD plain(reference->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto note = [&](const std::string&) {
    for (const auto& item : reference->named_parameters()) {
      const auto& gradient = item.value().grad();
      wanted.emplace_back(item.key(), item.value().detach().clone());
      wanted.emplace_back("gradient of " + item.key(), gradient.defined() ? gradient.clone() : Tensor());
    }
  };
  const auto own_loss = [&](bool of_critic) {
    return of_critic ? reference->critic_loss(x, z) : reference->generator_loss(z);
  };
  train_adversaries(
      plain, own_loss, [] { return 0; }, note);
  auto all = layouts();
  all.push_back({{.stages = 3, .microbatches = 1, .replicas = {1}}, {3, 3, 2}});
  all.push_back({{.stages = 2, .microbatches = 1, .zero = 1, .replicas = {1}}, {5, 3}});
  all.push_back({{.stages = 2, .microbatches = 1, .zero = 1, .replicas = {2}}, {3, 0, 4, 1}});
  for (const auto& layout : all) {
    INFO(layout.local.size() << " ranks, " << layout.options.stages << " stages, zero " << layout.options.zero);
    on_ranks(layout, [&](ap::World& world) {
      ap::AutoParallel<std::shared_ptr<Adversaries>> model(world, adversaries(), layout.options);
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      model->attach(optimizer);
      const auto mine = [&](const Tensor& whole) {
        return numerics::share_of(whole, 0, layout.local, world.rank()).clone();
      };
      const auto loss = [&](bool of_critic) {
        return of_critic ? model->call(&Adversaries::critic_loss, mine(x), mine(z))
                         : model->call(&Adversaries::generator_loss, mine(z));
      };
      size_t at = 0;
      const auto compare = [&](const std::string& when) {
        for (const auto& item : model->named_parameters()) {
          const auto value = wanted.at(at++).second, gradient = wanted.at(at++).second;
          if (!model->owns(item.value())) continue;
          const auto shard = model->shard(item.value());
          const auto name = when + ", " + item.key();
          check_close(item.value(), numerics::held_part(value, shard), kTolerance, name);
          check_close(item.value().grad(), numerics::held_part(gradient, shard), kTolerance, "gradient, " + name);
        }
      };
      train_adversaries(
          optimizer, loss, [&] { return model->no_sync(); }, compare);
    });
  }
}

}  // namespace methods_test
