#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Results are ordinary tensors under every plan: what a loop does to them in place is what it does in one process, and
// touches nothing else.
namespace results_test {

namespace ap = autopar;
namespace nn = torch::nn;
using numerics::check_close;
using numerics::Failure;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr double kTolerance = 1e-12;

/// Results of every kind: what autograd keeps for the backward, what later layers read, one tensor twice, views of it,
/// an argument and a view of it, a parameter, a buffer, indices, a mean and what follows from it.
struct Several : nets::TwoLinears {
  Several() : TwoLinears(4, 6, 3) {
    table = register_parameter("table", torch::linspace(-1, 1, 12).view({3, 4}));
    scale = register_buffer("scale", torch::linspace(1, 2, 3));
  }
  Tensors forward(const Tensor& x) {
    const auto hidden = torch::tanh(a(x));
    const auto out = b(hidden) * scale + x.matmul(table.t());
    const auto mean = out.mean();
    return {hidden, out,           out,  out.view({-1, 3, 1}), out.slice(1, 0, 2), x,   x.slice(1, 1, 3), table,
            scale,  out.argmax(1), mean, mean.exp(),           x.mean(),           mean};
  }
  Tensor table, scale;
};

template <class Net>
std::shared_ptr<Net> made() {
  return nets::made<Net>(7);
}

/// What a loop does to a result that it has got. Of results without a gradient as of those with one.
struct Change {
  std::string name;
  std::function<void(Tensor&)> apply;
};

std::vector<Change> changes() {
  const auto is_real = [](const Tensor& tensor) { return tensor.is_floating_point(); };
  return {{"nothing", [](Tensor&) {}},
          {"relu_", [](Tensor& r) { r.relu_(); }},
          {"mul_", [](Tensor& r) { r.mul_(3); }},
          {"tanh_ after mul_", [=](Tensor& r) { is_real(r) ? r.mul_(2).tanh_() : r.neg_(); }},
          {"unsqueeze_", [](Tensor& r) { r.unsqueeze_(0); }},
          {"transpose_", [](Tensor& r) { r.dim() > 1 ? r.transpose_(0, 1) : r.unsqueeze_(-1); }},
          {"squeeze_", [](Tensor& r) { r.squeeze_(); }},
          {"detach_", [](Tensor& r) { r.detach_(); }},
          {"zero_ of a part", [](Tensor& r) { r.dim() > 0 && r.size(0) > 0 ? r.select(0, 0).zero_() : r.zero_(); }},
          {"index_put_", [](Tensor& r) { r.index_put_({r < 0}, 0); }},
          {"a view, and then in place", [](Tensor& r) { r = r.unsqueeze(0).mul_(2).squeeze(0); }},
          {"requires_grad_", [=](Tensor& r) {
             if (is_real(r) && r.is_leaf()) r.requires_grad_();
           }}};
}

struct Case {
  ap::Options options;
  std::vector<int64_t> local;
};

const std::vector<Case> kCases{
    {{.stages = 1, .microbatches = 1}, {8}},
    {{.stages = 1, .microbatches = 3}, {8}},
    {{.stages = 2, .microbatches = 1, .replicas = {1, 1}}, {5, 3}},
    {{.stages = 2, .microbatches = 1, .replicas = {1, 1}}, {8, 0}},
    {{.stages = 2, .microbatches = 2, .replicas = {1, 1}}, {0, 8}},
    {{.stages = 1, .microbatches = 1, .replicas = {2}}, {4, 4}},
    {{.stages = 1, .microbatches = 2, .replicas = {2}, .recompute = ap::Recompute::kAlways}, {6, 2}},
    {{.stages = 1, .microbatches = 1, .replicas = {2}}, {7, 1}},
};

Tensor samples() { return torch::linspace(-1, 2, 32).sin().view({8, 4}); }

enum class Mode { kTrain, kEval, kNoGrad, kEvalNoGrad, kInference };
const std::vector<std::pair<Mode, std::string>> kModes{{Mode::kTrain, "train"},
                                                       {Mode::kEval, "eval"},
                                                       {Mode::kNoGrad, "no_grad"},
                                                       {Mode::kEvalNoGrad, "eval, no_grad"},
                                                       {Mode::kInference, "inference mode"}};

bool has_gradients(Mode mode) { return mode == Mode::kTrain || mode == Mode::kEval; }

/// Calls `work` with its grad mode.
template <class Work>
void in_mode(Mode mode, const Work& work) {
  std::optional<torch::NoGradGuard> no_grad;
  std::optional<c10::InferenceMode> inference;
  if (mode == Mode::kNoGrad || mode == Mode::kEvalNoGrad) no_grad.emplace();
  if (mode == Mode::kInference) inference.emplace();
  work();
}

/// A term of a loss, for each result another.
Tensor weighted(const Tensor& result, size_t i) {
  if (!result.requires_grad()) return torch::zeros({});
  return (result + result.pow(2)).sum() * (1.0 + 0.1 * static_cast<double>(i));
}

struct Expected {
  std::vector<Tensors> results;  ///< [rank]
  Tensor input_gradient;
  numerics::Snapshot gradients;
};

/// One process, with copies of its results for each rank: of batched ones its samples, and of the others the whole.
template <class Net>
Expected one_process(const Case& each, Mode mode, const Change& change) {
  const auto net = made<Net>();
  net->train(mode == Mode::kTrain || mode == Mode::kNoGrad);
  Expected expected;
  in_mode(mode, [&] {
    const auto x = samples().set_requires_grad(has_gradients(mode));
    Tensor objective = torch::zeros({});
    const auto results = net->forward(x);
    for (int rank = 0; rank < static_cast<int>(each.local.size()); ++rank) {
      Tensors own;
      for (size_t i = 0; i < results.size(); ++i) {
        const bool batched = results[i].dim() > 0 && results[i].size(0) == 8;
        auto copy = (batched ? numerics::share_of(results[i], 0, each.local, rank) : results[i]).clone();
        change.apply(copy);
        const double ranks = batched ? 1 : static_cast<double>(each.local.size());
        objective = objective + weighted(copy, i) / ranks;
        own.push_back(copy);
      }
      expected.results.push_back(own);
    }
    if (!objective.requires_grad()) return;
    objective.backward();
    expected.input_gradient = x.grad();
    expected.gradients = numerics::gradients_of(net->named_parameters());
  });
  return expected;
}

void check_ordinary(const Tensor& result, const std::string& what) {
  if (result.is_view()) throw Failure(what + ": is a view");
  if (result.has_storage() && result.storage().nbytes() != result.nbytes()) throw Failure(what + ": shares its memory");
}

void check_apart(const Tensors& results, const Tensors& others) {
  for (size_t i = 0; i < results.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (results[i].is_alias_of(results[k])) {
        throw Failure("results " + std::to_string(k) + " and " + std::to_string(i) + " share their memory");
      }
    }
    for (const auto& other : others) {
      if (other.numel() > 0 && results[i].is_alias_of(other))
        throw Failure("result " + std::to_string(i) + " is no copy");
    }
  }
}

