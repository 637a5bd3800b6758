#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Losses that users compute from results, outside of the model: the gradients of one process, or a refusal by name.
namespace outside_loss_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using numerics::check_close;
using torch::Tensor;

constexpr double kTolerance = 1e-12;

/// One result of this rank's samples, and three that all ranks have: a mean, a function of a sum, one of parameters.
struct Results {
  Tensor out, kl, rms, decay;
};

struct Net : nn::Module {
  Net() { nets::register_all(*this, "first", first, "second", second); }
  Results forward(const Tensor& x) {
    const auto hidden = torch::tanh(first(x));
    const auto out = second(hidden);
    return {out, (hidden.pow(2) - torch::log(1.5 + hidden)).mean(), out.pow(2).mean().sqrt(),
            first->weight.pow(2).sum()};
  }
  nn::Linear first{4, 6}, second{6, 3};
};

template <class Module>
std::shared_ptr<Module> made() {
  return nets::made<Module>(5);
}

/// Sum over the batch and count, of this rank or of the one process, to the mean over all samples.
using Mean = std::function<Tensor(const Tensor& sum, int64_t count)>;

struct Program {
  std::string name;
  std::function<Tensor(const Results&, const Tensor& y, const Mean& mean)> loss;
};

Tensor squares(const Tensor& out, const Tensor& y) { return (out - y).pow(2).sum(); }

std::vector<Program> programs() {
  return {
      {"a sum of samples", [](auto& r, auto& y, auto& mean) { return mean(squares(r.out, y), y.size(0)); }},
      {"VAE", [](auto& r, auto& y, auto& mean) { return mean(squares(r.out, y) + r.kl * y.size(0), y.size(0)); }},
      {"mean times count of everything",
       [](auto& r, auto& y, auto& mean) {
         const auto loss = F::mse_loss(r.out, y) + r.kl + 0.5 * r.rms + 0.1 * r.decay;
         return mean(loss * y.size(0), y.size(0));
       }},
      {"a sum times a result that all have",
       [](auto& r, auto& y, auto& mean) { return mean(squares(r.out, y) * r.kl / r.decay, y.size(0)); }},
      {"nothing but a result that all have",
       [](auto& r, auto& y, auto& mean) { return mean(r.kl * y.size(0), y.size(0)); }},
      {"a result that all have, as it is", [](auto& r, auto& y, auto& mean) { return mean(r.rms, 1) + 0 * y.sum(); }},
      {"results added to the mean",
       [](auto& r, auto& y, auto& mean) { return mean(squares(r.out, y), y.size(0)) + r.kl + 0.5 * r.rms * r.decay; }},
      {"one operator before and in the mean",
       [](auto& r, auto& y, auto& mean) {
         const auto twice = (r.kl * 2).sin();
         return mean(squares(r.out, y) * twice + twice * y.size(0), y.size(0)) + twice * r.rms;
       }},
      {"relativistic GAN",
       [](auto& r, auto& y, auto& mean) {
         const auto real = r.out.select(1, 0), fake = r.out.select(1, 1);
         const auto n = y.size(0);
         const auto a = F::softplus(fake - mean(real.sum(), n)).sum(),
                    b = F::softplus(mean(fake.sum(), n) - real).sum();
         return mean(a + b, n);
       }},
      {"variance by means of means",
       [](auto& r, auto& y, auto& mean) {
         const auto count = r.out.numel();
         const auto center = mean(r.out.sum(), count);
         const auto variance = mean((r.out - center).pow(2).sum(), count);
         const auto skew = mean(((r.out - center) / (variance + 1).sqrt()).pow(3).sum(), count);
         return skew + center * r.kl + variance * y.size(1);
       }},
      {"ratio of means",
       [](auto& r, auto& y, auto& mean) {
         return mean(squares(r.out, y), y.size(0)) / (1 + mean(r.out.pow(2).sum() * r.rms, y.numel()));
       }},
      {"a count that differs from the samples",
       [](auto& r, auto& y, auto& mean) {
         const auto chosen = y.select(1, 0) > 0;
         const auto count = chosen.sum().template item<int64_t>();
         return mean((r.out.sum(1) * chosen).pow(2).sum() + r.kl * count, count);
       }},
      {"constants", [](auto& r, auto& y, auto& mean) { return mean(squares(r.out, y) + 3.0 * y.size(0), y.size(0)); }},
      {"a mean that is not differentiated",
       [](auto& r, auto& y, auto& mean) {
         const torch::Tensor scale = mean(r.out.pow(2).sum(), y.size(0)).detach();
         return mean(squares(r.out, y) / scale, y.size(0));
       }},
  };
}

