// What plans of large models predict against what their steps take on GPUs: time, and memory by rank. One JSON line.
//
//   mpiexec -n 4 large_models mlp --width 5000 --layers 1000 --batch 64          25 billion parameters
//   mpiexec -n 4 large_models transformer --width 2048 --layers 96 --length 512  4.9 billion
//
// Options of plans: AUTOPAR_ZERO, AUTOPAR_PRECISION, … Time: the median over the steps, after two, of what rank 0 needs
// from one barrier to the next. Memory: the most that libtorch's allocator had given out since the model was made;
// "reserved" with what it keeps.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/DeviceAccelerator.h>
#include <torch/optim.h>
#include <torch/utils.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <autopar/autopar.hpp>

#include "models.hpp"

namespace {

namespace ap = autopar;
using Clock = std::chrono::steady_clock;

struct Job {
  std::string model, optimizer = "sgd";
  std::int64_t width = 5000, layers = 100, length = 512, batch = 8;
  int steps = 5;
};

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

template <class T>
std::vector<T> of_all(ap::World& world, const T& mine) {
  std::vector<T> all;
  for (const auto& blob : world.all_gather(std::as_bytes(std::span(&mine, 1)), "gathering figures")) {
    std::memcpy(&all.emplace_back(), blob.data(), sizeof(T));
  }
  return all;
}

/// Bytes of this rank's device since `reset`.
struct DeviceMemory {
  c10::Device device;

  void reset() const {
    if (device.is_cuda()) at::accelerator::resetPeakStats(device.index());
  }
  [[nodiscard]] std::int64_t allocated() const {
    return peak(&at::CachingDeviceAllocator::DeviceStats::allocated_bytes);
  }
  [[nodiscard]] std::int64_t reserved() const { return peak(&at::CachingDeviceAllocator::DeviceStats::reserved_bytes); }

 private:
  template <class Member>
  [[nodiscard]] std::int64_t peak(Member of) const {
    if (!device.is_cuda()) return 0;
    return (at::accelerator::getDeviceStats(device.index()).*of)[0].peak;
  }
};

/// The most that this process had resident.
std::int64_t host_peak() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kibibytes = 0;
    if (word == "VmHWM:" && status >> kibibytes) return kibibytes << 10;
  }
  return 0;
}

std::vector<double> gibibytes(const std::vector<std::int64_t>& bytes) {
  std::vector<double> out;
  for (const auto one : bytes) out.push_back(std::round(static_cast<double>(one) / (1 << 30) * 1000) / 1000);
  return out;
}

/// Of each rank, all its stages.
std::vector<std::int64_t> predicted_bytes(const ap::Plan& plan) {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(plan.world));
  for (const auto& stage : plan.stages) {
    for (const auto rank : stage.mesh.ranks()) bytes[rank.index()] += stage.peak_memory.value();
  }
  return bytes;
}

std::unique_ptr<torch::optim::Optimizer> made_optimizer(const std::string& name, std::vector<at::Tensor> parameters) {
  if (name == "adamw")
    return std::make_unique<ap::optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(1e-4));
  return std::make_unique<torch::optim::SGD>(std::move(parameters), 1e-4);
}

template <class Net, class Make>
void run(ap::World& world, const Job& job, const Make& make, const at::Tensor& x, const at::Tensor& y) {
  const auto start = Clock::now();
  const DeviceMemory memory{ap::device(world)};
  memory.reset();
  ap::AutoParallel<Net> model(world, make);
  const auto optimizer = made_optimizer(job.optimizer, model->parameters());
  model->attach(*optimizer);
  model->prepare(x, y);
  const double setup = since(start);
  if (world.rank() == 0) std::cerr << model->plan() << std::endl;
  std::vector<double> times;
  std::vector<float> losses;
  for (int i = 0; i < job.steps + 2; ++i) {
    world.barrier("start of a step");
    const auto from = Clock::now();
    optimizer->zero_grad();
    const auto loss = model(x, y);
    loss.backward();
    optimizer->step();
    losses.push_back(loss.template item<float>());
    if (memory.device.is_cuda()) at::accelerator::synchronizeDevice(memory.device.index());
    world.barrier("end of a step");
    if (i >= 2) times.push_back(since(from));
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  const auto predicted = predicted_bytes(model->plan());
  const auto allocated = of_all(world, memory.allocated()), reserved = of_all(world, memory.reserved());
  const auto host = of_all(world, host_peak());
  if (world.rank() > 0) return;
  std::vector<double> error;
  for (std::size_t r = 0; r < predicted.size(); ++r) {
    error.push_back(
        allocated[r] > 0
            ? std::round(1e3 * (static_cast<double>(predicted[r]) / static_cast<double>(allocated[r]) - 1)) / 1e3
            : 0);
  }
  const auto& plan = model->plan();
  std::cout << nlohmann::json{{"model", job.model},
                              {"parameters", model->parameter_count()},
                              {"ranks", world.size()},
                              {"optimizer", job.optimizer},
                              {"precision", ap::to_string(plan.precision)},
                              {"plan", ap::describe(plan) + ap::describe(ap::memory_optimizations_of(plan))},
                              {"setup_seconds", setup},
                              {"predicted_step_ms", plan.step.value() * 1e3},
                              {"step_ms", times[times.size() / 2] * 1e3},
                              {"predicted_gib", gibibytes(predicted)},
                              {"allocated_gib", gibibytes(allocated)},
                              {"reserved_gib", gibibytes(reserved)},
                              {"memory_error", error},
                              {"host_peak_gib", gibibytes(host)},
                              {"losses", losses}}
                   .dump()
            << std::endl;
}

}  // namespace

int main(int argc, char** argv) try {
  ap::World world(argc, argv);
  Job job;
  CLI::App app("Trains a large model on random data; prints what was predicted and what was measured.");
  app.add_option("model", job.model)->required()->check(CLI::IsMember({"mlp", "transformer"}));
  app.add_option("--width", job.width)->check(CLI::PositiveNumber);
  app.add_option("--layers", job.layers)->check(CLI::PositiveNumber);
  app.add_option("--length", job.length, "words of a text")->check(CLI::PositiveNumber);
  app.add_option("--batch", job.batch, "samples of each rank")->check(CLI::PositiveNumber);
  app.add_option("--optimizer", job.optimizer)->check(CLI::IsMember({"sgd", "adamw"}));
  app.add_option("--steps", job.steps)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  torch::manual_seed(1);
  const auto device = ap::device(world);
  if (job.model == "mlp") {
    run<models::Mlp>(
        world, job, [&] { return models::Mlp(job.width, job.layers); }, torch::randn({job.batch, job.width}, device),
        torch::randn({job.batch, job.width}, device));
  } else {
    const auto text =
        torch::randint(models::TransformerImpl::kWords, {job.batch, job.length + 1}, torch::kLong).to(device);
    run<models::Transformer>(
        world, job, [&] { return models::Transformer(job.width, job.layers, job.length); },
        text.slice(1, 0, -1).contiguous(), text.slice(1, 1).contiguous());
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "large_models: " << error.what() << '\n';
  return 1;
}
