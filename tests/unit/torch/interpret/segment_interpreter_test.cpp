#include "torch/interpret/segment_interpreter.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <rank_memory.hpp>

#include "capture/trace/capture.hpp"
#include "torch/cost/partition.hpp"
#include "torch/passes/linear_fold.hpp"

// Recomputed segments against the same program that runs once: results, gradients, statistics, memory.
namespace stage_runner_test {

using namespace autopar;
using torch::Tensor;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

using Function = std::function<std::vector<Tensor>(const Tensor& x)>;

/// A module of parameters and layers made by a test.
struct Net : nn::Module {
  Tensor add(const std::vector<std::int64_t>& sizes) {
    return register_parameter("p" + std::to_string(parameters().size()), torch::randn(sizes, torch::kDouble) * 0.3);
  }
};

/// A captured function of one argument.
struct Program {
  std::shared_ptr<nn::Module> net;
  OpGraph graph;
  algebra::BatchSemantics plan;
  cost::AtomPartition atoms;

  Program(std::shared_ptr<nn::Module> module, const Tensor& x, const Function& function)
      : net(std::move(module)),
        graph(passes::fold_linear(trace::capture(*net, {trace::input_spec(x)},
                                                 [&](const std::vector<Tensor>& in) { return function(in[0]); }))),
        plan(algebra::analyze_batch(graph, {})),
        atoms(cost::partition_into_atoms(graph, plan)) {}

  [[nodiscard]] std::vector<OpId> stage_ops() const {
    std::vector<OpId> ops;
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      if (plan.ops[i].in_stage) ops.push_back(OpId::of(i));
    }
    return ops;
  }
  /// @param segment_of  by atom; empty = nothing is recomputed
  [[nodiscard]] std::vector<interpret::StagePart> parts(std::vector<int> segment_of) const {
    return interpret::parts_of_stage(graph, stage_ops(), {atoms.atom_of, std::move(segment_of)});
  }
  [[nodiscard]] std::vector<int> all_in_runs_of(std::size_t length) const {
    std::vector<int> segment_of;
    for (std::size_t i = 0; i < atoms.atoms.size(); ++i) segment_of.push_back(static_cast<int>(i / length));
    return segment_of;
  }
};

struct Trained {
  std::vector<Tensor> results, gradients;  ///< gradients: of x, then parameters
  std::vector<interpret::NormSample> norms;
  std::map<ValueId, int> gradients_added;
};

/// One forward and backward in a fresh environment.
class Run {
 public:
  Run(const Program& program, const std::vector<int>& segment_of, bool splits = false)
      : program_(program),
        runner_(program.graph, program.plan, program.parts(segment_of), kept(program), at::kCPU, splits),
        values_(runner_.environment()) {
    replay::bind_state(program.graph, *program.net, values_);
    slice_.draws = {5, 7};
  }

