// How long planning takes, and what it buys against RaNNC's search. One JSON line a case:
// chains of operators, with and without repetition, on growing clusters; BERT 4.9 B and ResNet152x8 from profiles that
// are made of shapes ("profile":"synthetic"), not captured; a transformer of a trillion parameters on 3072 devices.
//
// Everything that the runtime can run is allowed: all schedules, ZeRO, recomputation. Models are also planned for GPipe
// and 1F1B alone. "seconds" by the clock, "cpu_seconds" of the thread that plans.
//
//   plan_time [most operators = 10000] [most devices = 64]     0 operators: the models alone
//   plan_time small [part of a case's name]                    graphs of 10 to 1,000 operators on up to 8 devices
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <autopar/plan/model/constraints.hpp>
#include <autopar/plan/planner.hpp>

#include "baselines/rannc_staging.hpp"
#include "models.hpp"
#include "small_graphs.hpp"

namespace ap = autopar;

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// On this thread: what planning takes if nothing else runs.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// nullopt if no plan fits.
std::optional<ap::Plan> planned(const ap::ModelProfile& model, const ap::Cluster& cluster,
                                const ap::PlanRequest& request, std::string& searched) {
  ap::Planner<> planner;
  planner.observer = [&](const std::string& phase) {
    if (phase.starts_with("searched")) searched = phase;
  };
  try {
    return planner.plan(model, cluster, request);
  } catch (const ap::InfeasiblePlan&) {
    return std::nullopt;
  }
}

std::string shape_of(const ap::Plan& plan) {
  return ap::describe(plan) + ap::describe(ap::memory_optimizations_of(plan));
}

struct Timed {
  std::optional<ap::Plan> plan;
  double seconds, cpu_seconds;
  std::string searched;
};

Timed timed(const ap::ModelProfile& model, const ap::Cluster& cluster, const ap::PlanRequest& request) {
  const auto start = Clock::now();
  const double cpu = cpu_seconds();
  std::string searched;
  auto plan = planned(model, cluster, request, searched);
  return {std::move(plan), since(start), cpu_seconds() - cpu, std::move(searched)};
}

std::ostream& operator<<(std::ostream& out, const Timed& timed) {
  return out << R"("seconds":)" << timed.seconds << R"(,"cpu_seconds":)" << timed.cpu_seconds << R"(,"step":)"
             << (timed.plan ? timed.plan->step.value() : 0) << R"(,"plan":")"
             << (timed.plan ? shape_of(*timed.plan) : "infeasible") << R"(","searched":")" << timed.searched << '"';
}

std::int64_t parameters_of(const ap::ModelProfile& model) {
  std::int64_t parameters = 0;
  for (const auto& parameter : model.parameters) parameters += parameter.elements;
  return parameters;
}

void run_chain(int operators, int devices, bool repeated) {
  ap::PlanRequest request;
  request.batch = 16 * devices;
  request.runtime = ap::runtime_capabilities();
  const Timed result = timed(models::chain(operators, repeated), models::a100s(devices), request);
  std::cout << R"({"operators":)" << operators << R"(,"devices":)" << devices << R"(,"repeated":)"
            << (repeated ? "true" : "false") << ',' << result << '}' << std::endl;
}

/// A transformer of a trillion parameters on 3072 A100 of 80 GB.
void run_trillion() {
  const auto model = models::transformer(25600, 128, 160, 512, 51200);
  ap::PlanRequest request;
  request.batch = 3072;
  request.runtime = ap::runtime_capabilities();
  const Timed result = timed(model, models::a100s(3072, 80), request);
  std::cout << R"({"model":"transformer-1t","profile":"synthetic","parameters":)" << parameters_of(model)
            << R"(,"operators":)" << model.graph.node_count() << R"(,"devices":3072,"batch":3072,"all_schedules":true,)"
            << result << '}' << std::endl;
}

/// `"rannc_step":…,"speedup":…` of RaNNC's plan under the same objective.
void against_rannc(const std::string& name, const ap::RanncStaging& rannc, const ap::StepObjective& objective,
                   const std::optional<ap::Plan>& plan) {
  const auto start = Clock::now();
  const ap::SearchResult found = rannc.search(objective);
  std::cout << ",\"" << name << R"(":{"seconds":)" << since(start);
  if (found.candidates.any_fits()) {
    const ap::Candidate& best = found.candidates.best();
    std::cout << R"(,"step":)" << best.terms.step.value() << R"(,"plan":")" << ap::describe(best.staging) << '"';
    if (plan) std::cout << R"(,"speedup":)" << best.terms.step / plan->step;
  } else {
    std::cout << R"(,"plan":"none fits")";
  }
  std::cout << '}';
}

