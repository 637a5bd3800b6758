#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <says.hpp>

#include <functional>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

// What a user can get wrong ends in a named error on every rank, and nothing hangs.
namespace bad_input_test {

namespace ap = autopar;
namespace nn = torch::nn;
using torch::Tensor;

struct Net : nn::Module {
  using Body = std::function<Tensor(Net&, Tensor)>;
  explicit Net(Body body_in = {}, int64_t width = 4) : body(std::move(body_in)) {
    first = register_module("first", nn::Linear(4, width));
    second = register_module("second", nn::Linear(width, 4));
  }
  Tensor forward(const Tensor& x) { return body ? body(*this, x) : second(torch::relu(first(x))).pow(2).mean(); }
  Body body;
  nn::Linear first{nullptr}, second{nullptr};
};

/// What each rank met: the message, with the type's name in front; empty = nothing.
using Messages = std::vector<std::string>;

template <class Body>
Messages messages(int ranks, Body body) {
  Messages out(static_cast<size_t>(ranks));
  const auto note = [&](int rank, const std::string& type, const std::exception& error) {
    out[static_cast<size_t>(rank)] = type + ": " + error.what();
  };
  try {
    ap::loopback::run(ranks, [&](ap::World& world) {
      try {
        body(world);
      } catch (const ap::CaptureError& error) {
        note(world.rank(), "CaptureError", error);
        throw;
      } catch (const ap::InfeasiblePlan& error) {
        note(world.rank(), "InfeasiblePlan", error);
        throw;
      } catch (const ap::InvalidArgument& error) {
        note(world.rank(), "InvalidArgument", error);
        throw;
      } catch (const ap::TransportError& error) {
        note(world.rank(), "TransportError", error);
        throw;
      } catch (const ap::ConfigError& error) {
        note(world.rank(), "ConfigError", error);
        throw;
      } catch (const std::exception& error) {
        note(world.rank(), "exception", error);
        throw;
      }
    });
  } catch (const std::exception&) {  // loopback::run rethrows the first cause; `out` has all of them
  }
  return out;
}

std::shared_ptr<Net> make_net(const Net::Body& body = {}, int64_t width = 4) { return nets::made<Net>(3, body, width); }

/// Every rank trains one step.
Messages train(int ranks, const ap::Options& options, const Net::Body& body = {}) {
  return messages(ranks, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, make_net(body), options);
    model(torch::ones({4, 4})).backward();
  });
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void check_all(const Messages& got, const std::string& type, const std::vector<std::string>& parts) {
  for (const auto& message : got) {
    CAPTURE(message);
    CHECK(message.starts_with(type));
    for (const auto& part : parts) CHECK(contains(message, part));
  }
}

struct Square : torch::autograd::Function<Square> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradient) {
    return {2 * gradient[0] * context->get_saved_variables()[0]};
  }
};

TEST_CASE("valid training: is not refused") {
  for (const auto& message : train(2, {.stages = 2, .microbatches = 2})) CHECK(message.empty());
}

TEST_CASE("value read in forward: error names operator and place") {
  check_all(train(2, {},
                  [](Net& net, Tensor x) {
                    x = net.first(x);
                    return x.sum().item<float>() > 0 ? x.mean() : -x.mean();
                  }),
            "CaptureError", {"item", "first"});
  check_all(train(1, {}, [](Net& net, Tensor x) { return net.first(x).nonzero().sum().to(torch::kFloat) * x.sum(); }),
            "CaptureError", {"nonzero", "first"});
}

TEST_CASE("integer not following batch size: refused with its operator") {
  check_all(train(2, {}, [](Net& net, Tensor x) { return net.first(x).slice(0, 0, x.size(0) / 2).sum(); }),
            "CaptureError", {"slice", "first"});
  check_all(train(2, {}, [](Net& net, Tensor x) { return x.size(0) > 8 ? net.first(x).sum() : net.second(x).sum(); }),
            "CaptureError", {});
}