  void forward(const Tensor& x) {
    x_ = x.detach().clone().set_requires_grad(x.requires_grad());
    values_[program_.graph.inputs[0].index()] = x_;
    for (const auto& update : program_.plan.buffer_updates) {
      auto& buffer = values_[update.buffer.index()];
      if (buffer.defined()) buffer = buffer.detach().clone();
    }
    slice_.samples = slice_.batch = x.size(0);
    out_.norms.assign(program_.plan.batch_norms.size(), {});
    deferred = std::make_shared<autograd::DeferredGradients>();
    runner_.run(values_, slice_, out_.norms, deferred);
    out_.results.clear();
    for (const auto output : program_.graph.outputs) out_.results.push_back(values_[output.index()]);
    for (auto value : kept(program_)) {
      if (!program_.graph.value(value).is_leaf()) values_[value.index()].reset();
    }
  }
  Trained backward() {
    std::vector<Tensor> roots, of_roots;
    for (const auto& result : out_.results) {
      if (!result.requires_grad()) continue;
      roots.push_back(result);
      of_roots.push_back(
          torch::linspace(-1, 2, result.numel(), result.options().requires_grad(false)).cos().view(result.sizes()));
    }
    for (auto& result : out_.results) result = result.detach();
    for (const auto& item : program_.net->named_parameters()) item.value().mutable_grad() = Tensor();
    torch::autograd::backward(roots, of_roots);
    roots.clear();
    out_.gradients = {x_.grad().defined() ? x_.grad() : Tensor()};
    for (const auto& item : program_.net->named_parameters()) {
      out_.gradients.push_back(item.value().grad().defined() ? item.value().grad().clone() : Tensor());
    }
    return out_;
  }
  /// Whether nothing of a slice is left.
  [[nodiscard]] bool environment_is_clean() const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (program_.graph.values[i].kind == ValueKind::kComputed && values_[i].defined()) return false;
    }
    return true;
  }
  [[nodiscard]] const std::vector<Tensor>& results() const { return out_.results; }
  [[nodiscard]] interpret::SegmentInterpreter& runner() { return runner_; }

  std::shared_ptr<autograd::DeferredGradients> deferred;

 private:
  static std::vector<ValueId> kept(const Program& program) {
    auto keep = program.graph.outputs;
    for (const auto& update : program.plan.buffer_updates) keep.push_back(update.result);
    return keep;
  }

  const Program& program_;
  interpret::SegmentInterpreter runner_;
  replay::Environment values_;
  interpret::SliceContext slice_;
  Tensor x_;
  Trained out_;
};

Trained train(const Program& program, const std::vector<int>& segment_of, const Tensor& x) {
  Run run(program, segment_of);
  run.forward(x);
  auto out = run.backward();
  CHECK(run.environment_is_clean());
  return out;
}

void check_close(const Tensor& a, const Tensor& b, double tolerance) {
  REQUIRE(a.defined() == b.defined());
  if (!a.defined()) return;
  REQUIRE(a.sizes() == b.sizes());
  if (tolerance == 0)
    CHECK(torch::equal(a, b));
  else
    CHECK((a - b).abs().max().item<double>() <= tolerance * (1 + b.abs().max().item<double>()));
}

/// @param tolerance  of gradients, 0 = to the bit, as results are
void check_same(const Trained& a, const Trained& b, double tolerance) {
  REQUIRE(a.results.size() == b.results.size());
  for (std::size_t i = 0; i < a.results.size(); ++i) check_close(a.results[i], b.results[i], 0);
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    INFO("gradient " << i);
    check_close(a.gradients[i], b.gradients[i], tolerance);
  }
  REQUIRE(a.norms.size() == b.norms.size());
  for (std::size_t i = 0; i < a.norms.size(); ++i) {
    CHECK(a.norms[i].count == b.norms[i].count);
    check_close(a.norms[i].mean, b.norms[i].mean, 0);
    check_close(a.norms[i].variance, b.norms[i].variance, 0);
  }
}

/// Segments of every length, then sets of atoms at random, convex or not.
void check(const Program& program, const Tensor& x, double tolerance) {
  const auto once = train(program, {}, x);
  const auto atoms = program.atoms.atoms.size();
  for (std::size_t length = 1; length <= atoms; length = 2 * length + 1) {
    INFO("segments of " << length << " of " << atoms << " atoms");
    check_same(train(program, program.all_in_runs_of(length), x), once, tolerance);
  }
  std::mt19937 random(3);
  for (int round = 0; round < 8; ++round) {
    std::vector<int> segment_of;
    for (std::size_t i = 0; i < atoms; ++i) segment_of.push_back(static_cast<int>(random() % 4) - 1);
    INFO("round " << round << " of random segments");
    check_same(train(program, segment_of, x), once, tolerance);
  }
}

Tensor samples(std::vector<std::int64_t> sizes) {
  torch::manual_seed(9);
  return torch::randn(sizes, torch::kDouble).requires_grad_();
}

