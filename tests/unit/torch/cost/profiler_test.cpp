#include "torch/cost/measured/profiler.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/torch.h>

#include <autopar/cost/profiled.hpp>
#include <autopar/runtime/loopback.hpp>

#include <catch_shim.hpp>
#include <nets.hpp>

#include "profiled.hpp"

#include "capture/trace/capture.hpp"
#include "torch/cost/measured/step_stopwatch.hpp"
#include "torch/passes/cast_hoist.hpp"
#include "torch/passes/linear_fold.hpp"

namespace profiler_test {

using namespace autopar;
using at::Tensor;
using test::profile;
using test::Profiled;
using Tensors = std::vector<Tensor>;
namespace F = torch::nn::functional;

const c10::Device kCpu(c10::kCPU);

MeasuredCosts measure_alone(const Profiled& p, const cost::MeasureOptions& options, const MeasuredCosts& known = {}) {
  MeasuredCosts costs;
  loopback::run(1, [&](World& world) {
    at::set_num_threads(1);  // threads that wait for one another say little on a busy machine
    costs = cost::measure_atoms(world, p.graph, p.plan, p.profile, kCpu, options, known);
  });
  return costs;
}

AtomTimes measure_named(const Profiled& p, const std::string& name, const cost::MeasureOptions& options) {
  for (const NodeId node : p.model().nodes()) {
    if (p.model()[node].name == name) return cost::measure_atom(p.graph, p.plan, p.profile, node, kCpu, options);
  }
  FAIL("no atom " + name);
  return {};
}

/// BERT's layer: attention from parts, two norms, two dropouts and a feed-forward net.
struct EncoderLayerImpl : torch::nn::Module {
  explicit EncoderLayerImpl(int64_t width) {
    for (auto* linear : {&query, &key, &value, &joined}) *linear = torch::nn::Linear(width, width);
    wide = torch::nn::Linear(width, 4 * width);
    narrow = torch::nn::Linear(4 * width, width);
    for (auto* norm : {&first, &second}) *norm = torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
    nets::register_all(*this, "query", query, "key", key, "value", value, "joined", joined, "wide", wide, "narrow",
                       narrow, "first", first, "second", second);
  }
  Tensor forward(const Tensor& x) {
    const auto heads = [&](const Tensor& t) { return t.view({t.size(0), t.size(1), 2, -1}).transpose(1, 2); };
    const auto scores = torch::matmul(heads(query(x)), heads(key(x)).transpose(2, 3)) / 4.0;
    const auto mixed = torch::matmul(torch::dropout(scores.softmax(-1), 0.1, is_training()), heads(value(x)));
    const auto attended = joined(mixed.transpose(1, 2).contiguous().view_as(x));
    const auto h = first(x + torch::dropout(attended, 0.1, is_training()));
    return second(h + torch::dropout(narrow(torch::gelu(wide(h))), 0.1, is_training()));
  }
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr}, joined{nullptr}, wide{nullptr}, narrow{nullptr};
  torch::nn::LayerNorm first{nullptr}, second{nullptr};
};
TORCH_MODULE(EncoderLayer);

struct BertImpl : torch::nn::Module {
  BertImpl(int layers, int64_t width) : embedding(torch::nn::Embedding(50, width)), head(torch::nn::Linear(width, 50)) {
    register_module("embedding", embedding);
    for (int i = 0; i < layers; ++i) body->push_back(EncoderLayer(width));
    nets::register_all(*this, "body", body, "head", head);
  }
  Tensor forward(const Tensor& ids, const Tensor& targets) {
    auto x = embedding(ids);
    for (const auto& layer : *body) x = layer->as<EncoderLayer>()->forward(x);
    return F::cross_entropy(head(x).view({-1, 50}), targets.view({-1}));
  }
  torch::nn::Embedding embedding;
  torch::nn::ModuleList body;
  torch::nn::Linear head;
};
TORCH_MODULE(Bert);

Profiled profile_bert(int layers) {
  Bert bert(layers, 8);
  const auto ids = torch::randint(50, {3, 6}, torch::kLong);
  return profile(*bert, {ids, ids}, [&](const Tensors& in) { return bert->forward(in[0], in[1]); });
}

