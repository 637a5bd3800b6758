// How good and how fast plans for published instances are: prints one JSON line with the objective, the proven lower
// bound and the time the search took.
//
//   plan_quality INSTANCE.json [--devices K] [--memory BYTES] [--bandwidth BYTES/S] [--out PLAN.json]
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>

#include <autopar/bottleneck/exact_bottleneck_staging.hpp>
#include <autopar/bottleneck/instance_file.hpp>
#include <autopar/io/file.hpp>
#include <autopar/plan/planner.hpp>

namespace ap = autopar;

namespace {

struct Arguments {
  std::string instance, out;
  ap::InstanceTarget target;
};

double number(const std::string& option, const char* text) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != '\0' || !std::isfinite(value))
    throw ap::InvalidArgument(option + " " + text + " is not a number");
  return value;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0) {
      arguments.instance = word;
      continue;
    }
    if (i + 1 == argc) throw ap::InvalidArgument(word + " needs a value");
    const char* value = argv[++i];
    if (word == "--devices") {
      const double devices = number(word, value);
      if (devices != std::floor(devices) || std::abs(devices) > 1e9)
        throw ap::InvalidArgument(word + " is not a whole number");
      arguments.target.devices = static_cast<int>(devices);
    } else if (word == "--memory") {
      arguments.target.memory = number(word, value);
    } else if (word == "--bandwidth") {
      arguments.target.bandwidth = number(word, value);
    } else if (word == "--out") {
      arguments.out = value;
    } else {
      throw ap::InvalidArgument("unknown option " + word + "; known: --devices --memory --bandwidth --out");
    }
  }
  if (arguments.instance.empty()) throw ap::InvalidArgument("usage: plan_quality INSTANCE.json [--devices K] …");
  return arguments;
}

std::string json_number(double value) {
  std::ostringstream out;
  out << std::setprecision(17) << value;
  return std::isfinite(value) ? out.str() : "null";
}

/// Also says whether a plan that was not found is proven not to exist.
std::string why_infeasible(const ap::PlanningInstance& instance, const ap::BottleneckResult& result) {
  if (!result.stages.empty()) return "";
  if (std::isfinite(result.lower_bound)) return R"(,"proven":false,"reason":"the search ended before it found a plan")";
  const ap::SlowestStage objective(instance.graph, instance.costs, instance.limits);
  const auto large = objective.too_large();
  if (!large) return R"(,"proven":true,"reason":"no division into stages fits the devices' memory")";
  return R"(,"proven":true,"reason":"node )" + std::to_string(instance.graph[large->node]) + " alone needs " +
         json_number(large->bytes) + " of " + json_number(instance.limits.memory) + " bytes\"";
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    const auto instance =
        ap::parse_instance(ap::read_text_file(arguments.instance), arguments.instance, arguments.target);
    const auto begin = std::chrono::steady_clock::now();
    const ap::BottleneckResult result =
        ap::Planner<ap::SlowestStage>{}.plan(instance.graph, instance.costs, instance.limits);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const bool feasible = !result.stages.empty();
    std::cout << "{\"objective\":" << (feasible ? json_number(result.seconds) : "-1")
              << ",\"lower_bound\":" << json_number(result.lower_bound)
              << ",\"gap\":" << (feasible ? json_number(result.seconds / result.lower_bound - 1) : "null")
              << ",\"seconds\":" << seconds.count() << ",\"feasible\":" << (feasible ? "true" : "false")
              << ",\"stages\":" << result.stages.size() << ",\"checks\":" << result.checks
              << ",\"states\":" << result.states << why_infeasible(instance, result) << "}\n";
    if (!arguments.out.empty() && feasible)
      std::ofstream(arguments.out) << ap::to_json(instance, result.stages) << "\n";
    return EXIT_SUCCESS;
  } catch (const ap::Error& error) {
    std::cerr << "plan_quality: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
}