/// A perceptron with draws.
Program perceptron(const Tensor& x, int layers = 4, std::int64_t width = 6) {
  torch::manual_seed(3);
  const auto net = std::make_shared<Net>();
  std::vector<Tensor> weights, biases;
  for (int i = 0; i < layers; ++i) {
    weights.push_back(net->add({width, width}));
    biases.push_back(net->add({width}));
  }
  return {net, x, [=](const Tensor& in) {
            auto h = in;
            for (int i = 0; i < layers; ++i) {
              h = torch::dropout(
                  torch::tanh(F::linear(h, weights[static_cast<std::size_t>(i)], biases[static_cast<std::size_t>(i)])),
                  0.4, true);
            }
            return std::vector<Tensor>{h.pow(2).sum()};
          }};
}

TEST_CASE("SegmentInterpreter: layers with dropout are exact to the bit") {
  const auto x = samples({5, 6});
  check(perceptron(x), x, 0);
}

TEST_CASE("SegmentInterpreter: residual attention with shared weights") {
  torch::manual_seed(3);
  const auto net = std::make_shared<Net>();
  const auto q = net->add({8, 8}), k = net->add({8, 8}), v = net->add({8, 8}), o = net->add({8, 8}),
             scale = net->add({8});
  const auto x = samples({3, 5, 8});
  const Program program(net, x, [=](const Tensor& in) {
    auto h = in.contiguous();  // nothing to do: the argument itself
    for (int layer = 0; layer < 2; ++layer) {
      const auto n = torch::layer_norm(h, {8}, scale);
      const auto heads = [&](const Tensor& w) { return F::linear(n, w).view({-1, 5, 2, 4}).transpose(1, 2); };
      const auto a = at::scaled_dot_product_attention(heads(q), heads(k), heads(v), {}, 0.2, true);
      h = h + F::linear(a.transpose(1, 2).reshape({-1, 5, 8}), o);
    }
    const auto best = h.argmax(-1);
    const auto chosen = h.gather(-1, best.unsqueeze(-1)).squeeze(-1);
    return std::vector<Tensor>{chosen.sum() + (h * scale).sum(), best, h};
  });
  check(program, x, 1e-12);
}

TEST_CASE("SegmentInterpreter: in-place writes and views") {
  torch::manual_seed(3);
  const auto net = std::make_shared<Net>();
  const auto a = net->add({8, 6}), b = net->add({6, 8});
  const auto x = samples({4, 6});
  const Program program(net, x, [=](const Tensor& in) {
    auto h = F::linear(in, a);
    auto left = h.narrow(1, 0, 4);
    h.add_(1.0);
    left.mul_(0.5);
    torch::relu_(h);
    auto y = F::linear(h + left.repeat({1, 2}), b);
    auto rows = torch::zeros_like(y);
    rows.narrow(1, 1, 3).copy_(y.narrow(1, 0, 3));
    rows.masked_fill_(rows > 2, 2.0);
    return std::vector<Tensor>{(rows * y).sum(), y.narrow(1, 2, 2)};
  });
  check(program, x, 1e-12);
}

struct NormNet : nn::Module {
  NormNet() {
    to(torch::kDouble);
    nets::register_all(*this, "a", a, "norm", norm, "b", b);
    steps = register_buffer("steps", torch::zeros({}, torch::kDouble));
    to(torch::kDouble);
  }
  std::vector<Tensor> operator()(const Tensor& x) {
    steps.add_(1);
    const auto h = torch::relu(norm(a(x)) * steps);
    return {b(torch::dropout(h, 0.3, true)).pow(2).sum()};
  }
  nn::Linear a{5, 7};
  nn::BatchNorm1d norm{7};
  nn::Linear b{7, 3};
  Tensor steps;
};

