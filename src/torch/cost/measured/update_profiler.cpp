#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <autopar/torch/optim/fused.hpp>

#include "torch/cost/measured/of_rank_0.hpp"
#include "torch/cost/measured/profiler.hpp"
#include "torch/cost/measured/step_stopwatch.hpp"
#include "torch/cost/measured/stopwatch.hpp"

namespace autopar::cost {

namespace {

constexpr int kMostTensors = 512;
constexpr int kUpdateRepetitions = 8;

/// Sizes of tensors, and of all tensors of a probe together.
struct ProbeBytes {
  std::array<std::int64_t, 3> tensors;
  std::int64_t most;
};

// A GPU's cache takes what a step writes, and memory gets it when the step is over. So steps are ten times as large as
// that cache: a step of 32 MiB seems a fifth faster than it is.
ProbeBytes probe_bytes(c10::Device device) {
  if (device.is_cpu()) return {{1 << 10, 1 << 17, 1 << 22}, 16 << 20};
  constexpr std::int64_t kMost = 512 << 20, kPartOfFree = 16;
  const auto free = c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first;
  return {{1 << 12, 1 << 20, 1 << 26}, std::min(kMost, static_cast<std::int64_t>(free) / kPartOfFree)};
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

/// By state bytes for each parameter byte: without state, SGD with momentum, Adam.
template <class Sgd, class Adam>
std::array<MakeOptimizer, 3> optimizers_by_state() {
  const auto sgd = [](double momentum) -> MakeOptimizer {
    return [momentum](std::vector<at::Tensor> parameters) {
      return std::make_unique<Sgd>(std::move(parameters), torch::optim::SGDOptions(1e-3).momentum(momentum));
    };
  };
  return {sgd(0), sgd(0.9), [](std::vector<at::Tensor> parameters) {
            return std::make_unique<Adam>(std::move(parameters), torch::optim::AdamOptions(1e-3));
          }};
}

/// Seconds to update one tensor of `bytes` bytes, queued behind earlier work on a device.
double seconds_of_update(const MakeOptimizer& make, std::int64_t bytes, std::int64_t most,
                         detail::StepStopwatch& stopwatch) {
  const auto device = stopwatch.device();
  const auto count = std::clamp<std::int64_t>(most / bytes, 1, kMostTensors);
  std::vector<at::Tensor> tensors;
  for (std::int64_t i = 0; i < count; ++i) {
    auto& tensor = tensors.emplace_back(at::ones({bytes / 4}, at::TensorOptions().dtype(at::kFloat).device(device)));
    tensor.set_requires_grad(true);
    tensor.mutable_grad() = at::ones({bytes / 4}, at::TensorOptions().dtype(at::kFloat).device(device));
  }
  const auto optimizer = make(tensors);
  static_cast<void>(optimizer->step());  // makes the state
  auto rest_of_step = at::empty({detail::kCacheBytes / 4}, at::TensorOptions().dtype(at::kFloat).device(device));
  std::vector<double> times;
  for (int i = 0; i < kUpdateRepetitions; ++i) {
    rest_of_step.fill_(i);  // earlier work of a step leaves no parameters in caches
    const auto taken = stopwatch.time([&] { static_cast<void>(optimizer->step()); });
    if (i > 0) times.push_back(std::max(taken.device, taken.host));  // the first sets how far ahead the host is
  }
  return detail::median(times) / static_cast<double>(count);
}

}  // namespace

std::map<int, CostCurve> measure_updates(World& world, c10::Device device, bool at_once) {
  const auto by_state_factor = at_once ? optimizers_by_state<optim::SGD, optim::Adam>()
                                       : optimizers_by_state<torch::optim::SGD, torch::optim::Adam>();
  const auto bytes_of = probe_bytes(device);
  detail::StepStopwatch stopwatch(device);
  std::map<int, CostCurve> updates;
  world.barrier("measuring optimizers");
  for (std::size_t factor = 0; factor < by_state_factor.size(); ++factor) {
    std::vector<MeasuredPoint> points;
    for (const auto bytes : bytes_of.tensors) {
      const double seconds = seconds_of_update(by_state_factor[factor], bytes, bytes_of.most, stopwatch);
      points.push_back({static_cast<double>(bytes), seconds});
    }
    updates[static_cast<int>(factor)] = CostCurve(detail::of_rank_0(world, points, "sharing measured optimizers"));
  }
  return updates;
}

}  // namespace autopar::cost