TEST_CASE("measure_atoms: 96 BERT layers need few measurements", "[profiler]") {
  const auto p = profile_bert(96);
  const auto distinct = atoms_to_measure(p.model());
  INFO(p.model().node_count() << " atoms, " << distinct.size() << " distinct");
  CHECK(p.model().node_count() > 1000);
  CHECK(distinct.size() <= 48);
  CHECK(distinct.size() <= atoms_to_measure(profile_bert(3).model()).size() + 4);  // more layers bring nothing new

  const auto costs = measure_alone(p, {{1, 2}, 3});
  CHECK(costs.atoms.size() == distinct.size());  // each, and none could not be run
  for (const NodeId node : p.model().nodes()) CHECK(costs.atoms.contains(p.model()[node].structure));
}

TEST_CASE("measure_atoms: ranks share the work and all know the result", "[profiler]") {
  const auto p = profile_bert(2);
  std::mutex mutex;
  std::vector<MeasuredCosts> by_rank(3);
  std::string lines;
  loopback::run(3, [&](World& world) {
    world.log().set_level(LogLevel::kInfo);
    world.log().set_writer([&](const std::string& line) {
      const std::lock_guard lock(mutex);
      lines += line + "\n";
    });
    auto costs = cost::measure_atoms(world, p.graph, p.plan, p.profile, kCpu, {{1, 2}, 3});
    const std::lock_guard lock(mutex);
    by_rank[static_cast<std::size_t>(world.rank())] = std::move(costs);
  });
  const auto distinct = atoms_to_measure(p.model()).size();
  CHECK(by_rank[0].atoms.size() == distinct);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto share = (distinct + 2 - rank) / 3;
    CAPTURE(lines, rank);
    CHECK(lines.find("measured " + std::to_string(share) + " of " + std::to_string(distinct)) != std::string::npos);
  }
  CHECK(by_rank[1] == by_rank[0]);
  CHECK(by_rank[2] == by_rank[0]);
}

TEST_CASE("measure_atoms: several ranks measure products on shards", "[profiler]") {
  const auto p = profile_bert(2);
  std::mutex mutex;
  std::vector<MeasuredCosts> by_rank(2);
  static std::atomic<int> halves;  // a callback has no state of its own
  halves = 0;
  const auto look = at::addGlobalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        if (std::string(function.name()) != "aten::linear") return nullptr;
        const auto weight = function.inputs()[1].toTensor();
        halves += weight.sizes() == at::IntArrayRef({16, 8}) || weight.sizes() == at::IntArrayRef({8, 16});
        return nullptr;
      })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  const auto measure = [&](const MeasuredCosts& known) {
    loopback::run(2, [&](World& world) {
      auto costs = cost::measure_atoms(world, p.graph, p.plan, p.profile, kCpu, {{1, 2}, 3}, known);
      const std::lock_guard lock(mutex);
      by_rank[static_cast<std::size_t>(world.rank())] = std::move(costs);
    });
  };
  measure({});
  at::removeCallback(look);
  CHECK(halves >= 2 * 4);  // of the feed-forward net, whose weights are 32 x 8 and 8 x 32
  CHECK(by_rank[1] == by_rank[0]);
  std::set<std::string> on_shards;
  for (const NodeId node : p.model().nodes()) {
    const auto& undivided = by_rank[0].atoms.at(p.model()[node].structure).undivided;
    if (!undivided) continue;
    on_shards.insert(p.model()[node].name);
    for (const double part : {undivided->forward, undivided->backward}) CHECK((part >= 0 && part <= 1));
  }
  CHECK(on_shards.contains("aten::linear"));
  CHECK_FALSE(on_shards.contains("aten::layer_norm"));
  const auto known = by_rank[0];
  measure(known);
  CHECK(by_rank[0] == known);  // not again
  CHECK(measure_alone(p, {{1, 2}, 3}).atoms.begin()->second.undivided == std::nullopt);
}

TEST_CASE("measure_updates: state factors 0, 1, 2, equal on all ranks", "[profiler]") {
  std::mutex mutex;
  std::vector<std::map<int, CostCurve>> by_rank(2);
  loopback::run(2, [&](World& world) {
    auto updates = cost::measure_updates(world, kCpu);
    const std::lock_guard lock(mutex);
    by_rank[static_cast<std::size_t>(world.rank())] = std::move(updates);
  });
  CHECK((by_rank[1] == by_rank[0]));
  REQUIRE(by_rank[0].size() == 3);
  for (const int factor : {0, 1, 2}) CHECK(by_rank[0].at(factor).at(1 << 22) > Seconds(0));
}

