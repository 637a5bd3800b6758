#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <resident_memory.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>

#include "capture/trace/fake_tensor.hpp"

// A model constructed by a callable: every rank makes what it owns, with the values of eager construction, and its
// memory never holds more than that and twice the largest tensor.
namespace deferred_init_test {

namespace ap = autopar;
namespace nn = torch::nn;
using at::Tensor;

constexpr std::int64_t kSeed = 31;

/// Equal layers: what a rank owns is far below the model.
struct Deep : nets::Linears {
  explicit Deep(int depth = 12) : Linears(kWidth, nets::repeated("layer", depth, kWidth), torch::relu) {}
  Tensor forward(const Tensor& x) { return torch::relu(Linears::forward(x)).pow(2).mean(); }
  [[nodiscard]] Tensor batch() const { return torch::ones({4, kWidth}); }

  static constexpr std::int64_t kWidth = 2048;
};

/// Of layers enough for 4 stages.
struct Shallow : Deep {
  Shallow() : Deep(6) {}
};

/// One tensor that dominates, initialisers with temporaries, a tied parameter, buffers.
struct Lopsided : nn::Module {
  Lopsided() {
    words = register_module("words", nn::Embedding(20'000, 512));
    mixed = register_parameter("mixed", torch::randn({2048, 512}) * 0.02 + torch::eye(2048, 512));
    const auto slopes = torch::exp(torch::arange(512) * -0.1);
    waves = register_buffer("waves", torch::sin(torch::arange(2048).unsqueeze(1) * slopes));
    for (int i = 0; i < 4; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(2048, 2048)));
      const torch::NoGradGuard no_grad;
      nn::init::xavier_normal_(layers.back()->weight);
      layers.back()->weight.mul_(0.5);
    }
    register_parameter("head", words->weight);
  }
  Tensor forward(const Tensor& tokens) {
    auto x = torch::linear(words(tokens), mixed + waves);
    for (auto& layer : layers) x = torch::relu(layer(x));
    return torch::linear(x.slice(1, 0, 512), words->weight).pow(2).mean();
  }
  [[nodiscard]] Tensor batch() const { return torch::arange(4); }

  nn::Embedding words{nullptr};
  Tensor mixed, waves;
  std::vector<nn::Linear> layers;
};

template <class Net>
std::vector<std::pair<std::string, Tensor>> state_of(Net& net) {
  std::vector<std::pair<std::string, Tensor>> all;
  for (const auto& item : net.named_parameters()) all.emplace_back(item.key(), item.value());
  for (const auto& item : net.named_buffers()) all.emplace_back(item.key(), item.value());
  return all;
}

template <class Net>
void no_initialisation(Net&) {}

/// What users do after construction: walk the modules, use handles.
template <class Net>
void initialise_again(Net& net) {
  net.apply([](nn::Module& module) {
    const torch::NoGradGuard no_grad;
    if (auto* linear = module.as<nn::Linear>()) {
      nn::init::xavier_uniform_(linear->weight);
      linear->weight.mul_(0.25);
    }
  });
  nn::init::normal_(net.layers.front()->bias, 0.0, 0.1);
}

/// Eager construction, and the draw that follows it.
template <class Net>
struct Eager {
  explicit Eager(const std::function<void(Net&)>& initialise) {
    torch::manual_seed(kSeed);
    net = std::make_shared<Net>();
    initialise(*net);
    next = torch::rand({4});
  }
  std::shared_ptr<Net> net;
  Tensor next;
};

/// Under this plan: the law of memory, and the values of eager construction.
/// @return owned bytes / bytes of the model
template <class Net>
double check(const ap::Options& options, const Eager<Net>& eager, const std::function<void(Net&)>& initialise) {
  ap::World world(0, nullptr);
  resident_memory::forget_peak();
  const auto before = resident_memory::now();
  torch::manual_seed(kSeed);
  ap::AutoParallel<Net> model(
      world, [] { return Net(); }, options);
  initialise(model->module());
  const auto next = torch::rand({4});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  model->attach(optimizer);
  model->prepare(model->module().batch());
  const auto peak = resident_memory::peak() - before;

  const auto wanted = state_of(*eager.net), got = state_of(model->module());
  REQUIRE(got.size() == wanted.size());
  std::set<const void*> seen;
  std::int64_t owned = 0, largest = 0, whole = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!seen.insert(got[i].second.unsafeGetTensorImpl()).second) continue;
    const auto bytes = static_cast<std::int64_t>(wanted[i].second.nbytes());
    largest = std::max(largest, bytes);
    whole += bytes;
    if (model->owns(got[i].second)) owned += static_cast<std::int64_t>(got[i].second.nbytes());
  }
  const auto mib = [](std::int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
  const auto figures = "rank " + std::to_string(world.rank()) + ": peak " + mib(peak) + ", owned " + mib(owned) +
                       ", largest " + mib(largest) + ", model " + mib(whole) + ", ZeRO " +
                       std::to_string(model->plan().zero) + " of " + std::to_string(model->plan().stages.size()) +
                       " stages";
  CAPTURE(figures);
  const bool twice =
      options.offload == ap::Offload::kOptimizer;  // devices that are the host have their copy there, too
  if (resident_memory::kIsOnlyTheProgram) CHECK(peak <= owned * (twice ? 2 : 1) + 2 * largest);

  CHECK(torch::equal(next, eager.next));
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO(got[i].first);
    const auto& tensor = got[i].second;
    CHECK(ap::trace::is_fake(tensor) == !model->owns(tensor));
    CHECK(torch::equal(model->gather(tensor), wanted[i].second));
  }
  return static_cast<double>(owned) / static_cast<double>(whole);
}

