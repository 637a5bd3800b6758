#include <array>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "torch/cost/measured/of_rank_0.hpp"
#include "torch/cost/measured/profiler.hpp"
#include "torch/cost/measured/stopwatch.hpp"
#include "torch/device/host_copies.hpp"

namespace autopar::cost {

namespace {

constexpr std::array<std::int64_t, 3> kCopiedBytes{1 << 16, 1 << 21, 1 << 25};
constexpr int kCopyRepetitions = 7;

/// Seconds of one copy, the mean of both directions.
double seconds_of_copy(std::int64_t bytes, c10::Device device) {
  const at::NoGradGuard no_grad;
  constexpr bool kNonBlocking = true;
  auto there = at::zeros({bytes / 4}, at::TensorOptions().dtype(at::kFloat).device(device));
  auto here = devices::host_memory(bytes / 4, at::kFloat, device);
  here.zero_();
  std::vector<double> times;
  for (int i = 0; i < kCopyRepetitions; ++i) {
    times.push_back(detail::seconds_of(device, [&] {
      here.copy_(there, kNonBlocking);
      there.copy_(here, kNonBlocking);
    }));
  }
  return detail::median(times) / 2;
}

}  // namespace

MeasuredHost measure_host(World& world, c10::Device device) {
  MeasuredHost host;
  if (device.is_cpu()) return host;
  world.barrier("measuring copies to the host");
  std::vector<MeasuredPoint> points;
  for (const auto bytes : kCopiedBytes) points.push_back({static_cast<double>(bytes), seconds_of_copy(bytes, device)});
  host.copy = CostCurve(detail::of_rank_0(world, points, "sharing measured copies to the host"));
  host.updates = measure_updates(world, c10::Device(c10::kCPU));
  return host;
}

}  // namespace autopar::cost
