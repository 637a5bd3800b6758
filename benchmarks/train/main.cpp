// Trains one model through AutoParallel and unwrapped, and prints a JSON line for each half: time of a step, memory,
// time until the first step is done, what the plan predicted.
//
//   train gpt                                  both halves, each in a process of its own
//   train resnet50 --mode libtorch --trace     one of them, with its kernels by class
//   train bert24 --small --device cpu          seconds on two cores; there the halves take turns step by step
//   mpiexec -n 2 train mlp --small             several ranks: autopar alone, beside peers.py
//
// step_ms: the median over steps, the device waited for after each. loop_ms: a step of a loop that waits at its end
// alone, as trainings do: what comes before a step's first kernel is hidden there. peak_gib: during the steps after the
// first two, of the rank that holds most (setup_peak_gib: before). setup_s: construction and the first step. replayed:
// steps that were CUDA graphs. Options of
// plans: AUTOPAR_ZERO, AUTOPAR_RECOMPUTE, …

#include <algorithm>
#include <array>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/utils.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <autopar/autopar.hpp>
#include <autopar/training/memory.hpp>
#include <autopar/training/peak_flops.hpp>

#include "command_line/command_line.hpp"
#include "meter.hpp"
#include "other_half.hpp"
#include "trace.hpp"
#include "works.hpp"

namespace {

namespace ap = autopar;
namespace training = ap::training;
using train::Work;

/// After the first step: until what repeats is recorded. What they hold counts, as a replay's memory is the
/// recording's.
constexpr int kWarmUps = 4;

struct Job {
  train::Request request;
  std::string mode = "both";
  ap::DeviceChoice device = ap::DeviceChoice::kAuto;
  int steps = 10, threads = 0;
  double throw_after = 0;  ///< seconds; 0: never
  bool trace = false, on_demand = false;
};

/// A model in training, and its figures.
struct Half {
  std::function<at::Tensor()> step;  ///< @return the loss
  c10::Device device = c10::kCPU;
  nlohmann::json line;
  std::vector<double> seconds, cpu_seconds, issue_seconds;
  double loop_seconds = 0;  ///< of a step
  at::Tensor loss;

  void timed_loop(int steps) {
    train::wait_for(device);
    const auto start = train::Clock::now();
    for (int i = 0; i < steps; ++i) loss = step();
    train::wait_for(device);
    loop_seconds = train::since(start) / std::max(1, steps);
  }

  double timed_step() {
    const auto start = train::Clock::now();
    const double cpu = train::cpu_seconds();
    loss = step();
    issue_seconds.push_back(train::since(start));  // as long as the step: the device waited for the host
    train::wait_for(device);
    seconds.push_back(train::since(start));
    cpu_seconds.push_back(train::cpu_seconds() - cpu);
    return seconds.back();
  }
};

/// Runs the module's forward as the reference does: in libtorch's autocast, or with products in TF32.
at::Tensor unwrapped_forward(auto& model, const Work& work, c10::Device device) {
  const bool brain = work.precision == ap::Precision::kBf16 || ap::computes_in_bf16(work.precision);
  if (!brain && work.precision != ap::Precision::kFp16) return model(work.x, work.y);
  at::autocast::set_autocast_enabled(device.type(), true);
  at::autocast::set_autocast_dtype(device.type(), brain ? at::kBFloat16 : at::kHalf);
  auto loss = model(work.x, work.y);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device.type(), false);
  return loss;
}

template <class Make>
void make_unwrapped(Half& half, const Work& work, const Make& make) {
  auto model = make();
  model->to(half.device);
  const std::shared_ptr<torch::optim::Optimizer> optimizer = train::made_optimizer(work, model->parameters());
  half.step = [model, optimizer, work, device = half.device]() mutable {
    optimizer->zero_grad();
    auto loss = unwrapped_forward(model, work, device);
    loss.backward();
    optimizer->step();
    return loss.detach();
  };
}

template <class Make>
void make_wrapped(ap::World& world, Half& half, const Work& work, const Make& make) {
  ap::Options options;
  options.precision = work.precision;
  options.device = half.device.is_cuda() ? ap::DeviceChoice::kCuda : ap::DeviceChoice::kCpu;
  if (half.device.is_cpu()) options.costs = ap::CostChoice::kProfiled;  // what a CPU does a second is a guess otherwise
  using Net = std::invoke_result_t<const Make&>;
  ap::AutoParallel<Net> model(world, make, options);
  const std::shared_ptr<torch::optim::Optimizer> optimizer = train::made_optimizer(work, model->parameters());
  model->attach(*optimizer);
  half.step = [model, optimizer, work, &half, predicted = false]() mutable {
    optimizer->zero_grad();
    auto loss = model(work.x, work.y);
    loss.backward();
    optimizer->step();
    if (!std::exchange(predicted, true)) {
      const auto& plan = model->plan();
      std::map<ap::Rank, double> bytes;  // a rank may run several stages
      for (const auto& stage : plan.stages) {
        for (const auto rank : stage.mesh.ranks()) bytes[rank] += static_cast<double>(stage.peak_memory.value());
      }
      const auto most = std::ranges::max_element(bytes, {}, [](const auto& each) { return each.second; });
      half.line["predicted_ms"] = plan.step.value() * 1e3;
      half.line["predicted_gib"] = most->second / (1 << 30);
      half.line["plan"] = ap::describe(plan) + ap::describe(ap::memory_optimizations_of(plan));
    }
    half.line["replayed"] = model->stats().replayed;
    return loss.detach();
  };
}