TEST_CASE("SegmentInterpreter: batch statistics are updated once") {
  torch::manual_seed(3);
  const auto net = std::make_shared<NormNet>();
  const auto x = samples({6, 5});
  const Program program(net, x, [&](const Tensor& in) { return (*net)(in); });
  check(program, x, 0);
  CHECK(net->steps.item<double>() == 0);  // slices write copies
  CHECK(torch::equal(net->norm->running_mean, torch::zeros({7}, torch::kDouble)));

  Run run(program, program.all_in_runs_of(100));
  run.forward(x);
  const auto before = run.results()[0].item<double>();
  net->norm->running_mean.fill_(3);  // what the call does in the end, before backwards of results
  net->steps.fill_(9);
  const auto again = run.backward();
  net->norm->running_mean.fill_(0);
  net->steps.fill_(0);
  CHECK(again.results[0].item<double>() == before);
  check_same(again, train(program, {}, x), 0);
}

TEST_CASE("SegmentInterpreter: gradients accumulate once per backward") {
  torch::manual_seed(3);
  const auto net = std::make_shared<Net>();
  const auto a = net->add({4, 4}), b = net->add({4, 4});
  const auto x = samples({3, 4});
  const Program program(net, x, [=](const Tensor& in) {
    return std::vector<Tensor>{F::linear(torch::tanh(F::linear(torch::tanh(F::linear(in, a)), b)), a).sum()};
  });
  for (const auto& segments :
       {std::vector<int>{}, program.all_in_runs_of(1), program.all_in_runs_of(2), program.all_in_runs_of(9)}) {
    std::map<std::string, int> added;
    std::vector<std::pair<Tensor, unsigned>> hooks;
    for (const auto& item : net->named_parameters()) {
      hooks.emplace_back(item.value(),
                         item.value().register_hook([&added, name = item.key()](const Tensor&) { ++added[name]; }));
    }
    train(program, segments, x);
    CHECK(added == std::map<std::string, int>{{"p0", 1}, {"p1", 1}});
    for (auto& [parameter, hook] : hooks) parameter.remove_hook(hook);
  }
}

TEST_CASE("SegmentInterpreter: recomputed segments defer nothing") {
  const auto x = samples({5, 6});
  const auto program = perceptron(x, 3);
  auto segments = program.all_in_runs_of(100);
  Run all(program, segments, true);
  CHECK(all.runner().deferrable().empty());
  all.forward(x);
  const auto whole = all.backward();
  all.deferred->compute([](ValueId, const Tensor&) { FAIL("nothing may be deferred"); });
  check_same(whole, train(program, {}, x), 0);

  std::fill(segments.begin() + static_cast<std::ptrdiff_t>(segments.size() / 2), segments.end(), -1);
  Run half(program, segments, true);
  CHECK_FALSE(half.runner().deferrable().empty());
  half.forward(x);
  auto parted = half.backward();
  std::vector<std::string> names;
  for (const auto& item : program.net->named_parameters()) names.push_back(item.key());
  half.deferred->compute([&](ValueId parameter, const Tensor& gradient) {
    const auto at = std::find(names.begin(), names.end(), program.graph.value(parameter).name) - names.begin();
    auto& sum = parted.gradients[static_cast<std::size_t>(at) + 1];
    CHECK_FALSE(sum.defined());
    sum = gradient;
  });
  check_same(parted, train(program, {}, x), 0);
}

TEST_CASE("SegmentInterpreter: keeps inputs, frees what it recomputed") {
  const auto x = samples({64, 32}).detach();
  const auto program = perceptron(x, 16, 32);
  constexpr std::int64_t value = 64 * 32 * 8;
  const auto measure = [&](const std::vector<int>& segment_of) {
    auto& ledger = RankMemory::install().open();
    const RankMemory::Scope scope(ledger);
    Run run(program, segment_of);
    run.forward(x);
    run.backward();
    const auto before = ledger.live();  // gradients, and the sum that the next forward replaces
    ledger.forget_peak();
    run.forward(x);
    const auto kept = ledger.live() - before;
    run.backward();
    return std::vector<std::int64_t>{kept, ledger.peak() - before};
  };
  const auto once = measure({}), again = measure(program.all_in_runs_of(program.atoms.atoms.size() / 4));
  CHECK(once[0] >= 16 * 3 * value);  // of each layer what enters it, tanh's result and the mask
  CHECK(again[0] <= 5 * value);      // four segments: what enters them, and the argument
  CHECK(again[1] <= again[0] + 4 * 3 * value + 4 * value + 16 * 32 * 33 * 8);
  CHECK(again[1] < once[1] / 2);
}

