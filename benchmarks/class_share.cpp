// One rank's share of a step of a head of many classes, alone on its device: of `--ranks` ranks it holds an equal part
// of the classes, for the features of the whole batch. The other ranks are imagined: what travels takes no time. One
// JSON line.
//
//   class_share logits --classes 1000000                  logits of the own classes, the gradient written over them
//   class_share chunked --classes 1000000                 without them
//   AUTOPAR_DEVICE=cpu class_share logits --classes 80000 --batch 64 --width 64
//
// step_ms: the median of forward, backward and SGD with momentum, on CUDA by events on the stream. peak_mib: of the
// whole run, on CUDA what libtorch's allocator gave out, else what the process had resident. --beside holds memory
// besides, as a backbone would. PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:F imitates a smaller device.

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <CLI/CLI.hpp>

#include <autopar/core/error.hpp>
#include <autopar/shard/collectives.hpp>
#include <autopar/shard/cross_entropy.hpp>
#include <autopar/shard/linear_cross_entropy.hpp>
#include <autopar/torch/device.hpp>
#include <autopar/training/memory.hpp>

#include "shard/group_state.hpp"
#include "train/meter.hpp"

namespace {

namespace ap = autopar;
namespace training = ap::training;
using at::Tensor;

/// The first of several ranks, of which the others say what it says: gathers repeat its part, sums are left as they
/// are.
class ImaginedRanks final : public ap::detail::GroupState {
 public:
  explicit ImaginedRanks(std::vector<ap::Rank> ranks) : GroupState(std::move(ranks), 0) {}

  void all_reduce(const Tensor& /*tensor*/, const std::function<void()>& meanwhile) override {
    if (meanwhile) meanwhile();
  }
  void reduce_scatter(const Tensor& /*parts*/, const std::function<void()>& meanwhile) override {
    if (meanwhile) meanwhile();
  }
  void all_gather(const Tensor& parts) override {
    parts.narrow(0, 1, size() - 1).copy_(parts.narrow(0, 0, 1).expand_as(parts.narrow(0, 1, size() - 1)));
  }
  void send(const Tensor& /*tensor*/, int /*to_place*/) override { refuse(); }
  void receive(const Tensor& /*tensor*/, int /*from_place*/) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw ap::InvalidArgument("nobody is there to exchange messages with"); }
};

ap::Group imagined_group(int size) {
  std::vector<ap::Rank> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back(rank);
  return ap::Group(std::make_shared<ImaginedRanks>(std::move(ranks)));
}

/// Milliseconds between two moments of a stream; on CPUs of the clock.
class Stopwatch {
 public:
  explicit Stopwatch(c10::Device device) : device_(device), begin_(train::Clock::now()) {
    if (!device.is_cpu()) start_ = mark();
  }
  void stop() {
    if (device_.is_cpu())
      seconds_ = train::since(begin_);
    else
      end_ = mark();
  }
  /// Of a stopped one; waits for the device.
  [[nodiscard]] double milliseconds() const {
    if (device_.is_cpu()) return 1e3 * seconds_;
    end_->synchronize();
    return start_->elapsedTime(*end_);
  }

 private:
  [[nodiscard]] std::unique_ptr<c10::Event> mark() const {
    auto event = std::make_unique<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    event->record(c10::impl::getDeviceGuardImpl(device_.type())->getStream(device_));
    return event;
  }

  c10::Device device_;
  train::Clock::time_point begin_;
  double seconds_ = 0;
  std::unique_ptr<c10::Event> start_, end_;
};

struct Job {
  std::string loss;
  std::int64_t classes = 1'000'000;
  int ranks = 8;
  std::int64_t batch = 256, width = 2048, beside = 0;
  int steps = 20;
};

/// A column parallel layer and its loss.
struct Head {
  ap::Group group;
  ap::Split split;
  Tensor weight, bias;

  [[nodiscard]] Tensor loss(const Tensor& features, const Tensor& target, bool chunked) const {
    if (chunked) {
      return ap::linear_cross_entropy(features, ap::Placed::shard(weight, group, 0, split),
                                      ap::Placed::shard(bias, group, 0, split), target);
    }
    const auto logits = at::linear(ap::copy(features, group).local(), weight, bias);
    return ap::parallel_cross_entropy(ap::Placed::shard(logits, group, 1, split), target);
  }
};

void measure(const Job& job, c10::Device device) {
  constexpr int kWarmUps = 3;
  torch::manual_seed(1);
  const auto options = at::TensorOptions().device(device);
  const Tensor held = at::empty({job.beside << 20}, options.dtype(at::kByte));
  const auto split = ap::Split::even(job.classes, job.ranks);
  const auto parameter = [&](at::IntArrayRef sizes) {
    return at::empty(sizes, options).uniform_(-0.02, 0.02).set_requires_grad(true);
  };
  const Head head{imagined_group(job.ranks), split, parameter({split.length(0), job.width}),
                  parameter({split.length(0)})};
  auto features = at::randn({job.batch, job.width}, options).set_requires_grad(true);
  const auto target = at::randint(job.classes, {job.batch}, options.dtype(at::kLong));
  torch::optim::SGD optimizer({head.weight, head.bias}, torch::optim::SGDOptions(0.05).momentum(0.9));

  std::vector<Stopwatch> watches;
  double loss = 0;
  for (int step = 0; step < kWarmUps + job.steps; ++step) {
    Stopwatch watch(device);
    optimizer.zero_grad();
    features.mutable_grad().reset();
    const auto mean = head.loss(features, target, job.loss == "chunked");
    mean.backward();
    optimizer.step();
    watch.stop();
    if (step == 0) loss = mean.item<double>();
    if (step >= kWarmUps) watches.push_back(std::move(watch));
  }
  std::vector<double> milliseconds;
  for (const auto& watch : watches) milliseconds.push_back(watch.milliseconds());
  std::printf(
      "{\"program\": \"autopar\", \"loss\": \"%s\", \"classes\": %ld, \"ranks\": %d, \"batch\": %ld, \"width\": %ld, "
      "\"beside_mib\": %ld, \"step_ms\": %.3f, \"peak_mib\": %.1f, \"first_loss\": %.6f}\n",
      job.loss.c_str(), static_cast<long>(job.classes), job.ranks, static_cast<long>(job.batch),
      static_cast<long>(job.width), static_cast<long>(job.beside), train::median(milliseconds),
      static_cast<double>(training::peak_memory(device)) / (1 << 20), loss);
}

}  // namespace

int main(int argc, char** argv) try {
  ap::World world(argc, argv);
  Job job;
  CLI::App options("One rank's share of a step of a head of many classes");
  options.add_option("loss", job.loss, "logits or chunked")->required()->check(CLI::IsMember({"logits", "chunked"}));
  options.add_option("--classes", job.classes, "of all ranks")->check(CLI::PositiveNumber)->capture_default_str();
  options.add_option("--ranks", job.ranks)->check(CLI::Range(2, 1 << 20))->capture_default_str();
  options.add_option("--batch", job.batch, "samples of all ranks")->check(CLI::PositiveNumber)->capture_default_str();
  options.add_option("--width", job.width, "features")->check(CLI::PositiveNumber)->capture_default_str();
  options.add_option("--steps", job.steps)->check(CLI::PositiveNumber)->capture_default_str();
  options.add_option("--beside", job.beside, "MiB held besides")->check(CLI::NonNegativeNumber)->capture_default_str();
  CLI11_PARSE(options, argc, argv);
  measure(job, ap::device(world));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "class_share: %s\n", error.what());
  return 1;
}