TEST_CASE("measure_atoms: known costs are not measured again", "[profiler]") {
  const auto p = profile_bert(1);
  const auto& first = p.model()[NodeId(0)];
  MeasuredCosts known;
  known.atoms[first.structure] = {CostCurve({{1, 123}}), CostCurve({{1, 456}})};
  known.atoms[42] = {CostCurve({{1, 7}}), {}};  // of another model
  const auto costs = measure_alone(p, {{1, 2}, 3}, known);
  CHECK(costs.atoms.at(first.structure) == known.atoms.at(first.structure));
  CHECK(costs.atoms.at(42) == known.atoms.at(42));
  CHECK(costs.atoms.size() == atoms_to_measure(p.model()).size() + 1);
  CHECK(atoms_to_measure(p.model(), costs).empty());
  // Of more samples nothing is known but what was there for all.
  const auto more = measure_alone(p, {{1, 4}, 3}, costs);
  CHECK(more.atoms.at(first.structure) == known.atoms.at(first.structure));
  for (const NodeId node : atoms_to_measure(p.model(), known)) {
    const auto structure = p.model()[node].structure;
    CHECK((costs.atoms.at(structure).samples == SampleRange{1, 2}));
    CHECK((more.atoms.at(structure).samples == SampleRange{1, 4}));
  }
}

TEST_CASE("measure_atoms: inputs of products have both signs", "[profiler]") {
  torch::nn::Linear linear(40, 30);
  const auto p = profile(*linear, {torch::randn({4, 40}).requires_grad_()},
                         [&](const Tensors& in) { return linear(in[0]).exp(); });
  static int products, of_one_sign;  // a callback has no state of its own
  products = of_one_sign = 0;
  const auto look = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        const std::string name = function.name();
        if (name != "aten::mm" && name != "aten::addmm") return nullptr;
        ++products;
        for (const auto& input : function.inputs()) {
          if (!input.isTensor() || input.toTensor().numel() < 30) continue;
          if (input.toTensor().min().item<double>() >= 0) ++of_one_sign;
        }
        return nullptr;
      })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  static_cast<void>(measure_named(p, "aten::linear", {{2}, 1}));
  at::removeCallback(look);
  CHECK(products >= 3);
  CHECK(of_one_sign == 0);
}

TEST_CASE("measure_atoms: weights neither grow nor shrink what passes", "[profiler]") {
  torch::nn::Linear linear(400, 30);
  const auto p = profile(*linear, {torch::randn({4, 400}).requires_grad_()},
                         [&](const Tensors& in) { return linear(in[0]).exp(); });
  static double deviation;  // a callback has no state of its own
  const auto look = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        if (std::string(function.name()) != "aten::addmm") return nullptr;
        for (const auto& input : function.inputs()) {
          if (input.isTensor() && input.toTensor().numel() == 30 * 400)
            deviation = input.toTensor().std().item<double>();
        }
        return nullptr;
      })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  static_cast<void>(measure_named(p, "aten::linear", {{2}, 1}));
  at::removeCallback(look);
  CHECK(deviation == Approx(1 / std::sqrt(400.0)).epsilon(0.05));
}

struct SmallLossImpl : torch::nn::Module {
  SmallLossImpl() { nets::register_all(*this, "first", first, "second", second); }
  Tensor forward(const Tensor& x) { return second(first(x)).sum() * 1e-12; }
  torch::nn::Linear first{16, 32}, second{32, 16};
};
TORCH_MODULE(SmallLoss);

Profiled profile_in_8_bits(const SmallLoss& net) {
  trace::CaptureOptions options;
  options.autocast = trace::Autocast{at::kBFloat16, c10::DeviceType::CPU};
  Profiled result;
  result.graph = passes::fold_linear(passes::hoist_parameter_casts(trace::capture(
      *net, {trace::input_spec(torch::ones({4, 16}))},
      [&](const Tensors& in) -> Tensors { return {SmallLoss(net)->forward(in[0])}; }, options)));
  result.plan = algebra::analyze_batch(result.graph);
  result.profile = cost::profile_graph(result.graph, result.plan, c10::DeviceType::CPU, {},
                                       tensor_parallel::SingleLayers::kByOutputs, {"first.weight", "second.weight"});
  return result;
}

