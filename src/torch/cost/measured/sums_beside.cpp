#include "torch/cost/measured/sums_beside.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include "shard/tensor_buffer.hpp"
#include "torch/cost/measured/stopwatch.hpp"

namespace autopar::cost::detail {

namespace {

constexpr std::int64_t kBuckets[] = {1 << 25, 1 << 23, 1 << 20};  // bytes; as gradients are summed
constexpr int kMostSums = 200;
constexpr int kRuns = 5;

Buffer zeros_of(std::int64_t bytes, c10::Device device) {
  return buffer_of(at::zeros({bytes / 4}, at::TensorOptions(at::kFloat).device(device)));
}

}  // namespace

SumsBeside::SumsBeside(AnyTransport wire, GroupId group, TransferCurve curve, c10::Device device)
    : wire_(std::move(wire)), group_(group), curve_(std::move(curve)), device_(device) {}

double SumsBeside::choose(double seconds) {
  const auto of_one = [&](std::int64_t bytes) { return curve_(Bytes(bytes)).value(); };
  const auto fits = std::ranges::find_if(kBuckets, [&](std::int64_t bytes) { return of_one(bytes) <= seconds; });
  bytes_ = fits == std::end(kBuckets) ? *std::rbegin(kBuckets) : *fits;
  count_ = std::clamp(static_cast<int>(seconds / of_one(bytes_)), 1, kMostSums);
  return count_ * of_one(bytes_);
}

double SumsBeside::timed(StepStopwatch& stopwatch, const std::function<double()>& compute, bool beside) {
  const Buffer token = zeros_of(4, device_), bucket = zeros_of(bytes_, device_);
  std::vector<AnyTransport::Ticket> under_way;
  StepStopwatch::Together together;
  together.meet = [&] { wire_.wait(wire_.all_reduce(token, DType::kF32, group_)); };
  if (beside) {
    together.begin = [&] {
      for (int i = 0; i < count_; ++i) under_way.push_back(wire_.all_reduce(bucket, DType::kF32, group_));
    };
    together.end = [&] {
      for (const auto& sum : std::exchange(under_way, {})) wire_.wait(sum);
    };
  }
  stopwatch.run_beside(std::move(together));
  std::vector<double> times;
  static_cast<void>(compute());
  for (int i = 0; i < kRuns; ++i) times.push_back(compute());
  stopwatch.run_beside({});
  return median(times);
}

Contention SumsBeside::contention(StepStopwatch& stopwatch) {
  constexpr double kSums = 5e-3;             // seconds, about
  constexpr double kLong = 3, kShort = 0.4;  // of the sums' time: the sums end first, or last
  choose(kSums);
  const double sums = timed(
      stopwatch, [&] { return stopwatch.time([] {}).device; }, true);
  const auto delayed = [&](double share, double& computing) {
    const auto compute = [&] { return stopwatch.time([&] { stopwatch.keep_busy(share * sums); }).device; };
    computing = timed(stopwatch, compute, false);
    return timed(stopwatch, compute, true);
  };
  double of_long = 0, of_short = 0;
  const double with_long = delayed(kLong, of_long), with_short = delayed(kShort, of_short);
  return {std::clamp((with_long - of_long) / sums, 0.0, 1.0), std::clamp((with_short - sums) / of_short, 0.0, 1.0)};
}

}  // namespace autopar::cost::detail