struct Layout {
  ap::Options options;
  std::vector<int64_t> local;
};

std::vector<Layout> layouts() {
  return {{{}, {8}},
          {{.stages = 2, .microbatches = 3, .replicas = {1, 1}}, {5, 3}},
          {{.stages = 1, .microbatches = 2, .replicas = {2}}, {4, 4}},
          {{.stages = 2, .microbatches = 2, .replicas = {2, 1}}, {2, 5, 1}},
          {{.stages = 2, .microbatches = 1, .replicas = {2, 2}}, {3, 0, 4, 1}}};
}

void on_ranks(const Layout& layout, const std::function<void(ap::World&)>& body) {
  torch::set_num_threads(1);
  CHECK_NOTHROW(ap::loopback::run(static_cast<int>(layout.local.size()), body));
}

Tensor mine(const Tensor& whole, const Layout& layout, const ap::World& world) {
  return numerics::share_of(whole, 0, layout.local, world.rank()).clone();
}

Mean mean_over(ap::World& world) {
  return [&world](const Tensor& sum, int64_t count) { return ap::global_mean(world, sum, count); };
}
Tensor mean_alone(const Tensor& sum, int64_t count) { return sum / count; }

template <class Model, class Module>
void check_gradients(Model& model, Module& reference, const std::string& when) {
  const auto expected = reference.named_parameters();
  for (const auto& item : model->named_parameters()) {
    if (!model->owns(item.value())) continue;
    check_close(item.value().grad(), expected[item.key()].grad(), kTolerance, when + ", gradient of " + item.key());
  }
}

TEST_CASE("outside loss: global_mean gradients equal one process") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 3});
  for (const auto& program : programs()) {
    const auto reference = made<Net>();
    const auto own_x = x.clone().requires_grad_();
    const auto expected = program.loss(reference->forward(own_x), y, mean_alone);
    expected.backward();
    for (const auto& layout : layouts()) {
      INFO(program.name << ", " << layout.local.size() << " ranks, " << layout.options.stages << " stages");
      on_ranks(layout, [&](ap::World& world) {
        ap::AutoParallel<Net> model(world, made<Net>(), layout.options);
        const auto its_x = mine(x, layout, world).requires_grad_();
        const auto loss = program.loss(model(its_x), mine(y, layout, world), mean_over(world));
        check_close(loss, expected, kTolerance, "loss");
        loss.backward();
        check_gradients(model, *reference, "outside");
        check_close(its_x.grad(), mine(own_x.grad(), layout, world), kTolerance, "gradient of the argument");
      });
    }
  }
}

/// Has a batched argument, into which results of another model may go.
struct Critic : nets::Sequence {
  Critic() : Sequence(nn::Sequential{nn::Linear(4, 6), nn::Tanh(), nn::Linear(6, 1)}) {}
};
/// The same with its loss inside.
struct Judge : Critic {
  Tensor forward(const Tensor& x) { return torch::sigmoid(Critic::forward(x)).mean(); }
};

template <class Second>
Tensor chained(const Results& first, const Tensor& y, const Mean& mean, Second& second) {
  const auto spread = mean(first.out.pow(2).sum(), y.size(0));
  const auto all_have = (first.kl * spread).expand({y.size(0), 1});
  return second(torch::cat({first.out * first.rms, all_have}, 1)) * 1.0;
}