TEST_CASE("measure_atoms: no 8-bit product is of zeros after a small loss", "[profiler]") {
  const auto p = profile_in_8_bits(SmallLoss());
  static std::atomic<int> in_8_bits, of_zeros;  // a callback has no state of its own
  in_8_bits = of_zeros = 0;
  const auto look = at::addGlobalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        if (std::string(function.name()) != "aten::mm") return nullptr;
        for (const auto& input : function.inputs()) {
          if (!input.isTensor() || input.toTensor().scalar_type() != at::kFloat) continue;  // by operators: of floats
          ++in_8_bits;
          if (input.toTensor().eq(0).all().item<bool>()) ++of_zeros;
        }
        return nullptr;
      })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  static_cast<void>(measure_alone(p, {{2, 4}, 1}));
  at::removeCallback(look);
  CHECK(in_8_bits >= 2 * 3 * 2 * 2);  // layers, products, atoms and the stretch, samples
  CHECK(of_zeros == 0);
}

TEST_CASE("measure_atoms: few new atoms are in a step as the others are", "[profiler]") {
  const auto p = profile_bert(2);
  auto known = measure_alone(p, {{1, 2}, 3});
  const auto times = [&](const MeasuredAtom& atom) { return atom.forward.at(2) + atom.backward.at(2); };
  std::uint64_t structure = 0;  // the shortest but views
  for (const auto& [each, atom] : known.atoms) {
    const bool is_view = atom.alone.forward.at(2) == Seconds{};
    if (!is_view && (structure == 0 || times(atom) < times(known.atoms.at(structure)))) structure = each;
  }
  known.atoms.erase(structure);
  for (auto& [each, atom] : known.atoms) {
    atom.forward = atom.alone.forward.scaled(1.25);
    atom.backward = atom.alone.backward.scaled(0.75);
  }
  const auto costs = measure_alone(p, {{1, 2}, 3}, known);
  const auto& atom = costs.atoms.at(structure);
  CHECK(atom.forward.at(2) / atom.alone.forward.at(2) == Approx(1.25));
  if (atom.alone.backward.at(2) > Seconds{}) CHECK(atom.backward.at(2) / atom.alone.backward.at(2) == Approx(0.75));
}

TEST_CASE("StepStopwatch: host time counts unless the host is ahead", "[profiler]") {
  const autopar::cost::detail::StepStopwatch::Seconds bound_by_host{2, 3}, bound_by_device{3, 2};
  CHECK(bound_by_host.in_step(false) == 3);
  CHECK(bound_by_host.in_step(true) == 2);
  CHECK(bound_by_device.in_step(false) == 3);
  CHECK(bound_by_device.in_step(true) == 3);
}

TEST_CASE("measure_atoms: larger products and backwards take longer", "[profiler]") {
  torch::nn::Sequential net(torch::nn::Linear(256, 256), torch::nn::Linear(256, 2));
  const auto p = profile(*net, {torch::randn({4, 64, 256})}, [&](const Tensors& in) {
    return net->forward(in[0].transpose(0, 1).transpose(0, 1)).exp().sum();
  });
  // Other programs on the machine only ever add time: the least of three measurements counts.
  std::vector<double> wide{1e9, 1e9}, narrow{1e9, 1e9};  // seconds forward, backward
  for (int trial = 0; trial < 3; ++trial) {
    const ProfiledCost cost({}, measure_alone(p, {{1, 8, 16}, 9}));
    for (const NodeId node : p.model().nodes()) {
      const auto& atom = p.model()[node];
      if (atom.name != "aten::linear") continue;
      const auto measured = cost.node(p.model(), node, 16);
      auto& least = atom.path.starts_with("0") ? wide : narrow;
      least = {std::min(least[0], measured.forward.value()), std::min(least[1], measured.backward.value())};
    }
  }
  CHECK(wide[0] > 3 * narrow[0]);  // 128 times the arithmetic
  CHECK(wide[1] > wide[0] * 0.5);  // one product for the weight; the input needs no gradient
  CHECK(narrow[0] > 0);

  torch::nn::Linear frozen(256, 256);
  frozen->weight.set_requires_grad(false);
  frozen->bias.set_requires_grad(false);
  const auto q = profile(*frozen, {torch::randn({4, 256})}, [&](const Tensors& in) { return frozen(in[0]).sum(); });
  const auto still = measure_named(q, "aten::linear", {{1, 4}, 5});
  CHECK(still.backward.at(4) == Seconds{});
  CHECK(still.forward.at(4) > Seconds{});
}

