#include <torch/torch.h>

#include <catch_shim.hpp>

#include <autopar/torch/device.hpp>

#include "../../numerics/matrix.hpp"

namespace gpu_offload_test {

using namespace numerics;

constexpr double kTolerance = 1e-12;

void require(bool holds, const std::string& what) {
  if (!holds) throw Failure(what);
}

/// Rows of the matrix with their optimizers offloaded.
void run_slice(autopar::World& world, std::size_t count) {
  std::vector<std::vector<int>> rows;
  for (const auto& row : MatrixFactors::pairwise()) {
    if (MatrixFactors::ranks(row) == world.size()) rows.push_back(row);
  }
  REQUIRE(rows.size() >= count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& row = rows[i * rows.size() / count];
    auto setup = MatrixFactors::setup(row);
    setup.options.offload = autopar::Offload::kOptimizer;
    if (i % 8 > 0) setup.options.costs = autopar::CostChoice::kRoofline;  // measuring takes seconds
    INFO(MatrixFactors::describe(row) << ", offloaded");
    matrix_models()[static_cast<std::size_t>(row[0])].prepare(setup, 17)(world);
  }
}

torch::nn::Sequential layers(int64_t width) {
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::Tanh(), torch::nn::Linear(width, width),
                               torch::nn::Tanh(), torch::nn::Linear(width, 1));
}

torch::Tensor samples(int step, int rank, int64_t width) {
  return torch::linspace(-1, 1, 6 * width).mul(1 + step + 3 * rank).sin().view({6, width});
}

/// A loss that is computed outside is the sum over the ranks' losses.
torch::Tensor loss_of(const torch::Tensor& output) { return output.square().sum(); }

TEST_CASE("pairwise matrix with offload: NCCL equals one CPU process") {
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  torch::set_num_threads(1);
  autopar::World world(0, nullptr);
  REQUIRE(autopar::device(world).is_cuda());
  run_slice(world, 16);
}

// An optimizer on the host runs while the device may still be at work: what it steps must be there, and stay there
// until it was copied. Steps follow evaluations at once, gradients of several calls add up, and the model is large
// enough for copies to last.
TEST_CASE("offloaded optimizer: waits for the device, memory is pinned") {
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  torch::set_num_threads(1);
  autopar::World world(0, nullptr);
  constexpr int64_t kWidth = 1500;
  for (const int zero : {0, 1, 2, 3}) {
    INFO("zero " << zero);
    auto reference = layers(kWidth);
    torch::optim::SGD expected(reference->parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9));
    std::vector<torch::Tensor> evaluated;
    for (int step = 0; step < 4; ++step) {
      expected.zero_grad(step % 2 == 0);
      for (int call = 0; call < 2; ++call) {
        for (int r = 0; r < world.size(); ++r)
          loss_of(reference->forward(samples(2 * step + call, r, kWidth))).backward();
      }
      const torch::NoGradGuard no_grad;
      evaluated.push_back(reference->forward(samples(9, world.rank(), kWidth)));
      expected.step();
    }
    autopar::AutoParallel<torch::nn::Sequential> model(
        world, layers(kWidth), {.zero = zero, .offload = autopar::Offload::kOptimizer, .replicas = {world.size()}});
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9));
    model->attach(optimizer);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad(step % 2 == 0);
      {
        const auto guard = model->no_sync();
        loss_of(model(samples(2 * step, world.rank(), kWidth))).backward();
      }
      loss_of(model(samples(2 * step + 1, world.rank(), kWidth))).backward();
      torch::Tensor result;
      {
        const torch::NoGradGuard no_grad;
        result = model(samples(9, world.rank(), kWidth));
      }
      optimizer.step();
      check_close(result, evaluated[static_cast<std::size_t>(step)], kTolerance, "evaluation " + std::to_string(step));
    }
    for (const auto& item : model->named_parameters()) {
      const auto& parameter = item.value();
      require(parameter.device().is_cpu() && parameter.grad().device().is_cpu(), item.key() + " is not on the host");
      require(parameter.numel() == 0 || (parameter.is_pinned() && parameter.grad().is_pinned()),
              item.key() + " is not page-locked");
      check_close(model->gather(parameter), reference->named_parameters()[item.key()], kTolerance,
                  "at the end, " + item.key());
    }
  }
}

// Values come in 32 bits, in pieces, and are cast on the device: what it computes with must be the casts of the host's
// values.
TEST_CASE("16-bit offload: device computes with casts of current values") {
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  autopar::World world(0, nullptr);
  constexpr int64_t kWidth = 1500;
  const auto input = [&](int step) { return samples(step, world.rank(), kWidth).to(torch::kFloat); };
  for (const int zero : {0, 1, 2, 3}) {
    INFO("zero " << zero);
    autopar::AutoParallel<torch::nn::Sequential> model(world, layers(kWidth),
                                                       {.zero = zero,
                                                        .offload = autopar::Offload::kOptimizer,
                                                        .replicas = {world.size()},
                                                        .precision = autopar::Precision::kBf16});
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1e-2).momentum(0.9));
    model->attach(optimizer);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      loss_of(model(input(step))).backward();
      optimizer.step();
    }
    const auto copy = layers(kWidth);
    for (const auto& item : model->named_parameters()) {
      require(item.value().device().is_cpu() && item.value().scalar_type() == torch::kFloat,
              item.key() + " is no owner on the host");
      const torch::NoGradGuard no_grad;
      copy->named_parameters()[item.key()].copy_(model->gather(item.value()));
    }
    autopar::AutoParallel<torch::nn::Sequential> plain(world, copy,
                                                       {.zero = 0,
                                                        .offload = autopar::Offload::kNone,
                                                        .replicas = {world.size()},
                                                        .precision = autopar::Precision::kBf16});
    const torch::NoGradGuard no_grad;
    require(torch::equal(model(input(9)), plain(input(9))),
            "the device computes with other values than the host holds");
  }
}

}  // namespace gpu_offload_test