double own_peak_gib(c10::Device device) { return static_cast<double>(training::peak_memory(device)) / (1 << 30); }

/// Construction, the first step and the warm-up.
void start(Half& half, const std::function<void()>& construct) {
  training::reset_peak_memory(half.device);
  const auto begin = train::Clock::now();
  construct();
  half.line["construct_s"] = train::since(begin);
  const auto first = half.step();
  train::wait_for(half.device);
  half.line["setup_s"] = train::since(begin);
  half.line["first_loss"] = first.item<double>();
  half.line["setup_peak_gib"] = own_peak_gib(half.device);
  training::reset_peak_memory(half.device);
  for (int i = 0; i < kWarmUps; ++i) half.step();
  train::wait_for(half.device);
}

/// The most that a rank held. All ranks call it.
double peak_gib(ap::World& world, c10::Device device) {
  std::vector<double> of_ranks(static_cast<std::size_t>(world.size()));
  of_ranks[static_cast<std::size_t>(world.rank())] = own_peak_gib(device);
  world.all_reduce_sum(std::span(of_ranks), "peak memory");
  return *std::max_element(of_ranks.begin(), of_ranks.end());
}

nlohmann::json finished(ap::World& world, Half& half, const Work& work, const Job& job, const std::string& mode,
                        const std::string& device) {
  const int ranks = world.size();
  if (half.device.is_cuda()) half.timed_loop(job.steps);
  auto& line = half.line;
  const double step = train::median(half.seconds);
  line["work"] = work.name;
  line["mode"] = mode;
  line["small"] = job.request.small;
  line["device"] = device;
  line["ranks"] = ranks;
  line["batch"] = work.batch * ranks;
  line["precision"] = ap::option_text(work.precision);
  line["optimizer"] = work.optimizer;
  if (job.request.layers > 0) line["layers"] = job.request.layers;
  line["steps"] = half.seconds.size();
  line["step_ms"] = step * 1e3;
  line["cpu_ms"] = train::median(half.cpu_seconds) * 1e3;
  line["issue_ms"] = train::median(half.issue_seconds) * 1e3;
  if (half.loop_seconds > 0) line["loop_ms"] = half.loop_seconds * 1e3;
  line["samples_s"] = static_cast<double>(work.batch * ranks) / step;
  line["peak_gib"] = peak_gib(world, half.device);
  line["loss"] = half.loss.defined() ? half.loss.item<double>() : 0;
  if (const auto peak = training::peak_flops(device, work.precision)) {
    line["mfu"] = work.flops * static_cast<double>(work.batch) / step / *peak;
    line["mfu_formula"] = work.formula + " / step / " + std::to_string(static_cast<int>(*peak / 1e12)) + " TFLOP/s";
  }
  if (job.trace) {
    line["trace"] = train::traced(
        [&] {
          half.step();
          train::wait_for(half.device);
        },
        half.device);
  }
  return line;
}

/// Steps when a line comes in, until there are no more.
void serve_steps(Half& half) {
  std::cout << "ready" << std::endl;
  for (std::string word; std::getline(std::cin, word);) std::cout << half.timed_step() << std::endl;
}

void compare(nlohmann::json& line, const nlohmann::json& other, const std::vector<double>& ratios) {
  const auto of = [](const nlohmann::json& from, const char* key) { return from.at(key).get<double>(); };
  line["ratio"] = ratios.empty() ? of(other, "step_ms") / of(line, "step_ms") : train::median(ratios);
  if (line.contains("loop_ms")) line["loop_ratio"] = of(other, "loop_ms") / of(line, "loop_ms");
  line["cpu_ratio"] = of(other, "cpu_ms") / of(line, "cpu_ms");
  line["peak_ratio"] = of(line, "peak_gib") / of(other, "peak_gib");
  line["setup_over_libtorch_s"] = of(line, "setup_s") - of(other, "setup_s");
}

std::string device_name(const ap::World& world, c10::Device device) {
  return device.is_cuda() ? ap::describe_cluster(world, device).device.name : "cpu";
}

void use_threads(int wanted, int ranks_here) {
  at::set_num_threads(wanted > 0 ? wanted : std::max(1, at::get_num_threads() / ranks_here));
}

