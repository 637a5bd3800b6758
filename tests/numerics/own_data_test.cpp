#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// Tensors that a forward or a constructor makes of its own data: memory that others own, files, what is made once and
// kept, and what follows from constants alone.
namespace own_data_test {

namespace ap = autopar;
namespace nn = torch::nn;
using Catch::Matchers::Contains;
using numerics::check_close;
using torch::Tensor;
using torch::indexing::None;
using torch::indexing::Slice;

constexpr double kTolerance = 1e-12;
constexpr int kSteps = 3;

/// Two layers around what is tested.
struct Layers : nets::TwoLinears {
  Layers() : TwoLinears(4, 4, 4) {}
};

/// An array of the stack, gone with the forward; another writes there before the next.
struct OnStack : Layers {
  Tensor forward(const Tensor& x) {
    double weights[4] = {0.5, 1.5, -1, 2};
    const auto h = torch::tanh(a(x)) * torch::from_blob(weights, {4}, torch::kDouble).clone();
    std::fill(std::begin(weights), std::end(weights), 1e9);
    return b(h).pow(2).mean();
  }
};

/// One memory for many constants, read without a copy, and written in between.
struct Reused : Layers {
  Tensor forward(const Tensor& x) {
    auto h = torch::tanh(a(x));
    const auto number = torch::from_blob(memory.data(), {2, 2}, torch::kDouble);
    for (int i = 1; i <= 3; ++i) {
      std::fill(memory.begin(), memory.end(), 0.25 * i);
      h = h * number.view({4}).clone() + torch::from_blob(memory.data(), {4}, torch::kDouble);
    }
    std::fill(memory.begin(), memory.end(), 1e9);
    return b(h).pow(2).mean();
  }
  std::vector<double> memory = std::vector<double>(4);
};

/// Made at the first forward, and there from then on.
struct LazyMask : Layers {
  Tensor forward(const Tensor& x) {
    if (!mask.defined()) {
      mask = torch::ones({4, 4}, x.options()).tril();
      mask.select(0, 1).mul_(0.5);
      row = mask[2];
    }
    return b(torch::tanh(a(x)).matmul(mask) * (row + 1)).pow(2).mean();
  }
  Tensor mask, row;
};

/// A criterion with a weight, made when it is needed first.
struct LazyCriterion : Layers {
  Tensor forward(const Tensor& x) {
    if (!criterion) {
      criterion =
          nn::CrossEntropyLoss(nn::CrossEntropyLossOptions().weight(torch::tensor({1., 2., 3., 0.5}, torch::kDouble)));
    }
    return criterion(b(torch::tanh(a(x))), (x.sum(1) * 100).abs().to(torch::kLong).remainder(4));
  }
  nn::CrossEntropyLoss criterion{nullptr};
};

/// Numbers, positions and counts that follow from constants alone.
struct OfConstants : Layers {
  Tensor forward(const Tensor& x) {
    const auto rates = torch::linspace(0.1, 0.4, 4, torch::kDouble);
    const auto upper = torch::ones({4, 4}).triu(1).to(torch::kBool);
    auto h = torch::tanh(a(x)) * rates[2].item<double>();
    const auto pairs = h.unsqueeze(2) * h.unsqueeze(1);
    h = h + pairs.index({Slice(), upper}).mean(1, true) + (upper.sum().item<int64_t>() - 5.0);
    const auto odd = torch::nonzero(torch::arange(4) % 2).squeeze(1);
    return b(h).index_select(1, odd).pow(2).mean() + torch::combinations(b->bias, 2).prod(1).sum();
  }
};

/// Detached in place.
struct Detaches : Layers {
  Tensor forward(const Tensor& x) {
    const auto h = torch::tanh(a(x));
    auto target = h * 2;
    const auto power = target.exp() + target;
    target.detach_();
    return (b(h) - target).pow(2).mean() + power.mean();
  }
};

/// A file of the trained weights.
std::string file_of(const nn::Module& net) {
  static int count = 0;
  const auto path = std::filesystem::temp_directory_path() /
                    ("autopar_own_data_" + std::to_string(::getpid()) + "_" + std::to_string(count++) + ".pt");
  torch::serialize::OutputArchive archive;
  net.save(archive);
  archive.save_to(path.string());
  return path.string();
}

/// A constructor that loads what was trained, and goes on with it.
struct Loads : Layers {
  explicit Loads(const std::string& path) {
    torch::load(a, path);
    torch::serialize::InputArchive archive;
    archive.load_from(path);
    Tensor loaded;
    archive.read("weight", loaded);
    const torch::NoGradGuard no_grad;
    b->weight.copy_(loaded.t());
    loaded.mul_(0.5);
    scale = register_buffer("scale", loaded.sum(0));
    a->weight.mul_(2.0);
    rate = torch::linspace(0, 1, 5, torch::kDouble)[3].item<double>();
  }
  Tensor forward(const Tensor& x) { return b(torch::tanh(a(x)) * scale * rate).pow(2).mean(); }
  Tensor scale;
  double rate = 0;
};

Tensor samples() { return torch::linspace(-1, 2, 32).sin().view({8, 4}); }
Tensor mine(const Tensor& whole, int rank) { return numerics::share_of(whole, 0, {5, 3}, rank).clone(); }

const std::vector<ap::Options> kPlans{{.stages = 1, .microbatches = 1, .replicas = {2}},
                                      {.stages = 2, .microbatches = 3, .replicas = {1, 1}},
                                      {.stages = 1, .microbatches = 2, .replicas = {2}}};

template <class Net>
using Make = std::function<std::shared_ptr<Net>()>;

template <class Net>
Make<Net> seeded(const Make<Net>& make) {
  return [make] { return nets::seeded(5, make); };
}

template <class Net, class Model>
void step(Model& model, torch::optim::SGD& optimizer, const Tensor& x) {
  optimizer.zero_grad();
  model->forward(x).backward();
  optimizer.step();
}

/// Trains in one process and under each plan.
/// @param recorded  the model is given as a callable, else as a net
template <class Net>
void check_training(const Make<Net>& make, bool recorded) {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const auto x = samples();
  const auto reference = seeded(make)();
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
  for (int i = 0; i < kSteps; ++i) step<Net>(reference, reference_optimizer, x);
  for (const auto& plan : kPlans) {
    CHECK_NOTHROW(ap::loopback::run(2, [&](ap::World& world) {
      const auto wrapped = [&] {
        if (recorded) return std::make_unique<ap::AutoParallel<Net>>(world, seeded(make), plan);
        return std::make_unique<ap::AutoParallel<Net>>(world, seeded(make)(), plan);
      }();
      auto& model = *wrapped;
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      for (int i = 0; i < kSteps; ++i) step<Net>(model, optimizer, mine(x, world.rank()));
      const auto expected = reference->named_parameters();
      for (const auto& item : model->named_parameters()) {
        if (!model->owns(item.value())) continue;
        check_close(item.value(), expected[item.key()], kTolerance, item.key());
        check_close(item.value().grad(), expected[item.key()].grad(), kTolerance, "gradient of " + item.key());
      }
    }));
  }
}

template <class Net>
void check_training() {
  check_training<Net>([] { return std::make_shared<Net>(); }, false);
}

TEST_CASE("external memory: is read when the forward reads it") {
  SECTION("of the stack") { check_training<OnStack>(); }
  SECTION("written and read again") { check_training<Reused>(); }
}

TEST_CASE("tensor made once in forward: is a constant") {
  SECTION("a mask") { check_training<LazyMask>(); }
  SECTION("a criterion") { check_training<LazyCriterion>(); }
}

TEST_CASE("tensor derived from constants: has data in forward") { check_training<OfConstants>(); }

TEST_CASE("tensor detached in place: trains as one process") { check_training<Detaches>(); }

TEST_CASE("constructor that loads files: same model, deferred or not") {
  const DoublePrecision guard;
  torch::manual_seed(8);
  const auto path = file_of(*nn::Linear(4, 4));
  const Make<Loads> make = [path] { return std::make_shared<Loads>(path); };
  SECTION("a net") { check_training<Loads>(make, false); }
  SECTION("recorded") { check_training<Loads>(make, true); }
  std::filesystem::remove(path);
}

TEST_CASE("static tensor in forward: made once, readable afterwards") {
  const DoublePrecision guard;
  struct Net : Layers {
    Tensor forward(const Tensor& x) {
      static const Tensor window = [] {
        const auto line = torch::exp(-torch::arange(4, torch::kDouble).sub(1.5).pow(2) / 4.5);
        return torch::outer(line, line) / line.sum().pow(2);
      }();
      return b(torch::tanh(a(x)).matmul(window)).pow(2).mean();
    }
  };
  torch::manual_seed(5);
  const auto net = std::make_shared<Net>();
  const auto x = samples();
  ap::World world(0, nullptr);
  ap::AutoParallel<Net> model(world, net);
  const auto loss = model(x);
  torch::manual_seed(5);
  const auto plain = std::make_shared<Net>();
  check_close(loss, plain->forward(x), kTolerance, "loss");
}

}  // namespace own_data_test
