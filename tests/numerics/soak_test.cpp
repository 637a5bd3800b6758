#include <torch/torch.h>

#include <catch_shim.hpp>
#include <nets.hpp>
#include <resident_memory.hpp>

#include <cstdint>
#include <memory>
#include <vector>

#include <autopar/autopar.hpp>
#include <autopar/runtime/loopback.hpp>

#include "fidelity.hpp"

// A long training with all that keeps something from call to call: what is resident must not grow.
namespace soak_test {

namespace ap = autopar;
namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

struct Net : nn::Module {
  Net() { nets::register_all(*this, "table", table, "a", a, "norm", norm, "b", b, "drop", drop); }
  Tensor forward(const Tensor& ids, const Tensor& y) {
    const auto h = drop(torch::gelu(norm(a(table(ids).flatten(1)))));
    return F::cross_entropy(F::linear(torch::tanh(b(h)), table->weight), y);
  }
  nn::Embedding table{16, 8};
  nn::Linear a{32, 24};
  nn::BatchNorm1d norm{24};
  nn::Linear b{24, 8};
  nn::Dropout drop{0.2};
};

/// Resident bytes after each of `at` steps, ascending, of a training of that many on two ranks in one process: ZeRO 2,
/// everything run again, two accumulated calls a step on ragged batches, one of them empty at times, clipping, a
/// learning-rate schedule, evaluations.
std::vector<std::int64_t> train(const std::vector<int>& at) {
  std::vector<std::int64_t> out;
  torch::set_num_threads(1);
  ap::loopback::run(2, [&](ap::World& world) {
    const auto net = nets::made<Net>(7);
    const ap::Options options{
        .stages = 1, .microbatches = 2, .zero = 2, .replicas = {2}, .recompute = ap::Recompute::kAlways};
    ap::AutoParallel<Net> model(world, net, options);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    model->attach(optimizer);
    torch::optim::StepLR scheduler(optimizer, 100, 0.9);
    const auto call = [&](std::int64_t turn) {
      const auto turns = (turn * 7 + world.rank() * 5) % 13 + (world.rank() == 0 ? 1 : 0);
      const auto samples = 4 * turns + turns % 3;  // two at least of each micro-batch, or none
      const auto ids = (torch::arange(samples * 4, torch::kLong) * (turn % 15 + 1) + world.rank()).remainder(16);
      return model(ids.view({samples, 4}), (torch::arange(samples, torch::kLong) + turn).remainder(16));
    };
    for (int step = 1; step <= at.back(); ++step) {
      optimizer.zero_grad();
      {
        const auto guard = model->no_sync();
        call(2 * step).backward();
      }
      call(2 * step + 1).backward();
      static_cast<void>(model->clip_grad_norm_(1.0));
      optimizer.step();
      scheduler.step();
      if (step % 50 == 0) {
        model->eval();
        const torch::NoGradGuard no_grad;
        static_cast<void>(call(step));
        model->train();
      }
      if (world.rank() == 0 && step == at[out.size()]) out.push_back(resident_memory::now());
    }
  });
  return out;
}

constexpr std::int64_t kMiB = 1 << 20;

void check(const std::vector<std::int64_t>& resident) {
  if (resident_memory::kIsOnlyTheProgram) {
    CHECK(resident.back() <= resident.front() + 4 * kMiB);
  } else {
    WARN("not compared: " << resident.front() << " and " << resident.back() << " bytes, with what the sanitizer keeps");
  }
}

TEST_CASE("soak: 600 steps take no more memory than 200") { check(train({200, 600})); }

TEST_CASE("soak: 10,000 steps take no more memory than 500", "[.nightly]") {
  const auto resident = train({500, 2500, 5000, 10000});
  for (const auto bytes : resident) WARN("resident: " << static_cast<double>(bytes) / kMiB << " MiB");
  check(resident);
}

}  // namespace soak_test