int world_size() { return ap::World(0, nullptr).size(); }

/// Stages only, replicas only, and both; replicas with whole parameters and with shares, on the host or not.
std::vector<ap::Options> plans(int ranks) {
  std::vector<ap::Options> all{{.stages = ranks, .microbatches = ranks}};
  if (ranks > 1) all.push_back({.stages = 1, .replicas = {ranks}});
  for (const int zero : {1, 2, 3}) {
    if (ranks > 1) all.push_back({.stages = 1, .zero = zero, .replicas = {ranks}});
  }
  if (ranks > 1) all.push_back({.stages = 1, .zero = 3, .offload = ap::Offload::kOptimizer, .replicas = {ranks}});
  if (ranks > 2) all.push_back({.stages = 2, .replicas = {1, ranks - 1}});
  if (ranks > 2) all.push_back({.stages = 2, .zero = 3, .replicas = {1, ranks - 1}});
  return all;
}

template <class Net>
void check_plans(const std::function<void(Net&)>& initialise) {
  const Eager<Net> eager(initialise);
  for (const auto& options : plans(world_size())) static_cast<void>(check<Net>(options, eager, initialise));
}

TEST_CASE("deferred init: a rank allocates only its stage") {
  const int ranks = world_size();
  const Eager<Deep> eager(no_initialisation<Deep>);
  CHECK(check<Deep>({.stages = ranks, .microbatches = ranks}, eager, no_initialisation<Deep>) < 1.5 / ranks);
}

TEST_CASE("deferred init: a rank keeps only its ZeRO 3 shards") {
  const int ranks = world_size();
  const Eager<Deep> eager(no_initialisation<Deep>);
  CHECK(check<Deep>({.stages = 1, .zero = 3, .replicas = {ranks}}, eager, no_initialisation<Deep>) < 1.01 / ranks);
}

TEST_CASE("deferred init: large tensor, temporaries, ties, buffers work") {
  check_plans<Lopsided>(no_initialisation<Lopsided>);
}

TEST_CASE("deferred init: later init applies, only owners allocate") {
  check_plans<Shallow>(initialise_again<Shallow>);
}

}  // namespace deferred_init_test
