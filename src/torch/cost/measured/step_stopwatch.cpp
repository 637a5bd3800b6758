#include "torch/cost/measured/step_stopwatch.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/Event.h>

#include "torch/cost/measured/stopwatch.hpp"
#include "torch/device/device_context.hpp"
#include "torch/fused/philox_seed.hpp"
#include "torch/fused/products.hpp"

namespace autopar::cost::detail {

namespace {

constexpr std::int64_t kWidth = 4096;            // of a product that occupies any device
constexpr std::int64_t kNumbers = 32 << 20;      // in single precision: larger than a device's cache
constexpr double kBusy = 3e-3, kLongest = 3e-2;  // seconds of work before the timed work
constexpr double kSteady = 0.5;                  // until a device's clock follows the power of what it runs
constexpr double kAfter = 3e-2;                  // until the next timed work; after a pause of 50 ms the clock is back
constexpr std::uint64_t kFactorSeed = 7;         // of random factors: products of zeros take less power

at::Tensor random_matrix(c10::Device device) {
  return at::randn({kWidth, kWidth}, fused::make_generator(device, {kFactorSeed}),
                   at::TensorOptions().dtype(at::kHalf).device(device));
}

}  // namespace

void StepStopwatch::keep_busy(double seconds) {
  if (device_.is_cpu()) return;
  const at::NoGradGuard no_grad;
  if (!product_.defined()) measure_turn();
  const auto turns = static_cast<int>(std::ceil(seconds / of_turn_));
  for (int i = 0; i < turns; ++i) take_turn();
}

// Steps are about one half products, which take the most power, and one half passes over memory.
void StepStopwatch::take_turn() {
  constexpr int kProducts = 2;
  for (int i = 0; i < kProducts; ++i) {
    if (!fused::multiply_large({factors_[0], factors_[1], {}, product_}))
      at::mm_out(product_, factors_[0], factors_[1]);
  }
  numbers_.mul_(1);
  numbers_.mul_(1);
}

void StepStopwatch::measure_turn() {
  factors_ = {random_matrix(device_), random_matrix(device_)};
  product_ = at::empty_like(factors_[0]);
  numbers_ = at::ones({kNumbers}, at::TensorOptions().dtype(at::kFloat).device(device_));
  take_turn();  // loads the kernels
  constexpr int kTurns = 4;
  of_turn_ = seconds_of(device_,
                        [&] {
                          for (int i = 0; i < kTurns; ++i) take_turn();
                        }) /
             kTurns;
}

void StepStopwatch::run_around(std::function<void()> own) {
  own_ = std::move(own);
  if (device_.is_cpu()) return;
  own_();  // loads the kernels
  of_own_ = seconds_of(device_, own_);
  run_own(kSteady);
}

void StepStopwatch::run_own(double seconds) {
  for (double ran = 0; ran < seconds; ran += of_own_) own_();
}

void StepStopwatch::make_busy() {
  constexpr double kAhead = 1.5;  // multiple of the last queueing time
  const double seconds = std::clamp(kAhead * of_queueing_, kBusy, kLongest);
  own_ ? run_own(seconds) : keep_busy(seconds);
}

StepStopwatch::Seconds StepStopwatch::time(const std::function<void()>& work) {
  if (device_.is_cpu()) {
    const double seconds = busy_seconds_of(device_, work);
    return {seconds, seconds};
  }
  const auto stream = devices::current_stream(device_);
  c10::Event begin(device_.type(), c10::EventFlag::BACKEND_DEFAULT),
      end(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  if (!own_) synchronise(device_);
  make_busy();
  together_.meet();
  begin.record(stream);
  const auto start = std::chrono::steady_clock::now();
  together_.begin();
  work();
  together_.end();
  of_queueing_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  end.record(stream);
  if (own_) run_own(kAfter);
  end.synchronize();
  constexpr double kMillisecond = 1e-3;
  return {begin.elapsedTime(end) * kMillisecond, of_queueing_};
}

}  // namespace autopar::cost::detail