TEST_CASE("replicated result fed to another model: gradients are exact") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 3});
  const auto first = made<Net>();
  const auto critic = made<Critic>();
  const auto judge = made<Judge>();
  const auto call_critic = [&](const Tensor& in) { return critic->forward(in); };
  const auto call_judge = [&](const Tensor& in) { return judge->forward(in); };
  const auto results = first->forward(x);
  (chained(results, y, mean_alone, call_critic).sum() / 8 + results.kl + chained(results, y, mean_alone, call_judge))
      .backward();
  for (const auto& layout : layouts()) {
    on_ranks(layout, [&](ap::World& world) {
      ap::AutoParallel<Net> net(world, made<Net>(), layout.options);
      ap::AutoParallel<Critic> own_critic(world, made<Critic>(), layout.options);
      ap::AutoParallel<Judge> own_judge(world, made<Judge>(), layout.options);
      const auto mean = mean_over(world);
      const auto own_y = mine(y, layout, world);
      const auto own = net(mine(x, layout, world));
      const auto score = chained(own, own_y, mean, own_critic).sum();
      (mean(score, own_y.size(0)) + own.kl + chained(own, own_y, mean, own_judge)).backward();
      check_gradients(net, *first, "first");
      check_gradients(own_critic, *critic, "critic");
      check_gradients(own_judge, *judge, "judge");
    });
  }
}

struct Loss : Net {
  Tensor forward(const Tensor& x, const Tensor& y) { return F::mse_loss(Net::forward(x).out, y); }
};

TEST_CASE("global_mean of a model's loss: gradients equal one process") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 3});
  const auto reference = made<Loss>();
  (reference->forward(x, y).exp() * 3).backward();
  for (const auto& layout : layouts()) {
    on_ranks(layout, [&](ap::World& world) {
      ap::AutoParallel<Loss> model(world, made<Loss>(), layout.options);
      const auto own_y = mine(y, layout, world);
      const auto loss = model(mine(x, layout, world), own_y);
      ap::global_mean(world, loss.exp() * 3 * own_y.size(0), own_y.size(0)).backward();
      check_gradients(model, *reference, "loss inside");
    });
  }
}

TEST_CASE("penalty term: added to a global_mean, refused inside it") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 3});
  const auto reference = made<Net>();
  (squares(reference->forward(x).out, y) / 8 + 0.1 * reference->first->weight.pow(2).sum()).backward();
  for (const auto& layout : layouts()) {
    on_ranks(layout, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made<Net>(), layout.options);
      const auto n = mine(y, layout, world).size(0);
      const auto its_x = mine(x, layout, world), its_y = mine(y, layout, world);
      const auto& weight = model->module().first->weight;
      const auto term = [&] { return model->owns(weight) ? 0.1 * weight.pow(2).sum() : torch::zeros({}); };
      if (world.size() > 1) {
        const auto loss = squares(model(its_x).out, its_y);
        std::string message;
        try {
          (void)ap::global_mean(world, loss + term() * n, n);
        } catch (const ap::InvalidArgument& error) {
          message = error.what();
        }
        if (message.find("parameter of the model") == std::string::npos)
          throw numerics::Failure("not refused: " + message);
      }
      const auto mean = ap::global_mean(world, squares(model(its_x).out, its_y), n);
      (mean + term()).backward();
      check_gradients(model, *reference, "the way out");
    });
  }
}

/// What every rank meets; empty = nothing.
std::vector<std::string> messages_of(int ranks, const std::function<void(ap::World&)>& body) {
  std::vector<std::string> messages(static_cast<size_t>(ranks));
  ap::loopback::run(ranks, [&](ap::World& world) {
    try {
      body(world);
    } catch (const ap::InvalidArgument& error) {
      messages[static_cast<size_t>(world.rank())] = error.what();
    }
  });
  return messages;
}

TEST_CASE("rank-local loss of replicated values: refused on all ranks") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4});
  const std::vector<std::function<Tensor(const Results&, const Mean&)>> losses{
      [](auto& r, auto& mean) { return F::softplus(r.out - mean(r.out.sum(), r.out.size(0))).sum() / 8; },
      [](auto& r, auto&) { return r.out.sum() * r.kl / 8; },
      [](auto& r, auto&) { return r.out.sum() * r.rms / 8; },
  };
  for (const auto& loss : losses) {
    const auto messages = messages_of(2, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made<Net>(), {.stages = 2, .microbatches = 1});
      const auto own = x.chunk(2)[static_cast<size_t>(world.rank())];
      loss(model(own), mean_over(world)).backward();
    });
    for (const auto& message : messages) {
      CAPTURE(message);
      CHECK(message.find("rank 0") != std::string::npos);
      CHECK(message.find("rank 1") != std::string::npos);
      CHECK(message.find("ap::global_mean") != std::string::npos);
    }
  }
}