TEST_CASE("sample-mixing operator: refused under a splitting plan") {
  const Net::Body mixes = [](Net& net, Tensor x) {
    x = net.first(x);
    return net.second(torch::softmax(x, 0)).pow(2).mean();
  };
  for (const auto& message : train(1, {}, mixes)) CHECK(message.empty());
  check_all(train(1, {.microbatches = 2}, mixes), "CaptureError", {"softmax", "first"});
  check_all(train(2, {.stages = 1, .replicas = {2}}, mixes), "CaptureError", {"softmax"});
}

TEST_CASE("custom autograd function: error names it") {
  check_all(train(2, {}, [](Net& net, Tensor x) { return Square::apply(net.first(x)).sum(); }), "CaptureError",
            {"Square"});
}

TEST_CASE("sizes differing between ranks: error names both") {
  check_all(messages(2,
                     [&](ap::World& world) {
                       ap::AutoParallel<Net> model(
                           world, make_net([](Net& net, Tensor x) { return net.first(x.mean(1)).sum(); }));
                       model(torch::ones({4, 3 + world.rank(), 4})).backward();
                     }),
            "InvalidArgument", {"3", "4", "rank"});
}

/// The second argument is one for all samples, or not.
struct ScaledNet : nets::Linears {
  ScaledNet() : Linears(4, {{"first", 4}}) {}
  Tensor forward(const Tensor& x, const Tensor& scale) { return (Linears::forward(x) * scale).sum(); }
};

TEST_CASE("shared argument differing between ranks: is refused") {
  check_all(messages(2,
                     [&](ap::World& world) {
                       ap::AutoParallel<ScaledNet> model(world, ScaledNet(), {.batch_dims = {0, ap::kShared}});
                       model(torch::ones({4, 4}), torch::full({4}, 1.0 + world.rank())).backward();
                     }),
            "InvalidArgument", {"shared", "rank"});
}

TEST_CASE("infeasible plan: error names stage, amount, smallest change") {
  for (const auto& message : train(2, {.device_memory = ap::Bytes(200)})) {
    CAPTURE(message);
    CHECK(message.starts_with("InfeasiblePlan"));
    CHECK(contains(message, "stage"));
  }
}

TEST_CASE("contradictory options: error names both values") {
  check_all(train(2, {.stages = 2, .replicas = {1, 1, 1}}), "InvalidArgument", {"stages", "replicas", "2", "3"});
  check_all(train(2, {.stages = 2, .replicas = {2, 1}}), "InvalidArgument", {"replicas", "3", "2"});
  check_all(train(2, {.microbatches = 9, .max_microbatches = 4}), "InvalidArgument", {"microbatches", "9", "4"});
  check_all(train(2, {.stages = 99}), "InvalidArgument", {"stages", "99"});
  check_all(train(1, {.batch_dims = {0, 0}}), "InvalidArgument", {"batch_dims", "2", "1"});
}

TEST_CASE("unsupported options: are refused by name") {
  check_all(train(2, {.stages = 1, .zero = 1, .replicas = {2}}), "InvalidArgument", {"ZeRO 1", "attach"});
  check_all(train(1, {.tensor_parallel = 2}), "InvalidArgument", {"tensor_parallel"});
  ::setenv("AUTOPAR_PRECISION", "fp4", 1);
  check_all(train(1, {}), "ConfigError", {"precision", "fp4", "fp8"});
  ::unsetenv("AUTOPAR_PRECISION");
}

TEST_CASE("recompute: unknown modules are refused by name") {
  check_all(train(1, {.recompute = ap::RecomputeOption::of_modules({"nowhere"})}), "InvalidArgument",
            {"recompute", "nowhere"});
}

