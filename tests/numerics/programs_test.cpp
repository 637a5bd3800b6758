#include <c10/core/CPUAllocator.h>
#include <torch/torch.h>

#include <catch_shim.hpp>
#include <double_precision.hpp>
#include <nets.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// More captures than a session remembers.
namespace programs_test {

namespace ap = autopar;
namespace nn = torch::nn;
using numerics::check_close;
using torch::Tensor;

constexpr double kTolerance = 1e-12;
constexpr int kRemembered = static_cast<int>(ap::kRememberedPrograms);

/// A number that counts itself: a program that was captured with it holds it.
struct Factor {
  static inline std::atomic<int> live = 0;
  static Tensor of(double value) {
    ++live;
    const auto release = [](void* memory) {
      --live;
      delete static_cast<double*>(memory);
    };
    // Said to be libtorch's: memory that others own is copied.
    return torch::for_blob(new double(value), {})
        .deleter(release)
        .allocator(c10::GetCPUAllocator())
        .options(torch::kDouble)
        .make_tensor();
  }
};

/// Results leave the model, and each value of `factor` is a program of its own.
struct Scaled : nets::TwoLinears {
  Scaled() : TwoLinears(4, 6, 3) {}
  Tensor forward(const Tensor& x, double factor) { return b(torch::tanh(a(x) * Factor::of(factor))); }
};

/// The same with its loss.
struct ScaledLoss : Scaled {
  Tensor forward(const Tensor& x, double factor) { return Scaled::forward(x, factor).pow(2).mean(); }
};

template <class Net>
std::shared_ptr<Net> made() {
  return nets::made<Net>(5);
}

Tensor samples() { return torch::linspace(-1, 2, 32).sin().view({8, 4}); }
Tensor mine(const Tensor& whole, int rank) { return numerics::share_of(whole, 0, {5, 3}, rank).clone(); }

const std::vector<ap::Options> kPlans{{.stages = 2, .microbatches = 3, .replicas = {1, 1}},
                                      {.stages = 1, .microbatches = 2, .replicas = {2}}};

template <class Model>
torch::optim::SGD sgd(Model& model) {
  return torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

template <class Model, class Net>
void check_equal(Model& model, const Net& reference, const std::string& when) {
  const auto expected = reference.named_parameters();
  for (const auto& item : model->named_parameters()) {
    if (!model->owns(item.value())) continue;
    check_close(item.value(), expected[item.key()], kTolerance, when + ", " + item.key());
    check_close(item.value().grad(), expected[item.key()].grad(), kTolerance, when + ", gradient of " + item.key());
  }
}

/// One number comes back again and again, and each of the others once: more than are remembered.
std::vector<double> numbers() {
  std::vector<double> out;
  for (int k = 0; k < kRemembered + 6; ++k) {
    if (k % 8 == 0) out.push_back(0.5);
    out.push_back(1 + 0.01 * k);
  }
  return out;
}

TEST_CASE("number changing per call: equals one process, few captures") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const auto x = samples();
  auto all = numbers();
  all.push_back(1);  // the first to be forgotten
  const auto reference = made<ScaledLoss>();
  auto reference_optimizer = sgd(reference);
  for (const double number : all) {
    reference_optimizer.zero_grad();
    reference->forward(x, number).backward();
    reference_optimizer.step();
  }
  for (const auto& plan : kPlans) {
    REQUIRE(Factor::live == 0);
    CHECK_NOTHROW(ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<ScaledLoss> model(world, made<ScaledLoss>(), plan);
      auto optimizer = sgd(model);
      const auto step = [&](double number) {
        optimizer.zero_grad();
        model(mine(x, world.rank()), number).backward();
        optimizer.step();
      };
      for (const double number : numbers()) step(number);
      const auto before = model->stats().captures;
      world.barrier();
      const int live = Factor::live;
      world.barrier();
      step(1);
      check_equal(model, *reference, "after captures were forgotten");
      // What is called often is never captured again, what was forgotten is.
      if (before != kRemembered + 7) throw numerics::Failure(std::to_string(before) + " captures");
      if (model->stats().captures != before + 1) throw numerics::Failure("nothing was forgotten");
      if (live > 2 * kRemembered) throw numerics::Failure(std::to_string(live) + " constants are held");
    }));
  }
}

TEST_CASE("evicted program: its results still have gradients") {
  const DoublePrecision guard;
  torch::set_num_threads(1);
  const auto x = samples();
  const auto reference = made<Scaled>();
  reference->forward(x, 0.7).pow(2).sum().backward();
  for (const auto& number : numbers()) reference->forward(x, number).pow(2).sum().backward();
  for (const auto& plan : kPlans) {
    CHECK_NOTHROW(ap::loopback::run(2, [&](ap::World& world) {
      ap::AutoParallel<Scaled> model(world, made<Scaled>(), plan);
      const auto part = mine(x, world.rank());
      const auto first = model(part, 0.7);
      for (const double number : numbers()) model(part, number).pow(2).sum().backward();
      first.pow(2).sum().backward();
      check_equal(model, *reference, "a late backward");
    }));
  }
}

}  // namespace programs_test