TEST_CASE("global_mean: sums with differing dependencies are refused") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4});
  for (const int way : {0, 1}) {
    const auto messages = messages_of(2, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made<Net>(), {.stages = 2, .microbatches = 1});
      const auto results = model(x.chunk(2)[static_cast<size_t>(world.rank())]);
      auto sum = results.out.sum();
      if (world.rank() == 1) sum = way == 0 ? sum.detach() : sum + results.kl;
      (void)ap::global_mean(world, sum, 4);
    });
    for (const auto& message : messages) {
      CAPTURE(message);
      CHECK(message.find("rank 0") != std::string::npos);
      CHECK(message.find("rank 1") != std::string::npos);
    }
  }
}

// ---------------------------------------------------------------- gradients that are asked for by name

TEST_CASE("autograd::grad, backward(inputs): leave other tensors alone") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 3});
  const auto loss_of = [](const Results& r, const Tensor& target, const Mean& mean) {
    return mean(squares(r.out, target) + r.kl * target.size(0), target.size(0)) + r.rms;
  };
  const auto reference = made<Net>();
  const auto its_x = x.clone().requires_grad_();
  const auto named = reference->parameters();
  auto inputs = named;
  inputs.push_back(its_x);
  const auto wanted = torch::autograd::grad({loss_of(reference->forward(its_x), y, mean_alone)}, inputs);
  const auto inside = made<Loss>();
  const auto wanted_inside = torch::autograd::grad({inside->forward(its_x, y) * 2}, {its_x, inside->first->weight});
  for (const auto& layout : layouts()) {
    on_ranks(layout, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made<Net>(), layout.options);
      ap::AutoParallel<Loss> loss_model(world, made<Loss>(), layout.options);
      const auto own_x = mine(x, layout, world).requires_grad_(), own_y = mine(y, layout, world);
      const auto loss = [&] { return loss_of(model(own_x), own_y, mean_over(world)); };
      const auto untouched = [&](const std::string& when) {
        for (const auto& item : model->named_parameters()) {
          if (item.value().grad().defined()) throw numerics::Failure(when + " gave a gradient to " + item.key());
        }
        for (const auto& parameter : loss_model->module().parameters()) {
          if (parameter.grad().defined()) throw numerics::Failure(when + " gave a gradient to a parameter");
        }
      };
      check_close(torch::autograd::grad({loss()}, {own_x})[0], mine(wanted.back(), layout, world), kTolerance, "grad");
      torch::autograd::backward({loss()}, {}, false, false, {own_x});
      check_close(own_x.grad(), mine(wanted.back(), layout, world), kTolerance, "backward(inputs)");
      check_close(torch::autograd::grad({loss_model(own_x, own_y) * 2}, {own_x})[0],
                  mine(wanted_inside[0], layout, world), kTolerance, "grad of a model's loss");
      untouched("the gradient of an argument");

      auto asked = model->owned_parameters();
      asked.push_back(own_x);  // a rank may own none
      const auto found = torch::autograd::grad({loss()}, asked);
      check_close(found.back(), mine(wanted.back(), layout, world), kTolerance, "grad of an argument, too");
      const auto its_loss = loss_model(own_x, own_y) * 2;
      const auto weight = loss_model->module().first->weight;
      std::vector<Tensor> of_loss;
      if (loss_model->owns(weight)) of_loss = torch::autograd::grad({its_loss}, {weight});
      untouched("torch::autograd::grad of parameters");
      torch::autograd::backward({loss()}, {}, false, false, model->parameters());
      for (size_t i = 0, o = 0; i < named.size(); ++i) {
        const auto handle = model->parameters()[i];
        if (!model->owns(handle)) continue;
        check_close(found[o++], wanted[i], kTolerance, "grad of a parameter");
        check_close(handle.grad(), wanted[i], kTolerance, "backward(inputs = parameters)");
      }
      if (loss_model->owns(weight)) {
        check_close(of_loss[0], wanted_inside[1], kTolerance, "grad of a parameter of a loss");
      }
      check_close(own_x.grad(), mine(wanted.back(), layout, world), kTolerance, "an argument that was not named");
    });
  }
}

