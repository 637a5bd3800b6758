// What plans predict against what their steps take, on two ranks of this machine: time, peak memory, and which part
// of the prediction is furthest off. One JSON line a case, then a table, the errors, and the pairs of plans of a
// model that differ by more than 10 % in measured time and are not predicted in that order.
//
//   predictions [steps = 15] [mpiexec = mpiexec]     starts `mpiexec -n 2` for each case by itself; four minutes
//
// Time: the least of three rounds, some time apart, as whatever else a machine does only takes time; of each round the
// median over the steps, after three to warm up, of the slowest rank's zero_grad, forward, backward and
// optimizer step, which all ranks start together; predicted is Plan::step with costs = profiled, measured once a
// model.
// Memory: VmHWM, reset when the model is warm, less what was resident before the model was deployed, of the worst
// rank: parameters, gradients, optimizer state, activations and messages that are alive, and the session's own few
// MiB. Taken in processes of their own, whose allocator gives back freed blocks of 64 KiB and more
// (MALLOC_MMAP_THRESHOLD_). By default, as where times are taken, glibc keeps many of them: "resident_bytes".
// libtorch's code is not counted: a plain copy of the model has run before. Predicted is the largest
// StagePlan::peak_memory.
// Terms (terms.hpp) come from traces of further steps: what the plan's simulated step has on a rank, and the trace
// has.

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <malloc.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <torch/utils.h>

#include <autopar/autopar.hpp>
#include <autopar/graph/algorithms/topological_order.hpp>
#include <autopar/io/file.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/plan/planner.hpp>

#include "cases.hpp"
#include "models.hpp"
#include "summary.hpp"
#include "terms.hpp"

namespace {

namespace ap = autopar;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// ---------------------------------------------------------------- planning

/// Gives the first stage about `share` of the work, in topological order.
struct GivenShare {
  using policy_category = ap::staging_policy_tag;
  double share = 0.5;

  [[nodiscard]] ap::SearchResult search(const ap::StepObjective& objective) const {
    const auto& constraints = objective.constraints();
    const auto& graph = objective.work().graph;
    ap::Staging staging{std::vector<int>(graph.node_count(), 1),
                        {1, 1},
                        constraints.microbatches.front(),
                        constraints.schedules.front()};
    const auto samples = std::max<std::int64_t>(1, constraints.batch / staging.microbatches);
    const auto& costs = objective.work().node_costs(samples);
    double all = 0, taken = 0;
    for (const auto& cost : costs) all += (cost.forward + cost.backward).value();
    for (const auto node : ap::topological_order(graph)) {
      const double own = (costs[node.index()].forward + costs[node.index()].backward).value();
      if (taken + own > share * all) break;
      taken += own;
      staging.stage_of[node.index()] = 0;
    }
    ap::SearchResult found{ap::Candidates(constraints.memory)};
    found.candidates.offer({staging, objective(staging)});
    return found;
  }
};

/// Keeps what the benchmark needs of a planning run; the session makes its planners itself.
struct Planned {
  double first_share = 0;
  std::vector<terms::Terms> terms;  ///< by rank, on the rank that plans
};
Planned planned;

struct RecordingPlanner {
  [[nodiscard]] ap::Plan plan(const ap::ModelProfile& profile, const ap::ProfiledCost& costs,
                              const ap::Cluster& cluster, const ap::PlanRequest& request) const {
    ap::Planner<GivenShare, ap::NoCoarsening> given;  // whose cuts would be improved
    given.staging.share = planned.first_share;
    auto plan = planned.first_share > 0 ? given.plan(profile, costs, cluster, request)
                                        : ap::Planner<>{}.plan(profile, costs, cluster, request);
    planned.terms = terms::predicted(plan, profile, costs);
    return plan;
  }
};

// ---------------------------------------------------------------- memory

/// Bytes of this process under "VmRSS:" or "VmHWM:".
std::int64_t memory_status(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kibibytes = 0;
    if (word == key && status >> kibibytes) return kibibytes << 10;
  }
  throw std::runtime_error("/proc/self/status has no " + key);
}

/// The largest resident set since `reset`, less what was resident when this was made.
class MemoryPeak {
 public:
  MemoryPeak() {
    malloc_trim(0);
    before_ = memory_status("VmRSS:");
  }
  void reset() const { std::ofstream("/proc/self/clear_refs") << 5; }
  [[nodiscard]] std::int64_t bytes() const { return memory_status("VmHWM:") - before_; }