TEST_CASE("options differing between ranks: values and ranks are named") {
  check_all(messages(2,
                     [&](ap::World& world) {
                       ap::AutoParallel<Net> model(world, make_net(), {.microbatches = 1 + world.rank()});
                       model(torch::ones({4, 4})).backward();
                     }),
            "InvalidArgument", {"microbatches", "rank 0", "rank 1", "1", "2"});
}

TEST_CASE("models differing between ranks: are refused") {
  check_all(messages(2,
                     [&](ap::World& world) {
                       ap::AutoParallel<Net> model(world, make_net({}, 4 + world.rank()));
                       model(torch::ones({4, 4})).backward();
                     }),
            "InvalidArgument", {"rank"});
}

TEST_CASE("ranks seeded differently: rank 0's values win") {
  std::mutex mutex;
  std::vector<Tensor> weights(2);
  const auto got = messages(2, [&](ap::World& world) {
    auto net = make_net();
    {
      torch::NoGradGuard no_grad;
      if (world.rank() == 1) net->first->weight.add_(1);
    }
    ap::AutoParallel<Net> model(world, net, {.stages = 1, .replicas = {2}});
    model(torch::ones({4, 4})).backward();
    const std::lock_guard lock(mutex);
    weights[static_cast<size_t>(world.rank())] = net->first->weight.detach().clone();
  });
  for (const auto& message : got) CHECK(message.empty());
  CHECK(torch::equal(weights[0], weights[1]));
  CHECK(torch::equal(weights[0], make_net()->first->weight));
}

TEST_CASE("placeholder data: read names parameter, owner and remedy") {
  std::mutex mutex;
  int phantoms = 0;
  const auto got = messages(2, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, make_net(), {.stages = 2});
    model(torch::ones({4, 4})).backward();
    for (const auto& item : model->named_parameters()) {
      if (model->owns(item.value())) continue;
      std::string message;
      try {
        (void)item.value().sum().item<float>();
      } catch (const std::exception& error) {
        message = error.what();
      }
      const std::lock_guard lock(mutex);
      ++phantoms;
      CAPTURE(message);
      CHECK_FALSE(item.value().grad().defined());
      CHECK(contains(message, item.key()));
      CHECK(contains(message, "gather"));
      CHECK(contains(message, "rank"));
    }
  });
  for (const auto& message : got) CHECK(message.empty());
  CHECK(phantoms == 4);
}

TEST_CASE("libtorch's clip_grad_norm_ on handles: uses the global norm") {
  std::mutex mutex;
  std::vector<double> norms(2);
  const auto got = messages(2, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, make_net(), {.stages = 2});
    model(torch::ones({4, 4})).backward();
    const auto norm = torch::nn::utils::clip_grad_norm_(model->parameters(), 1e-3);
    const std::lock_guard lock(mutex);
    norms[static_cast<size_t>(world.rank())] = norm;
  });
  for (const auto& message : got) CHECK(message.empty());
  const auto net = make_net();
  net->forward(torch::ones({8, 4})).backward();
  const auto expected = torch::nn::utils::clip_grad_norm_(net->parameters(), 1e-3);
  CHECK(norms[0] == Approx(expected).epsilon(1e-5));
  CHECK(norms[1] == norms[0]);
}

TEST_CASE("forward that throws on one rank: is an error on all") {
  const auto got = messages(2, [&](ap::World& world) {
    const bool throws = world.rank() == 1;
    ap::AutoParallel<Net> model(world, make_net([throws](Net& net, Tensor x) {
                                  if (throws) throw std::domain_error("the third layer is unhappy");
                                  return net.first(x).sum();
                                }));
    model(torch::ones({4, 4})).backward();
  });
  for (const auto& message : got) {
    CAPTURE(message);
    CHECK(contains(message, "the third layer is unhappy"));
  }
}

TEST_CASE("rank leaving its loop early: is named to the others") {
  const auto got = messages(3, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, make_net());
    const int steps = world.rank() == 2 ? 1 : 3;
    for (int step = 0; step < steps; ++step) model(torch::ones({4, 4})).backward();
  });
  for (int rank = 0; rank < 2; ++rank) {
    CAPTURE(got[static_cast<size_t>(rank)]);
    CHECK(contains(got[static_cast<size_t>(rank)], "rank 2"));
  }
  CHECK(got[2].empty());
}