TEST_CASE("adversarial training: equals one process") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 3});
  const auto reference = made<Loss>();
  torch::optim::SGD reference_optimizer(reference->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto step = [](auto& model, auto& optimizer, const Tensor& in, const Tensor& target) {
    const auto clean = in.clone().requires_grad_();
    optimizer.zero_grad();
    const auto direction = torch::autograd::grad({model->forward(clean, target)}, {clean})[0].sign();
    model->forward((in + 0.1 * direction).detach(), target).backward();
    optimizer.step();
  };
  for (int i = 0; i < 3; ++i) step(reference, reference_optimizer, x, y);
  for (const auto& layout : layouts()) {
    on_ranks(layout, [&](ap::World& world) {
      ap::AutoParallel<Loss> model(world, made<Loss>(), layout.options);
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int i = 0; i < 3; ++i) step(model, optimizer, mine(x, layout, world), mine(y, layout, world));
      check_gradients(model, *reference, "adversarial");
    });
  }
}

TEST_CASE("unavailable or differing gradients: refused on every rank") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4});
  const ap::Options options{.stages = 2, .microbatches = 1};
  const auto own = [&](const ap::World& world) { return x.chunk(2)[static_cast<size_t>(world.rank())]; };
  const auto elsewhere = messages_of(2, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made<Net>(), options);
    const auto loss = ap::global_mean(world, model(own(world)).out.pow(2).sum(), 4);
    (void)torch::autograd::grad({loss}, model->parameters());
  });
  const auto differently = messages_of(2, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made<Net>(), options);
    const auto in = own(world).clone().requires_grad_();
    const auto loss = ap::global_mean(world, model(in).out.pow(2).sum(), 4);
    if (world.rank() == 0)
      loss.backward();
    else
      (void)torch::autograd::grad({loss}, {in});
  });
  const auto later = messages_of(2, [&](ap::World& world) {
    ap::AutoParallel<Loss> model(world, made<Loss>(), options);
    const auto loss = model(own(world), torch::ones({4, 3}));
    if (world.rank() == 0) loss.backward();
    (void)model(own(world), torch::ones({4, 3}));
  });
  for (const size_t rank : {0, 1}) {
    CAPTURE(elsewhere[rank], differently[rank], later[rank]);
    CHECK(elsewhere[rank].find("has no data there") != std::string::npos);
    CHECK(elsewhere[rank].find("owned_parameters") != std::string::npos);
    for (const auto& message : {differently[rank], later[rank]}) {
      CHECK(message.find("rank 0") != std::string::npos);
      CHECK(message.find("rank 1") != std::string::npos);
    }
    CHECK(later[rank].find("backward for the model's losses") != std::string::npos);
  }
}

// ---------------------------------------------------------------- said once

TEST_CASE("rank-local loss: one warning with both ways to a global mean") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 3});
  const auto warnings = [&](int ranks,
                            const std::function<void(ap::World&, ap::AutoParallel<Net>&, Tensor, Tensor)>& step) {
    std::vector<std::string> lines;
    std::mutex mutex;
    ap::loopback::run(ranks, [&](ap::World& world) {
      world.log().set_writer([&](const std::string& line) {
        const std::lock_guard lock(mutex);
        if (line.find("outside the model") != std::string::npos) lines.push_back(line);
      });
      ap::AutoParallel<Net> model(world, made<Net>(), {.microbatches = 1});
      const auto part = [&](const Tensor& whole) { return whole.chunk(ranks)[static_cast<size_t>(world.rank())]; };
      for (int i = 0; i < 2; ++i) step(world, model, part(x), part(y));
    });
    return lines;
  };
  const auto plain = [](auto&, auto& model, auto in, auto target) { F::mse_loss(model(in).out, target).backward(); };
  const auto lines = warnings(2, plain);
  REQUIRE(lines.size() == 1);
  CAPTURE(lines[0]);
  CHECK(lines[0].find("2 x those of one process") != std::string::npos);
  CHECK(lines[0].find("model->train_step(") != std::string::npos);
  CHECK(lines[0].find("ap::global_mean(") != std::string::npos);
  CHECK(warnings(1, plain).empty());
  CHECK(warnings(2, [](auto& world, auto& model, auto in, auto target) {
          ap::global_mean(world, squares(model(in).out, target), 4).backward();
        }).empty());
  CHECK(warnings(2, [](auto&, auto& model, auto in, auto target) {
          const auto loss = [](const Results& r, const Tensor& wanted) { return F::mse_loss(r.out, wanted); };
          model->train_step(loss, in, target).backward();
        }).empty());
  CHECK(warnings(2, [](auto&, auto& model, auto in, auto) { model(in).kl.backward(); }).empty());
}