void prepare_libtorch(const Job& job) {
  torch::manual_seed(1);
  at::globalContext().setBenchmarkCuDNN(job.request.work.starts_with("resnet"));
}

void run_unwrapped(ap::World& world, const Job& job) {
  prepare_libtorch(job);
  train::with_work(job.request, [&](const Work& work, const auto& make) {
    if (work.precision == ap::Precision::kTf32) at::globalContext().setAllowTF32CuBLAS(true);
    Half half;
    half.device = job.request.device;
    start(half, [&] { make_unwrapped(half, work, make); });
    if (job.on_demand)
      serve_steps(half);
    else
      for (int i = 0; i < job.steps; ++i) half.timed_step();
    std::cout << finished(world, half, work, job, "libtorch", device_name(world, half.device)).dump() << std::endl;
  });
}

/// Prints the other half's line at once, whatever becomes of this half.
nlohmann::json ended(std::optional<train::OtherHalf>& other) {
  auto line = other->finish();
  other.reset();
  std::cout << line.dump() << std::endl;
  return line;
}

/// What becomes of the other ranks is to be seen (`cluster.sh lose`).
void throw_between_steps() {
  std::cerr << "train: this rank throws as it was asked to" << std::endl;
  throw std::runtime_error("--throw-after has passed");
}

void run_wrapped(ap::World& world, const Job& job, const std::vector<std::string>& arguments) {
  std::optional<train::OtherHalf> other;
  if (job.mode == "both" && world.size() == 1) other.emplace(arguments);
  nlohmann::json other_line;
  std::vector<double> other_seconds, ratios;
  // On a GPU one half after the other, as both want all of it; on CPUs in turn, as neither has the machine for itself.
  const bool in_turn = job.request.device.is_cpu();
  if (other) {
    other->wait_until_ready();
    if (!in_turn) {
      for (int i = 0; i < job.steps; ++i) other->step();
      other_line = ended(other);
    }
  }
  prepare_libtorch(job);
  train::with_work(job.request, [&](const Work& work, const auto& make) {
    Half half;
    half.device = job.request.device;
    start(half, [&] { make_wrapped(world, half, work, make); });
    const auto begin = train::Clock::now();
    const bool may_throw = job.throw_after > 0 && world.rank() == world.size() - 1;
    for (int i = 0; i < job.steps; ++i) {
      if (may_throw && train::since(begin) > job.throw_after) throw_between_steps();
      const double before = other ? other->step() : 0;
      const double own = half.timed_step();
      if (other) ratios.push_back(before / own);
    }
    if (other) other_line = ended(other);
    auto line = finished(world, half, work, job, "autopar", device_name(world, half.device));
    if (!other_line.is_null()) compare(line, other_line, ratios);
    if (world.rank() == 0) std::cout << line.dump() << std::endl;
  });
}

}  // namespace

int main(int argc, char** argv) try {
  Job job;
  CLI::App app("Trains a model through autopar and unwrapped; prints a JSON line for each half.");
  app.add_option("work", job.request.work)->required()->check(CLI::IsMember(train::kWorks));
  app.add_option("--mode", job.mode)
      ->check(CLI::IsMember({"both", "autopar", "libtorch"}))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--batch", job.request.batch, "samples of each rank")->check(CLI::PositiveNumber);
  app.add_option("--layers", job.request.layers, "of gpt and bert, instead of the work's own")
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", job.steps)->check(CLI::PositiveNumber);
  command_line::add_choice(app, "--device", job.device);
  command_line::add_choice(app, "--precision", job.request.precision, "instead of the work's own");
  app.add_option("--threads", job.threads, "of a rank on CPUs; as many as there are cores without it")
      ->check(CLI::PositiveNumber);
  app.add_flag("--written-attention", job.request.written_attention, "of gpt and bert: no kernel that does it all");
  app.add_flag("--small", job.request.small, "a size that two cores train in seconds");
  app.add_flag("--trace", job.trace, "one more step, its kernels by class");
  app.add_option("--throw-after", job.throw_after, "seconds of steps, after which the last rank throws")
      ->check(CLI::PositiveNumber);
  app.add_flag("--on-demand", job.on_demand, "a step for each line that comes in; for --mode both")->group("");
  CLI11_PARSE(app, argc, argv);
  std::vector<std::string> arguments(argv, argv + argc);
  ap::World world(argc, argv);
  job.request.device = ap::device_of(world, job.device);
  use_threads(job.threads, world.local_size());
  if (job.mode == "libtorch" && world.size() > 1) throw ap::InvalidArgument("--mode libtorch is of one rank");
  if (job.mode == "libtorch")
    run_unwrapped(world, job);
  else
    run_wrapped(world, job, arguments);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "train: " << error.what() << '\n';
  return 1;
}