void run_model(const std::string& name, const ap::ModelProfile& model, int devices, std::int64_t batch,
               bool all_schedules) {
  const auto cluster = models::v100s(devices);
  ap::PlanRequest request;
  request.batch = batch;
  if (all_schedules) request.runtime = ap::runtime_capabilities();
  const Timed result = timed(model, cluster, request);
  std::cout << R"({"model":")" << name << R"(","profile":"synthetic","parameters":)" << parameters_of(model)
            << R"(,"operators":)" << model.graph.node_count() << R"(,"devices":)" << devices << R"(,"batch":)" << batch
            << R"(,"all_schedules":)" << (all_schedules ? "true" : "false") << ',' << result;
  const ap::RooflineCost cost(cluster);
  const ap::Workload work = ap::make_workload(model, cost);
  request.runtime = {};  // RaNNC knows GPipe and its own recomputation
  const ap::Constraints constraints = ap::resolve(request, work, cluster);
  const ap::StepObjective objective(work, cluster, constraints);
  against_rannc("rannc", ap::RanncStaging{}, objective, result.plan);
  against_rannc("rannc_that_recomputes", ap::RanncStaging{.recompute = true}, objective, result.plan);
  std::cout << '}' << std::endl;
}

/// Graphs of at most 1,000 operators on at most 8 devices, with memory to spare and without.
/// @param only  part of the names of cases
void run_small_graphs(const std::string& only) {
  int cases = 0, infeasible = 0, above = 0;
  double most = 0, all = 0;
  const auto run = [&](const models::Named& named, int devices, bool gpus, bool scarce) {
    const auto cluster = gpus ? models::a100s(devices) : models::cores(devices);
    const std::string ranks = cluster.name + '/' + std::to_string(devices);
    const std::string name = named.name + '/' + ranks + (scarce ? "/scarce" : "/spare");
    if (name.find(only) == std::string::npos) return;
    ap::PlanRequest request;
    request.batch = 16 * devices;
    request.runtime = ap::runtime_capabilities();
    if (scarce) request.options.device_memory = models::scarce(named.model, request.batch, devices);
    const Timed result = timed(named.model, cluster, request);
    std::cout << R"({"small":")" << name << R"(","operators":)" << named.model.graph.node_count() << ',' << result
              << '}' << std::endl;
    ++cases;
    infeasible += result.plan ? 0 : 1;
    above += result.cpu_seconds > 1 ? 1 : 0;
    most = std::max(most, result.cpu_seconds);
    all += result.cpu_seconds;
  };
  for (const models::Named& named : models::small_graphs()) {
    for (const bool scarce : {false, true}) {
      for (const int devices : {2, 4, 8}) run(named, devices, false, scarce);
      run(named, 8, true, scarce);
    }
  }
  std::cout << R"({"small_graphs":)" << cases << R"(,"infeasible":)" << infeasible << R"(,"above_1s":)" << above
            << R"(,"most_cpu_seconds":)" << most << R"(,"mean_cpu_seconds":)" << all / std::max(1, cases) << '}'
            << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "small") {
    run_small_graphs(argc > 2 ? argv[2] : "");
    return 0;
  }
  const int most_operators = argc > 1 ? std::atoi(argv[1]) : 10'000;
  const int most_devices = argc > 2 ? std::atoi(argv[2]) : 64;
  for (const bool all_schedules : {true, false}) {
    run_model("bert-4.9b", models::bert(), 8, 64, all_schedules);
    run_model("bert-4.9b", models::bert(), 32, 256, all_schedules);
    run_model("resnet152x8", models::resnet152x8(), 32, 1024, all_schedules);
  }
  run_trillion();
  for (int operators = 100; operators <= most_operators; operators *= 10) {
    for (int devices = 8;; devices = devices * 8 > most_devices ? most_devices : devices * 8) {
      for (const bool repeated : {true, false}) run_chain(operators, devices, repeated);
      if (devices >= most_devices) break;
    }
  }
}