TEST_CASE("ranks making different calls: are told so") {
  const auto got = messages(2, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, make_net());
    if (world.rank() == 1) model->eval();
    model(torch::ones({4, 4})).backward();
  });
  check_all(got, "InvalidArgument", {"rank"});
}

TEST_CASE("ranks out of step: error names both ranks and both calls") {
  using Work = std::function<void(ap::World&, ap::AutoParallel<Net>&, Tensor & loss)>;
  const std::vector<std::pair<std::string, Work>> calls{
      {"forward",
       [](ap::World&, ap::AutoParallel<Net>& model, Tensor&) {
         model(torch::ones({4, 4}));
       }},
      {"clip_grad_norm_", [](ap::World&, ap::AutoParallel<Net>& model, Tensor&) { model->clip_grad_norm_(1.0); }},
      {"save", [](ap::World&, ap::AutoParallel<Net>& model, Tensor&) { model->save("/tmp/never-written"); }},
      {"gather", [](ap::World&, ap::AutoParallel<Net>& model, Tensor&) { static_cast<void>(model->gather_state()); }},
      {"global_mean", [](ap::World& world, ap::AutoParallel<Net>&,
                         Tensor&) { static_cast<void>(ap::global_mean(world, torch::ones({}), 4)); }},
      {"barrier", [](ap::World& world, ap::AutoParallel<Net>&, Tensor&) { world.barrier(); }},
      {"backward", [](ap::World&, ap::AutoParallel<Net>&, Tensor& loss) { loss.backward(); }}};
  const Net::Body leaves = [](Net& net, Tensor x) { return net.second(torch::relu(net.first(x))); };
  for (const auto& [name, one] : calls) {
    for (const auto& [other_name, other] : calls) {
      if (name == other_name) continue;
      INFO(name << " against " << other_name);
      const auto got = messages(2, [&, &one = one, &other = other](ap::World& world) {
        ap::AutoParallel<Net> model(world, make_net(leaves), {.stages = 2});
        auto loss = model(torch::ones({4, 4})).pow(2).sum();
        (world.rank() == 0 ? one : other)(world, model, loss);
      });
      check_all(got, "InvalidArgument", {"rank 0", "rank 1", name, other_name, "same calls in the same order"});
    }
  }
}

TEST_CASE("first call against another call: error names both") {
  const auto got = messages(2, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, make_net());
    if (world.rank() == 0)
      model(torch::ones({4, 4})).backward();
    else
      world.barrier();
  });
  check_all(got, "InvalidArgument", {"rank 0", "rank 1", "barrier"});
}

TEST_CASE("empty batches on all ranks: are an error") {
  check_all(messages(2,
                     [&](ap::World& world) {
                       ap::AutoParallel<Net> model(world, make_net());
                       model(torch::ones({0, 4})).backward();
                     }),
            "InvalidArgument", {"empty"});
}

TEST_CASE("invalid member calls: are refused by name") {
  const auto got = messages(1, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, make_net());
    CHECK_THROWS_AS(model->plan(), ap::InvalidArgument);
    CHECK_THROWS_AS(model->clone(), ap::InvalidArgument);
    model(torch::ones({4, 4})).backward();
    CHECK_THROWS_AS(model->to(torch::kHalf), ap::InvalidArgument);
    model->to(torch::Device(torch::kCPU));
    CHECK_THROWS_AS(model->deploy(ap::Plan()), ap::InvalidArgument);
    auto loss = model(torch::ones({4, 4}));
    CHECK_THROWS(torch::autograd::grad({loss}, {model->parameters()[0]}, {}, true, true));
  });
  CHECK(got[0].empty());
}

// ---------------------------------------------------------------- ways out