template <class Net, class Model>
void check_mode(ap::World& world, Model& model, const Case& each, Mode mode, const Change& change) {
  const auto expected = one_process<Net>(each, mode, change);
  const auto rank = static_cast<size_t>(world.rank());
  model->train(mode == Mode::kTrain || mode == Mode::kNoGrad);
  model->zero_grad();
  in_mode(mode, [&] {
    const auto whole = samples();
    const auto x =
        numerics::share_of(whole, 0, each.local, world.rank()).clone().set_requires_grad(has_gradients(mode));
    const auto before = x.detach().clone();
    auto results = model(x);
    Tensors others{x};
    for (const auto& handle : model->owned_parameters()) others.push_back(handle);
    for (const auto& buffer : model->buffers()) {
      if (model->owns(buffer)) others.push_back(buffer);
    }
    check_apart(results, others);
    Tensor objective = torch::zeros({});
    for (size_t i = 0; i < results.size(); ++i) {
      const auto what = "result " + std::to_string(i);
      check_ordinary(results[i], what);
      change.apply(results[i]);
      if (results[i].requires_grad() != expected.results[rank][i].requires_grad())
        throw Failure(what + ": requires_grad");
      objective = objective + weighted(results[i], i);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      check_close(results[i], expected.results[rank][i], kTolerance, "result " + std::to_string(i));
    }
    check_close(x.detach(), before, 0, "the argument");
    if (!expected.input_gradient.defined()) return;
    objective.backward();
    check_close(x.grad(), numerics::share_of(expected.input_gradient, 0, each.local, world.rank()), kTolerance,
                "gradient of the argument");
    for (const auto& item : model->named_parameters()) {
      if (!model->owns(item.value())) continue;
      check_close(item.value().grad(), numerics::find(expected.gradients, item.key()), kTolerance,
                  "gradient of " + item.key());
    }
  });
}