TEST_CASE("measure_atoms: every kind of atom runs alone", "[profiler]") {
  torch::nn::BatchNorm2d norm(3);
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(1, 3, 3));
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 4).batch_first(true));
  struct All : torch::nn::Module {};
  All all;
  all.register_module("norm", norm);
  all.register_module("conv", conv);
  all.register_module("lstm", lstm);
  const auto p = profile(all, {torch::randn({2, 1, 6, 6}), torch::ones({2}, torch::kBool), torch::rand({2, 4})},
                         [&](const Tensors& in) {
                           auto x = conv(in[0]).relu_();
                           x = norm(x).clamp(1e-3, 1).log().add_(1);
                           x = std::get<0>(lstm(x.flatten(2).transpose(1, 2))).select(1, -1);
                           x = x.masked_fill(in[1].unsqueeze(1), 0.5);
                           return F::binary_cross_entropy(x.sigmoid(), in[2]);
                         });
  CHECK(measure_alone(p, {{1, 2}, 3}).atoms.size() == atoms_to_measure(p.model()).size());
}

TEST_CASE("measure_atoms: model and generator are unchanged", "[profiler]") {
  Bert bert(1, 8);
  const auto ids = torch::randint(50, {3, 6}, torch::kLong);
  const auto p = profile(*bert, {ids, ids}, [&](const Tensors& in) { return bert->forward(in[0], in[1]); });
  std::vector<Tensor> before;
  for (const auto& parameter : bert->parameters()) before.push_back(parameter.detach().clone());
  const auto state = at::detail::getDefaultCPUGenerator().get_state().clone();
  static_cast<void>(measure_alone(p, {{1, 2}, 3}));
  CHECK(at::equal(at::detail::getDefaultCPUGenerator().get_state(), state));
  for (std::size_t i = 0; i < before.size(); ++i) {
    CHECK(at::equal(bert->parameters()[i], before[i]));
    CHECK_FALSE(bert->parameters()[i].grad().defined());
  }
}

TEST_CASE("probe_samples: spans the micro-batches of a plan", "[profiler]") {
  CHECK(cost::probe_samples(1, 4) == std::vector<std::int64_t>{1, 2, 4});
  CHECK(cost::probe_samples(256, 4) == std::vector<std::int64_t>{8, 32, 64});
  CHECK_THROWS_AS(measure_alone(profile_bert(1), {{0, 2}, 3}), InvalidArgument);
}

TEST_CASE("measure_links: each class is measured, all ranks agree", "[profiler]") {
  Cluster cluster;
  cluster.devices = 4;
  cluster.levels = {{"pair", 2, {}}, {"all", 4, {}}};
  std::mutex mutex;
  std::vector<MeasuredLinks> by_rank(4);
  loopback::run(4, [&](World& world) {
    auto wire = world.make_transport();
    auto links = cost::measure_links(world, wire, cluster, kCpu);
    const std::lock_guard lock(mutex);
    by_rank[static_cast<std::size_t>(world.rank())] = std::move(links);
  });
  const auto& links = by_rank[0];
  for (const auto& other : by_rank) CHECK(other == links);
  REQUIRE(links.messages.size() == 2);
  CHECK(links.messages.contains(2));
  CHECK(links.messages.contains(4));
  using Key = std::pair<LinkClass, int>;
  REQUIRE(links.all_reduces.size() == 3);
  for (const Key& key : {Key{2, 2}, Key{4, 2}, Key{4, 4}}) {
    REQUIRE(links.all_reduces.contains(key));
    CHECK(links.all_reduces.at(key)(Bytes(1 << 20)) > Seconds{});
  }
  CHECK(links.messages.at(2)(Bytes(1 << 20)) > Seconds{});
  MeasuredCosts measured;
  measured.links = links;
  const ProfiledCost cost(cluster, measured);
  CHECK(cost.transfer(Bytes(1 << 20), Rank(2), Rank(3)).value() ==
        Approx(links.messages.at(2)(Bytes(1 << 20)).value()));
  CHECK(cost.transfer(Bytes(1 << 20), Rank(1), Rank(2)).value() ==
        Approx(links.messages.at(4)(Bytes(1 << 20)).value()));

  loopback::run(1, [&](World& world) {
    auto wire = world.make_transport();
    CHECK(cost::measure_links(world, wire, {}, kCpu) == MeasuredLinks{});
  });
}

TEST_CASE("cost_origin: names device, threads and libtorch", "[profiler]") {
  CostOrigin origin;
  loopback::run(2, [&](World& world) {
    if (world.rank() == 0) origin = cost::cost_origin(world, {}, kCpu);
  });
  CHECK(origin.device.starts_with("cpu: "));
  CHECK(origin.device.find("threads a rank, 2 ranks a host") != std::string::npos);
  CHECK(origin.libtorch.starts_with("2."));
}

}  // namespace profiler_test