using RankBody = std::function<void(ap::World&)>;

/// What is refused names its way out, and what that says is accepted by every rank.
struct WayOut {
  const char* name;
  int ranks;
  RankBody refused;
  std::string type;
  std::vector<std::string> says;
  std::vector<RankBody> ways;
};

void check_ways(const std::vector<WayOut>& table) {
  for (const auto& entry : table) {
    INFO(entry.name);
    const auto got = messages(entry.ranks, entry.refused);
    check_all(got, entry.type, entry.says);
    for (const auto& message : got) {
      CHECK_FALSE(contains(message, "autopar::all_reduce"));
      CHECK_FALSE(contains(message, "batch 7"));
    }
    for (const auto& way : entry.ways) {
      for (const auto& message : messages(entry.ranks, way)) {
        CAPTURE(message);
        CHECK(message.empty());
      }
    }
  }
}

RankBody training(const ap::Options& options, const Net::Body& body = {}) {
  return [=](ap::World& world) {
    ap::AutoParallel<Net> model(world, make_net(body), options);
    model(torch::ones({4, 4})).backward();
  };
}

TEST_CASE("sample-mixing operator: remedies for the plan work") {
  const Net::Body mixes = [](Net& net, Tensor x) { return net.second(torch::softmax(net.first(x), 0)).pow(2).mean(); };
  const std::vector<std::string> says{"softmax", "leave that to the planner"};
  check_ways({
      {"micro-batches",
       1,
       training({.microbatches = 2}, mixes),
       "CaptureError",
       says,
       {training({.microbatches = 1}, mixes), training({}, mixes)}},
      {"replicas",
       2,
       training({.stages = 1, .replicas = {2}}, mixes),
       "CaptureError",
       says,
       {training({.stages = 2, .microbatches = 1, .replicas = {1, 1}}, mixes), training({}, mixes)}},
  });
}

TEST_CASE("mode that mixes samples: refused if split, else runs") {
  const Net::Body mixes = [](Net& net, Tensor x) {
    const auto y = net.second(net.first(x));
    return (net.is_training() ? y.pow(2) : y * torch::softmax(y, 0)).mean();
  };
  const auto both = [&](const ap::Options& options) -> RankBody {
    return [=](ap::World& world) {
      ap::AutoParallel<Net> model(world, make_net(mixes), options);
      model(torch::ones({4, 4})).backward();
      model->eval();
      const torch::NoGradGuard no_grad;
      model(torch::ones({4, 4}));
    };
  };
  check_ways({{"micro-batches",
               1,
               both({.microbatches = 2}),
               "CaptureError",
               {"softmax", "set microbatches = 1 and replicas to 1 for it, or leave both"},
               {both({.microbatches = 1}), both({})}},
              {"replicas",
               2,
               both({.stages = 1, .replicas = {2}}),
               "CaptureError",
               {"softmax", "set microbatches = 1 and replicas to 1 for it, or leave both"},
               {both({.stages = 1, .replicas = {1}})}}});
}

RankBody scaled(const std::vector<int>& batch_dims, const std::function<Tensor(ap::World&)>& scale) {
  return [=](ap::World& world) {
    ap::AutoParallel<ScaledNet> model(world, ScaledNet(), {.batch_dims = batch_dims});
    model(torch::ones({4, 4}), scale(world)).backward();
  };
}