// ---------------------------------------------------------------- ranks without samples, errors on one rank

TEST_CASE("global_mean: empty sum is ignored whatever its value") {
  const DoublePrecision guard;
  const auto x = torch::randn({5, 4}), y = torch::randn({5, 3});
  const auto reference = made<Net>();
  const auto results = reference->forward(x);
  const auto expected = F::mse_loss(results.out, y) * results.kl;
  expected.backward();
  for (const std::vector<int64_t>& local : {std::vector<int64_t>{5, 0}, {0, 3, 2}}) {
    const Layout layout{{.stages = 2, .microbatches = 2}, local};
    on_ranks(layout, [&](ap::World& world) {
      ap::AutoParallel<Net> model(world, made<Net>(), layout.options);
      const auto own_y = mine(y, layout, world);
      const auto n = own_y.size(0);
      const auto own = model(mine(x, layout, world));
      const auto loss = ap::global_mean(world, F::mse_loss(own.out, own_y) * own.kl * n, n);
      check_close(loss, expected, kTolerance, "loss");
      loss.backward();
      check_gradients(model, *reference, "a rank without samples");
    });
  }
}

TEST_CASE("error before a step begins: all ranks know it and continue") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 3});
  const auto reference = made<Loss>();
  reference->forward(x, y).backward();
  const Layout layout{{.stages = 2, .microbatches = 2}, {5, 3}};
  std::vector<std::string> messages(2);
  on_ranks(layout, [&](ap::World& world) {
    ap::AutoParallel<Loss> model(world, made<Loss>(), layout.options);
    const auto own_x = mine(x, layout, world), own_y = mine(y, layout, world);
    auto& message = messages[static_cast<size_t>(world.rank())];
    for (const bool begun : {false, true}) {
      try {
        (void)model(own_x, world.rank() == 1 ? own_y.narrow(0, 0, 2) : own_y);
        throw numerics::Failure("not refused");
      } catch (const ap::InvalidArgument& error) {
        message = error.what();
      }
      model->zero_grad();
      if (!begun) (void)model(own_x, own_y);
    }
    model(own_x, own_y).backward();
    check_gradients(model, *reference, "after the error");
  });
  CAPTURE(messages[0], messages[1]);
  CHECK(messages[0].find("rank 1 cannot make this call of forward") != std::string::npos);
  CHECK(messages[0].find("has 2 samples") != std::string::npos);
  CHECK(messages[1].find("has 2 samples") != std::string::npos);
}

TEST_CASE("rank leaving a step by exception: is named, all continue") {
  const DoublePrecision guard;
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 3});
  const Layout layout{{.stages = 2, .microbatches = 2}, {5, 3}};
  const auto reference = made<Net>();
  (squares(reference->forward(x).out, y) / 8).backward();
  std::vector<std::string> messages(2);
  on_ranks(layout, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made<Net>(), layout.options);
    const auto own_x = mine(x, layout, world), own_y = mine(y, layout, world);
    bool bad = world.rank() == 1;
    for (int done = 0; done < 2;) {
      try {
        model->zero_grad();
        const auto out = model(own_x).out;
        if (std::exchange(bad, false)) throw std::runtime_error("a bad sample");
        ap::global_mean(world, squares(out, own_y), own_y.size(0)).backward();
        ++done;
      } catch (const std::exception& error) {
        messages[static_cast<size_t>(world.rank())] += std::string(error.what()) + "\n";
      }
    }
    check_gradients(model, *reference, "the last step");
  });
  CAPTURE(messages[0], messages[1]);
  for (const auto& message : messages) {
    CHECK(message.find("rank 0 is in 'global_mean', rank 1 is in 'forward'") != std::string::npos);
  }
  CHECK(std::count(messages[0].begin(), messages[0].end(), '\n') == 1);
  CHECK(std::count(messages[1].begin(), messages[1].end(), '\n') == 2);
}

}  // namespace outside_loss_test