template <class Net>
void check_all(const Case& each) {
  ap::loopback::run(static_cast<int>(each.local.size()), [&](ap::World& world) {
    ap::AutoParallel<Net> model(world, made<Net>(), each.options);
    for (const auto& change : changes()) {
      for (const auto& [mode, name] : kModes) {
        try {
          check_mode<Net>(world, model, each, mode, change);
        } catch (const std::exception& error) {
          throw Failure(change.name + ", " + name + ": " + error.what());
        }
      }
    }
  });
}

TEST_CASE("results changed in place: equal one process, no side effect") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  for (const auto& each : kCases) {
    numerics::Setup setup{each.options, {each.local}};
    INFO(setup.describe());
    CHECK_NOTHROW(check_all<Several>(each));
  }
}

/// One loss with a gradient, of which the pipeline runs forward and backward at once, and results without.
struct WithLoss : Several {
  Tensors forward(const Tensor& x) {
    auto results = Several::forward(x);
    const auto loss = results[0].pow(2).mean() * results[7].pow(2).mean() + results[1].pow(2).mean();
    for (auto& result : results) result = result.detach();
    results.insert(results.begin(), loss);
    return results;
  }
};

TEST_CASE("loss with results beside it: may be changed in place") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  for (const auto& each : kCases) {
    numerics::Setup setup{each.options, {each.local}};
    INFO(setup.describe());
    CHECK_NOTHROW(check_all<WithLoss>(each));
  }
}

/// More results with gradients than a call's header has places for: 70 of samples, 70 that all ranks have.
struct Many : nn::Module {
  static constexpr int kEach = 70;
  Many() {
    for (int i = 0; i < 2 * kEach; ++i)
      scales.push_back(register_parameter("s" + std::to_string(i), torch::full({3}, 0.1 * i)));
  }
  Tensors forward(const Tensor& x) {
    Tensors results;
    for (int i = 0; i < kEach; ++i) results.push_back(x * scales[static_cast<std::size_t>(i)]);
    for (int i = 0; i < kEach; ++i) results.push_back((x * scales[static_cast<std::size_t>(kEach + i)]).mean());
    return results;
  }
  Tensors scales;
};

TEST_CASE("result beyond the 64th: gets its own gradient or none") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const auto x = torch::linspace(-1, 1, 12).view({4, 3});
  const auto is_used = [](std::size_t i) {
    return i % 5 == 1 || i == 139;
  };  // 1 is used and 65 is not; 6 and 70 the reverse
  const auto net = std::make_shared<Many>();
  const auto whole = net->forward(x);
  Tensor loss = torch::zeros({});
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (is_used(i)) loss = loss + whole[i].pow(2).sum();
  }
  loss.backward();
  CHECK_NOTHROW(ap::loopback::run(2, [&](ap::World& world) {
    ap::AutoParallel<Many> model(world, std::make_shared<Many>(), {.stages = 1, .microbatches = 1, .replicas = {2}});
    const auto results = model(x.chunk(2)[static_cast<std::size_t>(world.rank())]);
    Tensor own = torch::zeros({}), common = torch::zeros({});
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!is_used(i)) continue;
      (i < Many::kEach ? own : common) = (i < Many::kEach ? own : common) + results[i].pow(2).sum();
    }
    (own + common).backward();
    for (const auto& item : model->named_parameters()) {
      const auto wanted = net->named_parameters()[item.key()].grad();
      if (item.value().grad().defined() != wanted.defined())
        throw Failure("gradient of " + item.key() + " is defined, or is not");
      if (wanted.defined()) check_close(item.value().grad(), wanted, kTolerance, "gradient of " + item.key());
    }
  }));
}

}  // namespace results_test