TEST_CASE("ambiguous batch dimensions: remedies work") {
  const auto row = [](ap::World&) { return torch::ones({1, 4}); };
  const auto own_row = [](ap::World& world) { return torch::full({1, 4}, 1.0 + world.rank()); };
  const auto own_rows = [](ap::World& world) { return torch::full({4, 4}, 1.0 + world.rank()); };
  const RankBody accepted = scaled({0, ap::kShared}, row);
  check_ways({
      {"a dim that is not there",
       1,
       scaled({0, 3}, row),
       "InvalidArgument",
       {"[1] = 3", "or autopar::kShared"},
       {accepted}},
      {"too many dims", 1, scaled({0, 0, 0}, row), "InvalidArgument", {"give one for each tensor"}, {accepted}},
      {"other samples",
       1,
       scaled({}, row),
       "InvalidArgument",
       {"Options::batch_dims, or autopar::kShared"},
       {accepted}},
      {"shared, but not the same",
       2,
       scaled({0, ap::kShared}, own_row),
       "InvalidArgument",
       {"pass the same tensor on every rank", "give it a batch dim in Options::batch_dims"},
       {accepted, scaled({0, 0}, own_rows)}},
  });
}

TEST_CASE("differing ranks: remedies work") {
  using Count = std::function<int64_t(int)>;
  const auto with = [](const std::function<ap::Options(int)>& options, const Count& width,
                       const std::function<Net::Body(int)>& body, const Count& samples) -> RankBody {
    return [=](ap::World& world) {
      const int rank = world.rank();
      ap::AutoParallel<Net> model(world, make_net(body(rank), width(rank)), options(rank));
      model(torch::ones({samples(rank), 4})).backward();
    };
  };
  const auto same = [](int) { return ap::Options{}; };
  const auto plain = [](int) { return Net::Body(); };
  const auto four = [](int) { return int64_t{4}; };
  const auto body_of_rank = [](int rank) -> Net::Body {
    return [rank](Net& net, Tensor x) {
      const auto y = net.second(net.first(x));
      return rank == 0 ? y.sum() : y.tanh().sum();
    };
  };
  const auto body = [](int) -> Net::Body { return [](Net& net, Tensor x) { return net.second(net.first(x)).sum(); }; };
  const auto one_or_two = [](int rank) { return ap::Options{.microbatches = 1 + rank}; };
  const auto two = [](int) { return ap::Options{.microbatches = 2}; };
  const auto none = [](int) { return int64_t{0}; };
  const auto on_rank_1 = [](int rank) { return int64_t{3 * rank}; };
  check_ways({
      {"options",
       2,
       with(one_or_two, four, plain, four),
       "InvalidArgument",
       {"give every rank the same options"},
       {with(two, four, plain, four)}},
      {"widths",
       2,
       with(
           same, [](int rank) { return int64_t{4 + rank}; }, plain, four),
       "InvalidArgument",
       {"the same model on every rank"},
       {with(same, four, plain, four)}},
      {"programs",
       2,
       with(same, four, body_of_rank, four),
       "InvalidArgument",
       {"let forward not depend on the rank"},
       {with(same, four, body, four)}},
      {"no samples anywhere",
       2,
       with(same, four, plain, none),
       "InvalidArgument",
       {"at least one rank must bring a sample"},
       {with(same, four, plain, on_rank_1)}},
  });
}

TEST_CASE("invalid member calls: remedies work") {
  const auto got = messages(1, [&](ap::World& world) {
    const auto x = torch::ones({4, 4});
    ap::AutoParallel<Net> model(world, make_net());
    check_says({"call the model or prepare(args...) first"}, [&] { static_cast<void>(model->plan()); });
    model->prepare(x);
    const auto plan = model->plan();
    check_says({"call it before the first call"}, [&] { model->deploy(plan); });
    ap::AutoParallel<Net> planned(world, make_net());
    planned->deploy(plan);
    planned(x).backward();

    check_says({"convert the module before the first call"}, [&] { model->to(torch::kDouble); });
    const auto net = make_net();
    net->to(torch::kDouble);
    ap::AutoParallel<Net> of_doubles(world, net);
    of_doubles(x.to(torch::kDouble)).backward();

    check_says({"use gather_state() and construct another one"}, [&] { static_cast<void>(model->clone()); });
    auto state = model->gather_state();
    const auto copy = make_net();
    {
      const torch::NoGradGuard no_grad;
      for (auto& item : copy->named_parameters()) item.value().copy_(state[item.key()]);
    }
    CHECK(torch::allclose(copy->forward(x), model(x)));

    check_says({"choose devices with Options::device"}, [&] { model->to(torch::Device(torch::kCUDA, 0)); });
    ap::AutoParallel<Net> on_cpu(world, make_net(), {.device = ap::DeviceChoice::kCpu});
    on_cpu(x).backward();

    check_says({"use a positive number or infinity"}, [&] { static_cast<void>(on_cpu->clip_grad_norm_(1.0, -1.0)); });
    static_cast<void>(on_cpu->clip_grad_norm_(1.0, 2.0));
    static_cast<void>(on_cpu->clip_grad_norm_(1.0, std::numeric_limits<double>::infinity()));
  });
  CHECK(got[0].empty());
}