 private:
  std::int64_t before_ = 0;
};

/// Loads libtorch's kernels.
template <class Net>
void run_plain() {
  Net net;
  auto optimizer = models::Recipe<Net>::optimizer(net->parameters());
  const auto batch = models::Recipe<Net>::batch(2);
  net(batch.x, batch.y).backward();
  optimizer.step();
}

// ---------------------------------------------------------------- one case

struct StepTimes {
  double step = 0, update = 0;
};

template <class Model, class Optimizer>
StepTimes run_step(Model& model, Optimizer& optimizer, const models::Batch& batch) {
  const auto start = Clock::now();
  optimizer.zero_grad();
  model(batch.x, batch.y).backward();
  const auto updating = Clock::now();
  optimizer.step();
  return {since(start), since(updating)};
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

template <class T>
std::vector<T> of_all(ap::World& world, const T& mine) {
  std::vector<T> all;
  for (const auto& blob : world.all_gather(std::as_bytes(std::span(&mine, 1)), "gathering figures")) {
    std::memcpy(&all.emplace_back(), blob.data(), sizeof(T));
  }
  return all;
}

template <class Net>
class CaseRun {
 public:
  using Recipe = models::Recipe<Net>;
  using Model = ap::AutoParallel<Net, RecordingPlanner>;

  CaseRun(ap::World& world, const cases::Case& wanted, const fs::path& folder, const std::string& model, int steps)
      : world_(world), wanted_(wanted), folder_(folder), name_(model), steps_(steps) {
    torch::manual_seed(1);
    batch_ = Recipe::batch(Recipe::kBatch / world.size());
    planned.first_share = wanted.first_share;
    run_plain<Net>();
  }

  /// Plans, and takes times.
  [[nodiscard]] summary::Row run() {
    summary::Row row;
    row.model = name_;
    row.plan = wanted_.name;
    measure(cases::options_of(wanted_, folder_ / (name_ + ".costs")), row);
    if (world_.rank() == 0) ap::write_plan(plan_file(), *plan_);
    world_.barrier("plan is written");
    ap::Options options;
    options.plan_file = plan_file();
    options.trace_file = folder_ / "trace.json";
    options.trace_every = 1;
    trace(options, row);
    return row;
  }

  /// Bytes of the worst rank under the plan of `run`.
  [[nodiscard]] double run_for_memory() {
    ap::Options options;
    options.plan_file = plan_file();
    options.keep_memory = false;
    const MemoryPeak memory;
    Model model(
        world_, [] { return Net(); }, options);
    auto optimizer = Recipe::optimizer(model->parameters());
    model->attach(optimizer);
    for (int i = 0; i < kWarmUp; ++i) run_step(model, optimizer, batch_);
    memory.reset();
    for (int i = 0; i < kWarmUp; ++i) run_step(model, optimizer, batch_);
    return largest(memory.bytes());
  }

 private:
  static constexpr int kWarmUp = 3;

  /// That of the case, for the processes that take its memory.
  [[nodiscard]] std::string plan_file() const {
    return folder_ / (name_ + "-" + std::to_string(&wanted_ - cases::kCases.data()) + ".plan.json");
  }

  void measure(const ap::Options& options, summary::Row& row) {
    const MemoryPeak memory;
    Model model(
        world_, [] { return Net(); }, options);
    auto optimizer = Recipe::optimizer(model->parameters());
    model->attach(optimizer);
    for (int i = 0; i < kWarmUp; ++i) run_step(model, optimizer, batch_);
    malloc_trim(0);  // what measuring costs has left
    memory.reset();
    std::vector<double> times;
    for (int i = 0; i < steps_; ++i) {
      world_.barrier("start of a step");
      const auto own = run_step(model, optimizer, batch_);
      const auto all = of_all(world_, own.step);
      times.push_back(std::max(all[0], all[1]));
    }
    row.resident_bytes = largest(memory.bytes());
    plan_ = model->plan();
    row.seconds = median(times);
    row.fastest = *std::min_element(times.begin(), times.end());
    row.predicted_seconds = plan_->step.value();
    for (const auto& stage : plan_->stages) {
      row.predicted_bytes = std::max(row.predicted_bytes, static_cast<double>(stage.peak_memory.value()));
    }
  }

  void trace(const ap::Options& options, summary::Row& row) {
    Model model(
        world_, [] { return Net(); }, options);
    auto optimizer = Recipe::optimizer(model->parameters());
    model->attach(optimizer);
    terms::Measured measured;
    for (int i = 0; i < kWarmUp + steps_; ++i) {
      world_.barrier("start of a step");
      const auto updates = of_all(world_, run_step(model, optimizer, batch_).update);
      if (i < kWarmUp || world_.rank() > 0) continue;
      measured.add(ap::read_text_file(folder_ / "trace.json"), {updates[0], updates[1]});
    }
    if (world_.rank() > 0) return;
    row.predicted_terms = planned.terms;
    row.terms = measured.medians();
  }

  /// Of all ranks.
  [[nodiscard]] double largest(std::int64_t mine) {
    const auto all = of_all(world_, mine);
    return static_cast<double>(std::max(all[0], all[1]));
  }

  ap::World& world_;
  const cases::Case& wanted_;
  fs::path folder_;
  std::string name_;
  int steps_;
  models::Batch batch_;
  std::optional<ap::Plan> plan_;
};

int run_case(int argc, char** argv) {
  ap::World world(argc, argv);
  at::set_num_threads(1);
  const fs::path folder = argv[2];
  const std::string model = argv[3];
  const auto& wanted = cases::kCases.at(static_cast<std::size_t>(std::atoi(argv[4])));
  const int steps = std::atoi(argv[5]);  // 0: for memory
  const auto run = [&]<class Net>(std::type_identity<Net>) {
    CaseRun<Net> one(world, wanted, folder, model, steps);
    std::string result;
    if (steps > 0)
      result = summary::to_text(one.run());
    else
      result = std::to_string(one.run_for_memory());
    if (world.rank() == 0) ap::write_text_file(folder / "result", result);
  };
  if (model == "mlp") run(std::type_identity<models::Mlp>{});
  if (model == "resnet") run(std::type_identity<models::ResNet>{});
  if (model == "transformer") run(std::type_identity<models::Transformer>{});
  return 0;
}

// ---------------------------------------------------------------- all cases

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("autopar-predictions-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

constexpr int kRounds = 3;

int run_all(int steps, const std::string& mpiexec) {
  const Folder folder;
  const auto self = fs::read_symlink("/proc/self/exe").string();
  setenv("OMP_NUM_THREADS", "1", 1);
  // What a case's processes found.
  const auto result_of = [&](const std::string& model, std::size_t i, int own_steps) {
    const auto command = mpiexec + " -n 2 '" + self + "' --case '" + folder.path().string() + "' " + model + " " +
                         std::to_string(i) + " " + std::to_string(own_steps);
    if (std::system(command.c_str()) != 0) throw std::runtime_error(model + ", " + cases::kCases[i].name + " failed");
    return ap::read_text_file(folder.path() / "result");
  };
  std::vector<summary::Row> rows;
  for (int round = 0; round < kRounds; ++round) {
    std::size_t next = 0;
    for (const auto& model : cases::kModels) {
      for (std::size_t i = 0; i < cases::kCases.size(); ++i, ++next) {
        auto row = summary::from_text(result_of(model, i, steps));
        row.slowest = round == 0 ? row.seconds : std::max(row.seconds, rows[next].slowest);
        if (round == 0)
          rows.push_back(row);
        else if (row.seconds < rows[next].seconds)
          rows[next] = row;
        else
          rows[next].slowest = row.slowest;
      }
    }
  }
  std::size_t next = 0;
  for (const auto& model : cases::kModels) {
    for (std::size_t i = 0; i < cases::kCases.size(); ++i, ++next) {
      setenv("MALLOC_MMAP_THRESHOLD_", "65536", 1);
      rows[next].bytes = std::stod(result_of(model, i, 0));
      unsetenv("MALLOC_MMAP_THRESHOLD_");
      std::cout << summary::to_json(rows[next]) << std::endl;
    }
  }
  summary::print(std::cout, rows);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc == 6 && std::string(argv[1]) == "--case") return run_case(argc, argv);
  return run_all(argc > 1 ? std::max(10, std::atoi(argv[1])) : 15, argc > 2 ? argv[2] : "mpiexec");
} catch (const std::exception& error) {
  std::cerr << "predictions: " << error.what() << '\n';
  return 1;
}