TEST_CASE("SegmentInterpreter: a small view is saved by its elements") {
  constexpr std::int64_t kRows = 64, kWide = 512, kNarrow = 4, kElement = 8;
  torch::manual_seed(3);
  const auto net = std::make_shared<Net>();
  const auto a = net->add({kWide, 8}), b = net->add({8, kNarrow});
  const auto x = samples({kRows, 8});
  const Program program(net, x, [=](const Tensor& in) {
    const auto wide = torch::tanh(F::linear(in, a)).view({-1, kWide / kNarrow, kNarrow});
    const auto column = wide.select(1, 3), spread = wide.narrow(1, 5, 1).expand({-1, 2, kNarrow});
    return std::vector<Tensor>{torch::tanh(F::linear(torch::tanh(column), b)).pow(2).sum() + spread.exp().sum()};
  });
  check(program, x, 0);

  const Program alone(net, x, [=](const Tensor& in) {
    const auto column = torch::tanh(F::linear(in, a)).view({-1, kWide / kNarrow, kNarrow}).select(1, 3);
    return std::vector<Tensor>{torch::tanh(F::linear(torch::tanh(column), b)).pow(2).sum()};
  });
  std::vector<int> segment_of(alone.atoms.atoms.size(), 1);
  for (std::size_t i = 0; i < alone.graph.ops.size(); ++i) {
    segment_of[alone.atoms.atom_of[i].index()] = 0;
    if (alone.graph.name(OpId::of(i)) == "aten::select") break;
  }
  Run run(alone, segment_of);
  REQUIRE(run.runner().segments().size() == 2);
  auto& ledger = RankMemory::install().open();
  const RankMemory::Scope scope(ledger);
  run.forward(x);
  CHECK(ledger.live() >= kRows * (8 + kNarrow) * kElement);
  CHECK(ledger.live() <= kRows * (8 + kNarrow) * kElement + 1024);  // the wide value takes 256 KiB
}

TEST_CASE("SegmentInterpreter: without gradients nothing is saved") {
  const auto x = samples({64, 32}).detach();
  const auto program = perceptron(x, 8, 32);
  Run run(program, program.all_in_runs_of(3));
  auto& ledger = RankMemory::install().open();
  const RankMemory::Scope scope(ledger);
  const torch::NoGradGuard no_grad;
  run.forward(x);
  CHECK_FALSE(run.results()[0].requires_grad());
  CHECK(ledger.live() <= 64 * 32 * 8 + 8);  // the argument's copy and the sum
}

TEST_CASE("SegmentInterpreter: recomputation uses the captured casts") {
  torch::manual_seed(3);
  const auto net = std::make_shared<Net>();
  const auto a = net->add({6, 6}), b = net->add({6, 6});
  net->to(torch::kFloat);
  const auto x = samples({4, 6}).detach().to(torch::kFloat);
  struct Autocast {
    explicit Autocast(bool on) : before(at::autocast::is_autocast_enabled(at::kCPU)) {
      at::autocast::set_autocast_enabled(at::kCPU, on);
    }
    ~Autocast() {
      at::autocast::set_autocast_enabled(at::kCPU, before);
      at::autocast::clear_cache();
    }
    bool before;
  };
  const auto function = [=](const Tensor& in) {
    auto h = torch::tanh(F::linear(in, a));
    {
      const Autocast off(false);
      h = F::linear(h.to(torch::kFloat), b);
    }
    return std::vector<Tensor>{F::linear(torch::tanh(h), b).to(torch::kFloat).sum()};
  };
  const auto program = [&] {
    const Autocast on(true);
    return Program(net, x, function);
  }();
  const auto once = train(program, {}, x);
  for (const bool in_forward : {false, true}) {
    for (const bool in_backward : {false, true}) {
      for (const std::size_t length : {1, 3, 100}) {
        Run run(program, program.all_in_runs_of(length));
        {
          const Autocast state(in_forward);
          run.forward(x);
        }
        const Autocast state(in_backward);
        const c10::impl::ExcludeDispatchKeyGuard as_the_engine_does(c10::autocast_dispatch_keyset);
        check_same(run.backward(), once, 0);
      }
    }
  }
}