TEST_CASE("refused backward: remedies work") {
  const Net::Body leaves = [](Net& net, Tensor x) { return net.second(torch::relu(net.first(x))); };
  const auto got = messages(1, [&](ap::World& world) {
    const auto x = torch::ones({4, 4});
    ap::AutoParallel<Net> model(world, make_net(leaves));
    auto reference = make_net(leaves);
    const auto check = [&](const Tensor& loss) {
      reference->zero_grad();
      loss.backward();
      for (const auto& item : model->named_parameters()) {
        CHECK(torch::allclose(item.value().grad(), reference->named_parameters()[item.key()].grad()));
      }
    };
    const auto fresh = [&] {
      for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
      return model(x);
    };
    auto out = fresh();
    check_says({"call backward() without create_graph"}, [&] { out.sum().backward({}, std::nullopt, true); });
    fresh().sum().backward();
    check(reference->forward(x).sum());

    out = fresh();
    check_says({"add up the losses and call backward once"}, [&] { out.sum().backward({}, true); });
    out = fresh();
    (out.sum() + out.pow(2).sum()).backward();
    const auto wanted = reference->forward(x);
    check(wanted.sum() + wanted.pow(2).sum());

    check_says({"call the model again"}, [&] { out.sum().backward(); });
    fresh().sum().backward();
    check(reference->forward(x).sum());
  });
  CAPTURE(got[0]);
  CHECK(got[0].empty());
}

TEST_CASE("parameter written by forward: remedy is a write by its owner") {
  const auto halve = [](const Tensor& weight) {
    const torch::NoGradGuard no_grad;
    Tensor(weight).mul_(0.5);
  };
  const Net::Body writes = [halve](Net& net, Tensor x) {
    halve(net.first->weight);
    return net.second(torch::relu(net.first(x))).pow(2).mean();
  };
  check_ways({{"a weight",
               2,
               training({.stages = 2}, writes),
               "CaptureError",
               {"first.weight", "the forward writes into a parameter", "ap::for_whole_parameters(model, fn)"},
               {}}});
  const auto reference = make_net();
  halve(reference->first->weight);
  const auto want = reference->forward(torch::ones({8, 4}));
  const auto got = messages(2, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, make_net(), {.stages = 2});
    model->prepare(torch::ones({4, 4}));
    if (model->owns(model->module().first->weight)) halve(model->module().first->weight);
    if (!torch::allclose(model(torch::ones({4, 4})), want)) throw std::logic_error("another loss");
  });
  for (const auto& message : got) CHECK(message.empty());
}

TEST_CASE("gather: gives another rank's parameter") {
  const auto want = make_net()->first->weight.detach();
  const auto got = messages(2, [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, make_net(), {.stages = 2});
    model->prepare(torch::ones({4, 4}));
    const auto& weight = model->module().first->weight;
    if (!model->owns(weight)) check_says({"gather("}, [&] { static_cast<void>(weight.sum()); });
    if (!torch::equal(model->gather(weight), want)) throw std::logic_error("another weight");
  });
  for (const auto& message : got) CHECK(message.empty());
}

}  // namespace bad_input_test
