#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <autopar/core/printable.hpp>
#include <autopar/io/plan_file.hpp>
#include <autopar/plan/option_text.hpp>
#include <autopar/plan/report/print.hpp>

#include "commands.hpp"
#include "tool.hpp"

namespace autopar::tool {

namespace {

struct Difference {
  std::string what, first, second;
};

template <class Id>
std::string as_ranges(const std::vector<Id>& ids) {
  std::vector<int> numbers;
  for (const Id id : ids) {
    if constexpr (requires { id.value(); })
      numbers.push_back(id.value());
    else
      numbers.push_back(id);
  }
  std::sort(numbers.begin(), numbers.end());
  return ranges(numbers);
}

class PlanDifferences {
 public:
  PlanDifferences(const Plan& first, const Plan& second) {
    add("model", detail_hash(first), detail_hash(second));
    add("world", first.world, second.world);
    add("batch", first.batch, second.batch);
    add("devices", first.device, second.device);
    add("memory of a rank", first.device_memory, second.device_memory);
    add("copies of gradients", first.gradient_copies, second.gradient_copies);
    add("optimizer_state_factor", first.optimizer_state_factor, second.optimizer_state_factor);
    add("stages", first.stages.size(), second.stages.size());
    add("micro-batches", first.microbatches, second.microbatches);
    add("schedule", name_of(first.schedule), name_of(second.schedule));
    add("ZeRO level", first.zero, second.zero);
    add("offloaded", name_of(first.offload), name_of(second.offload));
    add("host memory of a rank", first.host_memory, second.host_memory);
    add("precision", option_text(first.precision), option_text(second.precision));
    add("reduce_dtype", name_of(first.buckets.reduce_dtype), name_of(second.buckets.reduce_dtype));
    add("constraints", joined(first.constraints), joined(second.constraints));
    const std::size_t common = std::min(first.stages.size(), second.stages.size());
    for (std::size_t s = 0; s < common; ++s) add_stage("stage " + std::to_string(s), first.stages[s], second.stages[s]);
    add("predicted step", first.step, second.step);
    add("bubble", first.bubble, second.bubble);
    add("bound by", name_of(first.binding), name_of(second.binding));
    add("lower bound", first.certificate.lower_bound, second.certificate.lower_bound);
    if (const auto one = gap_percent(first.certificate.gap, 6), other = gap_percent(second.certificate.gap, 6);
        one != other)
      found.push_back({"gap", one, other});
    if (first.orders != second.orders) found.push_back({"orders of ranks", "one order", "another"});
    if (found.empty() && first != second) found.push_back({"notes, runners-up or evidence", "one text", "another"});
  }

  std::vector<Difference> found;

 private:
  static std::string detail_hash(const Plan& plan) { return std::to_string(plan.model); }
  /// Atoms of each segment.
  static std::string segments_of(const StagePlan& stage) {
    std::string text;
    for (const auto& segment : stage.recomputed) text += (text.empty() ? "" : " | ") + as_ranges(segment);
    return text;
  }
  static std::string joined(const std::vector<std::string>& texts) {
    std::string all;
    for (const auto& text : texts) all += (all.empty() ? "" : ", ") + text;
    return all;
  }
  static std::string show(const std::string& value) { return value.empty() ? "none" : printable_line(value); }
  static std::string show(Bytes value) { return readable(value) + " (" + std::to_string(value.value()) + " bytes)"; }
  static std::string show(Seconds value) { return readable(value); }
  static std::string show(double value) { return detail::formatted("%.6g", value); }
  template <std::integral Number>
  static std::string show(Number value) {
    return std::to_string(value);
  }

  /// Times that look alike are shown with all their digits.
  template <class T>
  void add(const std::string& what, const T& first, const T& second) {
    if (first == second) return;
    std::string one = show(first), other = show(second);
    if constexpr (std::same_as<T, Seconds>) {
      if (one == other) {
        one = detail::formatted("%.17g s", first.value());
        other = detail::formatted("%.17g s", second.value());
      }
    } else if constexpr (std::same_as<T, double>) {
      if (one == other) {
        one = detail::formatted("%.17g", first);
        other = detail::formatted("%.17g", second);
      }
    }
    found.push_back({what, one, other});
  }

  void add_stage(const std::string& name, const StagePlan& first, const StagePlan& second) {
    add(name + ": atoms", as_ranges(first.atoms), as_ranges(second.atoms));
    add(name + ": operators", as_ranges(first.ops), as_ranges(second.ops));
    add(name + ": replicas", first.mesh.replicas(), second.mesh.replicas());
    add(name + ": tensor shards", first.mesh.tensor(), second.mesh.tensor());
    add(name + ": ranks", as_ranges(first.mesh.ranks()), as_ranges(second.mesh.ranks()));
    add(name + ": recomputed", segments_of(first), segments_of(second));
    add(name + ": parameters", first.parameter_bytes, second.parameter_bytes);
    add(name + ": forward", first.forward, second.forward);
    add(name + ": backward", first.backward, second.backward);
    add(name + ": messages", first.communication, second.communication);
    add(name + ": gradient sums", first.reduction, second.reduction);
    add(name + ": peak memory", first.peak_memory, second.peak_memory);
    add(name + ": host memory", first.host_memory, second.host_memory);
  }
};

/// What it comes to: which is faster, and of what shapes they are.
std::string headline(const DiffArguments& arguments, const Plan& first, const Plan& second) {
  const auto shape = [](const Plan& plan) { return plan.stages.empty() ? "no stages" : describe(plan); };
  const auto shapes = shape(first) == shape(second) ? "both " + shape(first) : shape(first) + " -> " + shape(second);
  std::string speed = "as fast as ";
  const bool differ = first.step > Seconds{} && second.step > Seconds{} && first.step != second.step;
  if (differ) {
    const bool faster = second.step < first.step;
    const double ratio = faster ? first.step / second.step : second.step / first.step;
    if (ratio >= 1.005) speed = detail::formatted("%.3g", ratio) + " x as " + (faster ? "fast" : "slow") + " as ";
  }
  return arguments.second + " is predicted " + speed + arguments.first + ": " + shapes;
}

}  // namespace

int diff_command(const DiffArguments& arguments, std::ostream& out) {
  const Plan first = read_plan(arguments.first), second = read_plan(arguments.second);
  const auto found = PlanDifferences(first, second).found;
  if (arguments.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const auto& one : found) list.push_back({{"what", one.what}, {"first", one.first}, {"second", one.second}});
    out << nlohmann::ordered_json{{"equal", found.empty()}, {"differences", std::move(list)}}.dump() << '\n';
    return found.empty() ? kDone : kNo;
  }
  if (!found.empty()) out << headline(arguments, first, second) << '\n';
  for (const auto& one : found) out << one.what << ": " << one.first << " -> " << one.second << '\n';
  return found.empty() ? kDone : kNo;
}

}  // namespace autopar::tool