int calls_until_failure = 0;
Tensor fragile(const Tensor& x) {
  if (--calls_until_failure == 0) throw std::runtime_error("fragile broke");
  return x * 2;
}
TORCH_LIBRARY(stage_runner_test, library) { library.def("fragile(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(stage_runner_test, CPU, library) { library.impl("fragile", fragile); }
TORCH_LIBRARY_IMPL(stage_runner_test, Meta, library) {
  library.impl("fragile", [](const Tensor& x) { return torch::empty_like(x); });
}

TEST_CASE("SegmentInterpreter: a failed recomputation leaves no trace") {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("stage_runner_test::fragile", "").typed<Tensor(const Tensor&)>();
  torch::manual_seed(3);
  const auto net = std::make_shared<Net>();
  const auto a = net->add({6, 6});
  const auto x = samples({4, 6});
  calls_until_failure = -1;
  const Program program(net, x, [=](const Tensor& in) {
    const auto h = torch::tanh(F::linear(in, a));
    return std::vector<Tensor>{(h * op.call(h.detach())).sum()};
  });
  const auto once = train(program, {}, x);
  Run run(program, program.all_in_runs_of(100));
  calls_until_failure = 2;
  run.forward(x);
  CHECK_THROWS_WITH(run.backward(), Catch::Contains("fragile broke"));
  CHECK(run.environment_is_clean());
  run.forward(x);
  check_same(run.backward(), once, 0);
}

TEST_CASE("SegmentInterpreter: a changed input is an error") {
  const auto x = samples({5, 6});
  const auto program = perceptron(x);
  for (const auto& segments : {std::vector<int>{}, program.all_in_runs_of(3)}) {
    Run run(program, segments);
    run.forward(x);
    {
      const torch::NoGradGuard no_grad;
      program.net->parameters()[2].mul_(1.0);
    }
    CHECK_THROWS_WITH(run.backward(), Catch::Contains("modified by an inplace operation"));
    CHECK(run.environment_is_clean());
  }
}

TEST_CASE("segments: parts are disjoint and in executable order") {
  const auto x = samples({5, 6});
  const auto program = perceptron(x);
  CHECK(program.parts({}).size() == 1);
  CHECK(program.parts(std::vector<int>(program.atoms.atoms.size(), -1)).size() == 1);
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    std::vector<int> segment_of;
    for (std::size_t i = 0; i < program.atoms.atoms.size(); ++i)
      segment_of.push_back(static_cast<int>(random() % 3) - 1);
    std::vector<OpId> all;
    std::vector<bool> made(program.graph.values.size(), false);
    for (const auto& part : program.parts(segment_of)) {
      CHECK(std::is_sorted(part.ops.begin(), part.ops.end()));
      for (const auto op : part.ops) {
        CHECK((segment_of[program.atoms.atom_of[op.index()].index()] >= 0) == part.recomputed);
        for_each_input(program.graph.op(op),
                       [&](ValueId value) { CHECK((program.graph.value(value).is_leaf() || made[value.index()])); });
        for_each_output(program.graph.op(op), [&](ValueId value) { made[value.index()] = true; });
        all.push_back(op);
      }
    }
    std::sort(all.begin(), all.end());
    CHECK((all == program.stage_ops()));
  }
}

}  // namespace stage_runner_test
